"""Several seeds are one row; a run that diverged is one too, and ends no comparison."""

from __future__ import annotations

import math
import re
from pathlib import Path

import pytest
from scipy.stats import t
from typer.testing import CliRunner

from narrowcast import intervals
from narrowcast.cli.app import app
from narrowcast.errors import ConfigError, Diverged
from narrowcast.runs import compare, run_folder, runner, summarise
from narrowcast.runs.reading import make_config
from narrowcast.runs.seeds import pooled
from narrowcast.units import format_bytes

FILE = """
task = "quadratic"
rounds = 6
dim = 8
lr = 0.05
seeds = [0, 1, 2]

[[run]]
method = "static"

[[run]]
method = "uncompressed"
lr = 1e9

[[run]]
method = "topk"
seeds = [7]
"""


@pytest.fixture
def runs(tmp_path: Path) -> Path:
    (tmp_path / "three.toml").write_text(FILE)
    compare.run_all(compare.load(tmp_path / "three.toml"), tmp_path / "out")
    return tmp_path


def test_every_seed_has_a_folder_and_they_share_a_row(runs: Path) -> None:
    folders = sorted(p.name for p in (runs / "out").iterdir())
    assert [n for n in folders if n.startswith("static")] == [f"static-d=8-s{s}" for s in (0, 1, 2)]
    assert "topk-s7" in folders
    each = [summarise(runs / "out" / f"static-d=8-s{s}") for s in (0, 1, 2)]
    (row,) = pooled(each)
    values = [run.metric for run in each]
    assert row.metric == pytest.approx(sum(values) / 3)
    assert row.interval == pytest.approx(intervals.student(values)[1], rel=1e-4)
    assert row.facts.label == "static d=8 (3 seeds)"
    assert (row.up, row.seeds) == (each[0].up, (0, 1, 2))
    low, high = row.band[-1]
    assert low < row.curve[-1][1] < high
    assert pooled([each[0], each[0]]) == [each[0]]  # the same folder twice is one run


def test_a_comparison_goes_on_after_a_run_that_diverges_and_says_so(runs: Path) -> None:
    shown = CliRunner().invoke(app, ["show", str(runs / "out")]).output
    assert "uncompressed, seed 1: diverged:" in shown
    row = next(line for line in shown.splitlines() if line.strip().startswith("uncompressed"))
    assert "diverged" in row
    assert run_folder.finished(runs / "out" / "topk-s7")  # it came after them
    again = compare.run_all(compare.load(runs / "three.toml"), runs / "out")  # neither repeated nor an error
    assert len(again) == 7


def test_progress_keeps_seeds_apart(tmp_path: Path) -> None:
    file = tmp_path / "c.toml"
    file.write_text(FILE.replace("0.05", '"auto"').partition("[[run]]")[0] + "[[run]]")
    shown = CliRunner().invoke(app, ["compare", str(file), "--out", str(tmp_path / "out")]).output
    for seed in (0, 1, 2):
        run = summarise(tmp_path / "out" / f"static-d=8-s{seed}")
        assert f"static d=8, seed {seed}: lr " in shown
        (end,) = re.findall(rf"static d=8, seed {seed}: round 6 of 6 .*", shown)
        assert end.endswith(f" {format_bytes(run.up + run.down)}")


@pytest.mark.parametrize("words", [[], ["--markdown"]])
def test_an_output_without_the_sign_of_an_interval_has_it_spelt(runs: Path, words: list[str]) -> None:
    asked = ["show", str(runs / "out"), *words]
    shown, plain = (CliRunner(charset=charset).invoke(app, asked) for charset in ("utf-8", "ascii"))
    assert plain.exit_code == 0, plain.output
    (interval,) = re.findall(r"\d±\d", shown.output)
    assert interval.replace("±", "+-") in plain.output
    assert "; +-: Student's" in " ".join(plain.output.split())


def test_nobody_is_sent_to_resume_what_diverged(runs: Path) -> None:
    folder = runs / "out" / "uncompressed-s0"
    for call in (runner.resume, runner.rebuild):
        with pytest.raises(Diverged, match="a lower --lr") as caught:
            call(folder)
        assert "--resume" not in str(caught.value)
    runner.start(make_config({"task": "quadratic", "rounds": 2, "lr": 0.05, "dim": 8}), folder, force=True)
    assert run_folder.diverged(folder) is None


def test_runs_that_differ_by_more_than_the_seed_are_rows_of_their_own(tmp_path: Path) -> None:
    for seed, lr in ((0, 0.05), (1, 0.06)):
        config = make_config({"task": "quadratic", "rounds": 2, "dim": 8, "lr": lr, "seed": seed})
        runner.start(config, tmp_path / f"{seed}")
    assert len(pooled([summarise(tmp_path / "0"), summarise(tmp_path / "1")])) == 2


@pytest.mark.parametrize("wrong", ["[]", "[1, 1]", '["0"]', "[1.5]", "[true]", "3"])
@pytest.mark.parametrize("place", ["[0, 1, 2]", "[7]"])  # at the top, in a run's table
def test_seeds_are_different_whole_numbers(tmp_path: Path, wrong: str, place: str) -> None:
    (tmp_path / "c.toml").write_text(FILE.replace(place, wrong))
    for over in ({}, {"seed": 5}):
        with pytest.raises(ConfigError, match="list of different whole numbers"):
            compare.load(tmp_path / "c.toml", over)


def test_a_number_of_seeds_is_not_taken_for_fedkseeds_directions(tmp_path: Path) -> None:
    (tmp_path / "c.toml").write_text(
        'task = "quadratic"\nrounds = 1\nseeds = 3\n[[run]]\nmethod = "fedkseed"\n'
    )
    with pytest.raises(ConfigError, match="called directions"):
        compare.load(tmp_path / "c.toml")


@pytest.mark.parametrize("seeds", ["[0, 1]", "3"])
def test_a_single_run_has_one_seed(tmp_path: Path, seeds: str) -> None:
    file = tmp_path / "one.toml"
    file.write_text(f'task = "quadratic"\nmethod = "fedkseed"\nrounds = 1\nseeds = {seeds}\n')
    shown = CliRunner().invoke(app, ["run", str(file), "--out", str(tmp_path / "run")])
    assert shown.exit_code == 2
    assert "several seeds are for narrowcast compare, here it is seed = 0" in shown.output
    assert not (tmp_path / "run").exists()


def test_a_seed_given_to_the_command_is_the_only_one(tmp_path: Path) -> None:
    (tmp_path / "c.toml").write_text(FILE)
    configs = compare.load(tmp_path / "c.toml", {"seed": 5}).configs
    assert [config.seed for config in configs.values()] == [5, 5, 5]


@pytest.mark.parametrize("n", [2, 3, 5, 11, 12, 20, 100])
def test_the_interval_is_students(n: int) -> None:
    values = [math.sin(i) for i in range(n)]
    spread = intervals.half_width(values) / intervals.student(values)[1]
    assert spread == pytest.approx(1, abs=2e-3)
    assert t.ppf(0.975, n - 1) > 1.9
    assert intervals.half_width(values[:1]) is None
