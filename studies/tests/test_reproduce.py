"""The harness: experiments as files, runs that resume, results from folders alone."""

import json
import re
import struct
from pathlib import Path

import msgspec
import numpy as np
import pytest
from typer.testing import CliRunner

from narrowcast.cli.app import app
from narrowcast.errors import ConfigError
from narrowcast_studies.reproduce import experiment, table1
from places import EXPERIMENTS, ROOT
from sessions import stand
from text_data import write_lines, write_sst2

FILE = """
title = "a test"
[[figure]]
kind = "frontier"
x = "compression"
[[figure]]
kind = "curves"
rows = ["static d=16", "uncompressed"]
[[figure]]
kind = "lines"
x = "dim"

[[claim]]
says = "Static sends fewer bytes"
kind = "cheaper"
pairs = [["static d=16", "uncompressed"], ["static d=16", "static d=64"]]
why = "d is below D."

[[published]]
name = "static d=16"
method = "static"
metric = 0.7
error = 0.1
total = 30.0

[small]
task = "digits"
width = 8
cohort = 100
epochs = 2
evaluate_every = 3
seeds = [0, 1]

[small.tune]
seed = 100
epochs = 1

[[small.run]]
name = "static d=16"
method = "static"
dim = 16
lr = 5.0

[[small.run]]
name = "static d=64"
method = "static"
dim = 64
lr = 5.0

[[small.run]]
name = "uncompressed"
method = "uncompressed"
lr = 0.3
"""


@pytest.fixture
def clone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(stand(tmp_path, FILE))
    return tmp_path


def call(*words: str) -> tuple[int, str]:
    result = CliRunner().invoke(app, ["reproduce", *words])
    return result.exit_code, result.output


SCALED = [
    (path.stem, scale)
    for path in sorted(EXPERIMENTS.glob("*.toml"))
    for scale in experiment.SCALES
    if f"\n[{scale}]" in path.read_text()
]


@pytest.mark.parametrize(("name", "scale"), SCALED)
def test_every_committed_experiment_can_be_read(
    name: str, scale: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(ROOT)
    assert name in experiment.names()
    assert experiment.load(name, scale).study.rows


def test_an_experiment_runs_once_and_its_results_come_from_the_folders(clone: Path) -> None:
    code, said = call("tiny")
    assert code == 0, said
    results = clone / "studies/experiments/results/tiny"
    assert {p.name for p in results.iterdir()} == {
        "README.md", "results.csv", "runs.jsonl", "frontier.png", "curves.png", "lines.png",
    }  # fmt: skip
    runs = [json.loads(line) for line in (results / "runs.jsonl").read_text().splitlines()]
    tuned, final = ([r for r in runs if r["config"]["validation"] == kind] for kind in (True, False))
    assert [(r["row"], r["seed"]) for r in final][:2] == [("static d=16", 0), ("static d=16", 1)]
    assert len(tuned) >= 9  # three rates a row
    assert {r["seed"] for r in tuned} == {100}
    assert all(r["seconds"] >= 0 and r["commit"] and r["config"]["method"] for r in runs)
    assert all(r["curve"] and not r["diverged"] for r in final)
    page = (results / "README.md").read_text()
    assert "narrowcast reproduce tiny" in page
    tall = {p.stem: struct.unpack(">II", p.read_bytes()[16:24])[1] for p in results.glob("*.png")}
    assert tall["frontier"] == 2 * tall["lines"]  # the paper's row has no d: no second panel
    assert tall["curves"] > tall["lines"]  # by epochs and by bytes
    assert all(list(r["spent"]) == list(r["curve"]) for r in runs)
    assert all(r["spent"][str(r["rounds"])] == r["bytes_up"] + r["bytes_down"] for r in final)
    code, said = call("results")
    assert code == 0, said
    judged = (clone / "docs/results.md").read_text()
    assert "| Static sends fewer bytes | - | **holds**: [tiny](#tiny) |" in judged
    assert "| 0.7 +- 0.1 | 30 |" in judged
    before = sorted(p.stat().st_mtime_ns for p in (clone / "runs").rglob("records.jsonl"))
    code, said = call("tiny")
    assert code == 0
    assert sorted(p.stat().st_mtime_ns for p in (clone / "runs").rglob("records.jsonl")) == before
    (results / "README.md").unlink()
    call("tiny", "--only", "uncompressed")
    assert (results / "README.md").read_text() == page


def test_what_is_missing_is_named_on_the_page(clone: Path) -> None:
    code, said = call("tiny", "--only", "uncompressed")
    assert code == 0, said
    assert "Not run yet: static d=16, static d=64." in said


def test_a_dry_run_says_hours_and_runs_nothing(clone: Path) -> None:
    code, said = call("tiny", "--dry-run")
    assert code == 0, said
    assert said.count("core-hours") == 4
    assert not (clone / "runs").exists()


@pytest.mark.parametrize(
    ("words", "error"),
    [
        (["tiny", "--scale", "paper"], "has no scale 'paper': it has small"),
        (["nothing"], "table1, tiny"),
        (["tiny", "--only", "topk"], "no row or method is called topk"),
        ([], "say what to reproduce: table1, tiny"),
        (["results", "--smoke", "--only", "static"], "results goes without --smoke, --only"),
        (["table1", "--scale", "paper"], "table1 goes without --scale"),
        (["tiny", "--minutes", "1", "--dry-run", "--jobs", "2"], "--minutes goes without --dry-run, --jobs"),
    ],
)
def test_errors_say_what_there_is(clone: Path, words: list[str], error: str) -> None:
    code, said = call(*words)
    assert code == 2
    assert error in said


def test_a_figure_of_rows_that_are_none_is_refused(clone: Path) -> None:
    path = clone / "studies/experiments/tiny.toml"
    path.write_text(FILE.replace('rows = ["static d=16"', 'rows = ["static d=61"'))
    with pytest.raises(ConfigError, match="rows that are none: static d=61"):
        experiment.load("tiny", "small")


@pytest.mark.parametrize("scale", ["small", pytest.param("medium", marks=pytest.mark.slow)])
def test_cifar10_runs_through_on_small_data(clone: Path, scale: str) -> None:
    """Every row for two rounds, on pictures of noise in the form of the small CIFAR-10."""
    noise = np.random.default_rng(0)
    parts = {"train": 500, "test": 100}
    images = {
        f"x_{part}": noise.integers(0, 256, (n, 32, 32, 3), dtype=np.uint8) for part, n in parts.items()
    }
    labels = {f"y_{part}": (np.arange(n) % 10).astype(np.uint8) for part, n in parts.items()}
    (clone / "cifar10").mkdir()
    np.savez(clone / "cifar10/cifar10_small.npz", **images, **labels)
    (clone / "studies/experiments/cifar10.toml").write_text(
        (ROOT / "studies/experiments/cifar10.toml").read_text()
    )
    code, said = call("cifar10", "--scale", scale, "--smoke", "--data", str(clone))
    assert code == 0, said
    rows = experiment.load("cifar10", scale).study.rows
    assert len([line for line in said.splitlines() if line.startswith("| ")]) >= len(rows)
    assert not (clone / "studies/experiments/results").exists()


@pytest.mark.parametrize(
    ("name", "scale"),
    [
        ("sst2", "small"),
        ("personachat", "small"),
        ("lora", "small"),
        pytest.param("sst2", "medium", marks=pytest.mark.slow),
        pytest.param("personachat", "medium", marks=pytest.mark.slow),
    ],
)
def test_the_experiments_on_text_run_through_on_small_data(clone: Path, name: str, scale: str) -> None:
    """Every row for two rounds, with tiny models on a few sentences."""
    pytest.importorskip("transformers", reason="needs the extra narrowcast[text]")
    (write_lines if name == "personachat" else write_sst2)(clone / "data")
    (clone / f"studies/experiments/{name}.toml").write_text(
        (ROOT / f"studies/experiments/{name}.toml").read_text()
    )
    code, said = call(name, "--scale", scale, "--smoke", "--data", str(clone / "data"))
    assert code == 0, said
    for row in experiment.load(name, scale).study.rows:  # a rate for a large model may be none for a tiny one
        assert f"| {row.name} |" in said or re.search(rf"{re.escape(row.name)}: seed 0 .*: diverged", said)


@pytest.mark.parametrize("name", ["cifar10", "sst2", "personachat"])
def test_the_papers_own_scale_is_a_study_too(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    paper = experiment.load(name, "paper")
    assert len(paper.study.rows) >= 16
    assert len(paper.study.seeds) >= 3


def test_a_row_for_so_many_minutes_goes_on_when_called_again(clone: Path) -> None:
    arguments = ("tiny", "--only", "static d=16", "--minutes", "0")
    for rounds in (1, 2):  # no time at all is enough for a round
        code, said = call(*arguments)
        assert code == 0, said
        assert f"| rounds | {rounds} of " in said
    folder = clone / "studies/experiments/results/tiny/timed/static-d-16"
    assert len((folder / "records.jsonl").read_text().splitlines()) == 2
    assert {path.name for path in folder.iterdir()} == {
        "README.md",
        "records.jsonl",
        "config.toml",
        "curve.png",
    }
    code, said = call("tiny", "--minutes", "1")
    assert code == 2
    assert "--minutes is for one row, not" in said


def test_table_1_is_measured_as_the_paper_says(tmp_path: Path) -> None:
    d, E, K = table1.d, table1.E, table1.K
    expected = {
        "static": (d * E, d * E, d),
        "time-varying": (d * E, (2 * E - 1) * d, d * E),
        "k-subspace": (d * E, d * E * K, d * K),
        "k-subspace-time-varying": (d * E, (2 * E - 1) * d * K, d * E * K),
    }
    page = table1.reproduce(tmp_path / "table1")
    assert (tmp_path / "table1/README.md").read_text() == page
    rows = table1.read(tmp_path / "table1")
    assert rows
    found = {row.method: (row.up, row.down, row.dimensions) for row in rows if row.method in expected}
    assert found == expected
    assert all(table1.agrees(row) for row in rows)
    assert table1.markdown(rows) == page
    assert not table1.agrees(msgspec.structs.replace(rows[1], down=rows[1].down + 1))
    assert not table1.agrees(msgspec.structs.replace(rows[1], dimensions=rows[1].dimensions - 1))
