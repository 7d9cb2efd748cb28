"""What people type in their first hour: short flags, slips, units, a narrow terminal, an early Ctrl-C."""

from __future__ import annotations

import io
import re
import subprocess
import sys
from pathlib import Path

import pytest
from rich.console import Console
from typer.testing import CliRunner, Result

from narrowcast import __version__
from narrowcast.cli.app import app
from narrowcast.data import listing
from narrowcast.errors import ConfigError
from narrowcast.runs import compare, run_folder
from narrowcast.runs.config import CHOICES, RunConfig
from narrowcast.runs.reading import make_config, read_toml
from narrowcast.tables import plain_table


def narrowcast(*args: object, columns: int = 100) -> Result:
    return CliRunner().invoke(app, [str(a) for a in args], env={"COLUMNS": f"{columns}"})


def test_help_and_version_have_their_usual_names() -> None:
    assert narrowcast("-h").output == narrowcast("--help").output
    assert narrowcast("run", "-h").output == narrowcast("run", "--help").output
    assert narrowcast("--version").output == f"narrowcast {__version__}\n"


@pytest.mark.parametrize(
    ("words", "meant"),
    [
        (["run", "digits", "--method", "statc", "--rounds", "1"], "did you mean 'static'?"),
        (["run", "digits", "--method", "time_varying", "--rounds", "1"], "did you mean 'time-varying'?"),
        (["run", "digts", "--rounds", "1"], "did you mean 'digits'?"),
        (["shwo"], "did you mean 'show'?"),
    ],
)
def test_a_slip_is_understood(words: list[str], meant: str) -> None:
    result = narrowcast(*words)
    assert result.exit_code == 2
    assert meant in " ".join(result.output.split())


def test_a_file_in_place_of_a_task_is_told_how_to_be_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("mine.py", "settings.txt", "quadratic"):
        Path(name).write_text("")
    assert "name its function that makes one, mine:FUNCTION" in narrowcast("run", "mine.py").output
    assert "a file of settings must end in .toml" in narrowcast("run", "settings.txt").output
    assert "say how long to train" in narrowcast("run", "quadratic").output  # a task all the same


def test_an_unknown_task_is_named_once_beside_those_that_can_be_run() -> None:
    shown = narrowcast("run", "nothing", "--rounds", "1").output
    assert shown.count("nothing") == 1
    assert "quadratic" in shown
    assert "custom" not in shown


def test_a_slip_in_a_file_is_understood(tmp_path: Path) -> None:
    (tmp_path / "a.toml").write_text('task = "digits"\nrounds = 1\nlocal-stpes = 2\n')
    shown = " ".join(narrowcast("run", tmp_path / "a.toml").output.split())
    assert "did you mean 'local-steps'?" in shown


def test_help_says_every_choice_and_every_default() -> None:
    shown = " ".join(narrowcast("run", "--help", columns=300).output.split())
    for name, known in CHOICES.items():
        for choice in known if name != "task" else ():
            assert choice in shown.replace("- ", "-"), (name, choice)  # lines are broken at hyphens
    assert re.search(r"--warmup COUNT .*?\[default: 0\]", shown)
    assert re.search(r"--dropout FLOAT .*?\[default: 0\.0\]", shown)


def test_dashes_and_underscores_are_alike_in_a_file(tmp_path: Path) -> None:
    file = tmp_path / "a.toml"
    file.write_text('task = "quadratic"\nlocal-steps = 3\nlocal_lr = 0.1\nrounds = 2\nlr = 0.1\n')
    assert make_config(read_toml(file)).local_steps == 3
    assert narrowcast("run", file, "--out", tmp_path / "run").exit_code == 0
    file.write_text('task = "quadratic"\nrounds = 2\n[[run]]\nmethod = "fedavg"\nlocal-steps = 4\n')
    (config,) = compare.load(file).configs.values()
    assert config.local_steps == 4
    file.write_text('task = "quadratic"\nlocal-steps = 3\nlocal_steps = 4\nrounds = 2\n')
    with pytest.raises(ValueError, match="twice"):
        read_toml(file)


@pytest.mark.parametrize(("text", "count"), [("64k", 64_000), ("1M", 10**6), ("1e3", 1000), ("12", 12)])
def test_counts_may_have_a_unit(tmp_path: Path, text: str, count: int) -> None:
    assert make_config({"task": "digits", "rounds": 1, "dim": text}).dim == count
    out = tmp_path / "run"
    narrowcast("run", "quadratic", "--rounds", "1", "--lr", "0.1", "--clients", "20", "--k", text,
               "--method", "topk", "--out", out)  # fmt: skip
    assert run_folder.load_config(out).k == count


@pytest.mark.parametrize("text", ["64q", "-3", "1.5", "many", ""])
def test_what_is_no_count_is_refused_by_its_flag(text: str) -> None:
    result = narrowcast("run", "digits", "--rounds", "1", f"--dim={text}")
    assert result.exit_code == 2
    assert "--dim" in result.output
    assert "Traceback" not in result.output


@pytest.mark.parametrize("name", ["dim", "epochs", "seed", "cohort", "momentum", "up_bits", "k"])
def test_true_is_no_number(name: str) -> None:
    with pytest.raises(ConfigError, match=f"--{name.replace('_', '-')}: must be a number, got true"):
        make_config({"task": "digits", "rounds": 1, name: True})
    assert make_config({"task": "digits", "rounds": 1, "validation": True}).validation


def test_a_seed_that_is_too_large_is_told_the_largest() -> None:
    largest = (1 << 63) - 1
    assert make_config({"task": "digits", "rounds": 1, "seed": largest}).seed == largest
    with pytest.raises(ValueError, match=f"--seed: .* {largest}, got {largest + 1}"):
        make_config({"task": "digits", "rounds": 1, "seed": largest + 1})


def test_zero_stays_a_number() -> None:
    config = make_config({"task": "digits", "rounds": 1, "warmup": "0", "evaluate_every": "0", "seed": "0"})
    assert (config.warmup, config.evaluate_every, config.seed) == (0, 0, 0)


@pytest.mark.parametrize("width", [20, 45, 60, 80, 110])
def test_no_number_is_ever_cut(width: int) -> None:
    numbers = ["0.9250", "14.3 MB", "27.9 MB", "578/297/393", "240", "13.9 s"]
    head = ["run", "accuracy", "up", "down", "compression\nup/down/total", "rounds", "time"]
    out = io.StringIO()
    table = plain_table(head, [["K-subspace + time-varying", *numbers]], "caption")
    Console(file=out, width=width).print(table)
    shown = out.getvalue()
    for number in numbers:
        assert re.search(rf"(?<![\d.]){re.escape(number)}(?![\d.])", shown), (number, shown)
    assert max(map(len, shown.splitlines())) <= width


def test_an_interrupt_while_importing_is_one_word() -> None:
    """Ctrl-C in the first second lands in an import: here in that of typer."""
    code = (
        "import sys\n"
        "class Interrupted:\n"
        "    def find_spec(self, name, path=None, target=None):\n"
        "        if name == 'typer': raise KeyboardInterrupt\n"
        "sys.meta_path.insert(0, Interrupted())\n"
        "from narrowcast.__main__ import main\n"
        "main()\n"
    )
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert (ended.returncode, ended.stderr) == (130, "\ninterrupted\n")


def test_the_list_of_data_is_true_of_the_tiny_model() -> None:
    last = listing.terminal(listing.rows())[-1].plain
    assert "needs its task's data" in last
    assert RunConfig.model_fields["model"]
