"""Several seeds are one row; a run that diverged is one too, and ends no comparison."""

from __future__ import annotations

import math
import re
import statistics
from dataclasses import replace
from pathlib import Path

import pytest
from scipy.stats import t
from typer.testing import CliRunner

import narrowcast as nc
from narrowcast import intervals
from narrowcast.cli.app import app
from narrowcast.errors import ConfigError, Diverged
from narrowcast.rounds.rates import Found
from narrowcast.runs import compare, run_folder, runner, summarise
from narrowcast.runs.reading import make_config
from narrowcast.runs.seeds import pooled
from narrowcast.testing import toy_task
from narrowcast.units import format_bytes
from page_runs import write_run

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
    again, lost = compare.run_all(
        compare.load(runs / "three.toml"), runs / "out"
    )  # neither repeated nor an error
    assert (len(again), lost) == (7, {})


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


@pytest.mark.parametrize("away", [0.9, -0.9, 0.4, 0.25])
def test_enough_is_the_first_number_of_values_whose_interval_is_short_enough(away: float) -> None:
    values = [-1.0, 0.0, 1.0]
    found = intervals.enough(away, intervals.student(values)[1], len(values))
    scatter = statistics.stdev(values)

    def settles(n: int) -> bool:
        others = [1.0, -1.0] * (n // 2) + [0.0] * (n % 2)
        alike = [x * scatter / statistics.stdev(others) for x in others]
        return intervals.student(alike)[1] < abs(away)

    assert found == next(n for n in range(4, 101) if settles(n))


def test_no_number_of_values_settles_a_mean_at_the_limit() -> None:
    assert intervals.enough(0.0, 1.0, 3) == math.inf
    assert intervals.enough(0.1, 4.0, 3) == math.inf  # some 300


def test_a_run_whose_search_diverges_ends_no_comparison(tmp_path: Path) -> None:
    file = tmp_path / "two.toml"
    bad = '[[run]]\nname = "bad"\nlr = "auto"\n'
    file.write_text('task = "quadratic"\nrounds = 4\ndim = 8\n[[run]]\nname = "good"\nlr = 0.05\n' + bad)
    out = tmp_path / "out"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(runner, "_by_trials", _nothing_found)
        shown = CliRunner().invoke(app, ["compare", str(file), "--out", str(out)])
        alone = tmp_path / "alone.toml"
        alone.write_text('task = "quadratic"\nrounds = 4\n' + bad)
        nothing = CliRunner().invoke(app, ["compare", str(alone), "--out", str(tmp_path / "other")])
    assert shown.exit_code == 0, shown.output
    assert "bad: every rate diverged" in shown.output
    assert any(line.strip().startswith("good") for line in shown.output.splitlines())
    assert (out / "page.html").is_file()
    assert nothing.exit_code == 1
    assert "bad: every rate diverged" in nothing.output


def _nothing_found(*_: object, **__: object) -> Found:
    raise Diverged("every rate diverged")


@pytest.mark.parametrize("where", ["top", "run"])
def test_a_seed_beside_seeds_is_refused(tmp_path: Path, where: str) -> None:
    file, seed = tmp_path / "c.toml", "seed = 7\n"
    top, run = (seed, "") if where == "top" else ("", seed)
    file.write_text(f'task = "quadratic"\nrounds = 1\nseeds = [0, 1]\n{top}[[run]]\ndim = 4\n{run}')
    with pytest.raises(ConfigError, match=r"seed = 7 beside seeds = \[0, 1\]"):
        compare.load(file)
    assert [c.seed for c in compare.load(file, {"seed": 3}).configs.values()] == [3]


def test_the_row_of_seeds_has_no_number_of_one_of_them(tmp_path: Path) -> None:
    each = [summarise(write_run(tmp_path / str(seed), seed=seed)) for seed in range(3)]
    told = [
        replace(
            run, metric=None, curve=[], at_nodes=0.1 * (i + 1), evaluation=100 * (i + 1), dropped={"late": i}
        )
        for i, run in enumerate(each)
    ]
    (row,) = pooled(told)
    assert (row.at_nodes, row.evaluation, row.dropped) == (pytest.approx(0.2), 200, {"late": 3})
    assert row.facts.label == "static (3 seeds)"  # evaluated at nodes alone, they came to their end


def test_seeds_on_other_devices_are_one_row(tmp_path: Path) -> None:
    runs = [
        summarise(write_run(tmp_path / device, seed=i, device=device))
        for i, device in enumerate(("auto", "cpu"))
    ]
    assert [row.seeds for row in pooled(runs)] == [(0, 1)]


def test_a_folder_that_a_kill_left_half_made_hides_no_other(tmp_path: Path) -> None:
    good = write_run(tmp_path / "runs" / "good")
    half = tmp_path / "runs" / "half"
    half.mkdir()
    (half / run_folder.FACTS).write_bytes((good / run_folder.FACTS).read_bytes())
    assert run_folder.find([tmp_path / "runs"]) == [good]


def test_an_engine_that_only_the_command_starts_is_refused_elsewhere(tmp_path: Path) -> None:
    settings = {"task": "quadratic", "rounds": 1, "engine": "flower-sim"}
    with pytest.raises(ConfigError, match="--engine flower-sim"):
        runner.start(make_config(settings), tmp_path / "run")
    with pytest.raises(ConfigError, match="--engine flower-sim"):
        nc.simulate(toy_task(), "static", dim=4, rounds=1, engine="flower-sim")
    file = tmp_path / "c.toml"
    file.write_text('task = "quadratic"\nrounds = 1\nengine = "flower-sim"\n[[run]]\ndim = 4\n')
    with pytest.raises(ConfigError, match="--engine flower-sim"):
        compare.load(file)
