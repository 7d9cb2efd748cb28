"""The README's code runs, its commands exist, and its figures are those of the results."""

import re
from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner

from narrowcast.cli.app import app
from narrowcast_studies.reproduce import committed
from places import EXPERIMENTS, ROOT

README = (ROOT / "README.md").read_text()


def test_the_library_example_trains(capsys: pytest.CaptureFixture[str]) -> None:
    code = re.search(r"```python\n(.*?)```", README, re.S)
    assert code
    torch.manual_seed(0)
    scope: dict[str, object] = {}
    exec(code[1], scope)
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 60 + 1  # 10 epochs of 6 rounds, then the metrics
    first, last = float(lines[0].split()[1]), float(lines[-2].split()[1])
    assert last < first / 2
    model = scope["model"]
    assert isinstance(model, torch.nn.Module)
    assert "accuracy" in lines[-1]


@pytest.mark.parametrize("line", re.findall(r"^narrowcast (.*?)(?: +#.*)?$", README, re.M))
def test_every_command_and_flag_of_the_readme_exists(line: str) -> None:
    command, *rest = line.split()
    shown = CliRunner().invoke(app, [command, "--help"], env={"COLUMNS": "200"})
    assert shown.exit_code == 0
    for flag in (word for word in rest if word.startswith("--")):
        assert flag in shown.output, f"{flag} of `narrowcast {line}`"


PAGES = [p for p in ROOT.rglob("*.md") if ".venv" not in p.parts and "runs" not in p.parts]


@pytest.mark.parametrize("page", PAGES, ids=lambda p: p.name)
def test_every_link_leads_somewhere_and_no_placeholder_is_left(page: Path) -> None:
    text = page.read_text()
    for target in re.findall(r"\]\(([^)#:]+)\)", text):
        assert (page.parent / target).exists(), target
    assert not re.search(r"^[A-Z_]{5,}$", text, re.M)


def means(name: str) -> dict[str, float]:
    """The rows of committed results."""
    results = committed.read(EXPERIMENTS / "results" / name)
    assert results
    return {row: line.mean for row, line in results.lines.items()}


def test_figures_of_fine_tuning_are_those_of_the_committed_results() -> None:
    sst2, lora, chat = means("sst2"), means("lora"), means("personachat")
    short = README.split("Fine-tuning pretrained models")[1].split("\n\n")[0]
    long = (ROOT / "docs/text.md").read_text().split("## What it reaches")[1].split("##")[0]
    for row in ("time-varying d=12800", "uncompressed"):
        assert f"{sst2[row]:.3f}" in short
        assert f"{sst2[row]:.3f}" in long
    assert f"{sst2['time-varying d=1600']:.3f}" in long
    for row in ("LoRA r=4", "static d=1600 over LoRA r=4"):
        assert f"{lora[row]:.3f}" in long
    for row in ("LoRA r=4", "LoRA r=1"):
        assert f"{lora[row]:.3f}" in short
    for row in ("static d=4096", "static d=16384", "static d=262144", "uncompressed"):
        assert f"{chat[row]:.1f}" in long


# Rows of CIFAR-10, scale medium, with what they reach and how many times fewer bytes they take.
RIVALS = ("FetchSGD k=4000", "FedAvg, 2 local steps")
FEWER = ("narrow d=36000", "time-varying d=16000", "time-varying d=2000", "static d=16000", "static d=2000")


def test_figures_of_the_paper_s_protocols_are_those_of_the_committed_results() -> None:
    """Its own tasks, at scale medium: what a row reaches, and how many times fewer bytes it takes."""
    section = " ".join(README.split("## Against everything else")[1].split("## Use it")[0].split())
    cifar, sst2 = section.split("Fine-tuning")[0], section.split("In runs that read")[1].split("SmolLM2")[0]
    for text, name, rows in (
        (cifar, "cifar10", ("uncompressed", "uncompressed, a quarter as long", *RIVALS, *FEWER)),
        (sst2, "sst2", ("uncompressed", "time-varying d=12800", "time-varying d=1600", "static d=1600")),
    ):
        found = means(f"{name}/medium")
        for row in rows:
            assert f"{found[row]:.3f}" in text, row
    for row in FEWER:
        assert f"{ratio('cifar10/medium', row):.0f} times fewer" in cifar
    for row in RIVALS:
        assert f"{ratio('cifar10/medium', row):.2g} times fewer" in cifar


def test_figures_of_personachat_are_those_of_the_committed_results() -> None:
    section = " ".join(README.split("SmolLM2 (135 million)")[1].split("\n\n")[0].split())
    page = " ".join(
        (ROOT / "docs/text.md").read_text().split("After 1 000 replies")[1].split("##")[0].split()
    )
    found = means("personachat/medium")
    for row in ("static d=262144", "static d=65536", "uncompressed"):
        assert f"{found[row]:.1f}" in section
        assert f"{found[row]:.1f}" in page
    for row in ("static d=262144", "static d=65536"):
        assert f"{ratio('personachat/medium', row):,.0f} times fewer".replace(",", " ") in section


def ratio(name: str, row: str) -> float:
    """How many times fewer bytes it takes than uncompressed training: what pages call total."""
    results = committed.read(EXPERIMENTS / "results" / name)
    assert results
    found = results.lines[row].ratio
    assert found
    return found.total
