"""A study from file to table: tuned, seeded, resumed, never repeated, and honest about what diverged."""

import csv
import io
import math
import os
import shutil
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from narrowcast.cli.app import app
from narrowcast.errors import ConfigError, Diverged, Interrupted
from narrowcast.methods import METHODS
from narrowcast.runs import attempts, run_folder, runner, words
from narrowcast.runs.config import RunConfig
from narrowcast.runs.reading import make_config, read_toml
from narrowcast.runs.style import FAMILY, STYLE
from narrowcast_studies import conducting, study, worker
from narrowcast_studies.ledger import Ledger
from narrowcast_studies.processes import Processes, _judge
from narrowcast_studies.reproduce import multiples, plot, table
from narrowcast_studies.study import Study
from narrowcast_studies.worker import DIVERGED
from places import EXPERIMENTS
from tiny import TINY, Counting, collected, tiny


def conduct(plan: Study, folder: Path, **options: object) -> tuple[Counting, dict[str, str]]:
    run = Counting()
    failed = conducting.conduct(plan, Ledger(folder / "runs"), run=run, say=lambda line: None, **options)  # type: ignore[arg-type]
    return run, failed


def test_rates_are_tuned_on_other_data_and_the_test_set_is_read_once_a_seed(tmp_path: Path) -> None:
    plan = tiny(tmp_path)
    run, failed = conduct(plan, tmp_path, rows=["plain"])
    assert not failed
    trials = [c for c in run.ran if c.validation]
    finals = [c for c in run.ran if not c.validation]
    assert 3 <= len(trials) <= 5
    assert {(c.seed, c.epochs) for c in trials} == {(7, 0.4)}
    assert [(c.seed, c.epochs) for c in finals] == [(0, 1), (1, 1)]
    (outcome,), missing = collected(plan, tmp_path / "runs")
    assert missing == ["ours", "plain, half as long"]
    assert {c.lr for c in finals} == {outcome.rate}
    assert outcome.rate == max(outcome.trials, key=lambda rate: outcome.trials[rate])
    assert plan.trial(plan.rows[2], 1.0).epochs == 0.4  # never longer than the row itself


GRID = {
    "task": "digits", "rounds": 2, "width": 4, "clients": 40, "cohort": 10, "dim": 16, "evaluate_every": 0,
    "seeds": [0], "tune": {"retreats": 0},
    "run": [
        {"name": "{aggregate}, {partition} @ 0", "lr": 1.0, "tuned": True,
         "each": {"partition": ["iid", "class"], "aggregate": ["mean", "median"]}},
        {"name": "{aggregate}, {attack} @ {attackers}", "lr": 1.0, "tuned": True, "partition": "iid",
         "each": {"aggregate": ["mean", "median"], "attack": ["scale"], "attackers": [0.1, 0.2]}},
    ],
}  # fmt: skip


def test_a_grid_is_a_row_for_every_combination_and_has_its_picture(tmp_path: Path) -> None:
    plan = study.parse(GRID, "grid")
    assert [row.name for row in plan.rows] == [
        "mean, iid @ 0", "median, iid @ 0", "mean, class @ 0", "median, class @ 0",
        "mean, scale @ 0.1", "mean, scale @ 0.2", "median, scale @ 0.1", "median, scale @ 0.2",
    ]  # fmt: skip
    assert plan.rows[7].config.attackers == 0.2
    assert plan.rows[7].settings["aggregate"] == "median"
    _, failed = conduct(plan, tmp_path)
    assert not failed
    outcomes, _ = collected(plan, tmp_path / "runs")
    path = multiples.draw([o for o in outcomes if o.runs], tmp_path / "liars.png", "a try")
    assert path
    assert path.stat().st_size > 10_000


def test_each_is_a_table_of_lists() -> None:
    with pytest.raises(ConfigError, match="each is a table of lists"):
        study.every({"name": "x", "each": {"dim": 3}})


def test_nothing_is_repeated_and_a_stopped_run_goes_on(tmp_path: Path) -> None:
    plan = tiny(tmp_path)
    run, _ = conduct(plan, tmp_path)
    again, _ = conduct(plan, tmp_path)
    assert run.ran
    assert not again.ran
    last = tmp_path / "runs" / attempts.folder_of(run.ran[-1])
    (last / "model.narrowcast").unlink()  # as if killed before the end
    begun = (last / "facts.json").stat().st_ino
    resumed, _ = conduct(plan, tmp_path)
    assert resumed.ran == [run.ran[-1]]
    assert run_folder.finished(last)
    assert (last / "facts.json").stat().st_ino == begun


def test_an_interrupted_study_begins_no_more_runs(tmp_path: Path) -> None:
    begun: list[RunConfig] = []
    stopped: list[bool] = []

    def interrupted(config: RunConfig, folder: Path) -> None:
        begun.append(config)
        raise Interrupted("stopped after round 1")

    with pytest.raises(Interrupted):
        conducting.conduct(
            tiny(tmp_path),
            Ledger(tmp_path),
            run=interrupted,
            stop=lambda: stopped.append(True),
            say=lambda line: None,
        )
    assert stopped == [True]
    assert len(begun) <= 3  # a row each at most


def test_rows_that_share_a_tuning_run_do_it_once(tmp_path: Path) -> None:
    """Both uncompressed rows are tuned alike: at the same time, the second waits for the first."""
    run, failed = conduct(
        tiny(tmp_path), tmp_path, rows=["plain", "plain, half as long"], jobs=2, tune_only=True
    )
    assert not failed
    assert len(run.ran) == len({attempts.folder_of(c) for c in run.ran}) <= 5


def test_a_name_changes_no_run_and_a_setting_does(tmp_path: Path) -> None:
    conduct(tiny(tmp_path), tmp_path, rows=["ours"])
    renamed, _ = conduct(tiny(tmp_path, TINY.replace('"ours"', '"theirs"')), tmp_path, rows=["theirs"])
    assert not renamed.ran
    changed, _ = conduct(tiny(tmp_path, TINY.replace("dim = 32", "dim = 33")), tmp_path, rows=["ours"])
    assert len(changed.ran) >= 5


def test_a_folder_with_other_settings_than_its_name_says_is_not_used(tmp_path: Path) -> None:
    plan = tiny(tmp_path)
    config = plan.trial(plan.rows[0], 10.0)
    other = config.model_copy(update={"dim": 8})
    runner.start(other, tmp_path / "runs" / attempts.folder_of(config))
    run, failed = conduct(plan, tmp_path)
    assert "other settings" in failed["ours"]
    assert {c.method for c in run.ran} == {"uncompressed"}  # the other rows went on


def test_tuning_alone_leaves_the_test_set_alone(tmp_path: Path) -> None:
    run, _ = conduct(tiny(tmp_path), tmp_path, tune_only=True, jobs=1)
    assert run.ran
    assert all(c.validation for c in run.ran)
    assert collected(tiny(tmp_path), tmp_path / "runs") == ([], ["ours", "plain", "plain, half as long"])


def test_what_diverges_is_the_worst_and_is_kept(tmp_path: Path) -> None:
    plan = tiny(tmp_path, TINY.replace("lr = 10.0", "lr = 1e30"))
    run, failed = conduct(plan, tmp_path, rows=["ours", "plain"])
    assert not failed
    folders = [tmp_path / "runs" / attempts.folder_of(c) for c in run.ran if c.method == "static"]
    assert len(folders) == 5  # the whole budget, and no final run
    assert all(attempts.outcome(f) == "diverged" and not (f / runner.PRIVATE).exists() for f in folders)
    assert not conduct(plan, tmp_path, rows=["ours", "plain"])[0].ran
    outcomes, missing = collected(plan, tmp_path / "runs")
    assert outcomes[0].rate is None
    page = table.markdown(plan, outcomes, "a command", "abc", missing)
    assert "Diverged at every rate, or with every seed: ours." in page
    assert "Not run yet: plain, half as long." in page
    assert "1e+30: diverged" in page
    lost, kept = table.from_csv(table.as_csv(outcomes))
    assert (lost.name, lost.values, kept) == ("ours", [], table.lines(outcomes)[0])
    assert math.isnan(lost.mean)


def test_the_report_has_means_errors_and_ratios(tmp_path: Path) -> None:
    plan = tiny(tmp_path)
    conduct(plan, tmp_path)
    outcomes, missing = collected(plan, tmp_path / "runs")
    ours, plain, half = table.lines(outcomes)
    assert not missing
    assert plain.ratio is not None
    assert (plain.ratio.up, plain.ratio.down, plain.ratio.total) == (1, 1, 1)
    assert half.ratio is not None
    assert half.ratio.total == pytest.approx(287 / 180)  # 3 rounds of 60 clients
    assert plain.mean == pytest.approx(sum(plain.values) / 2)
    assert plain.error == pytest.approx(abs(plain.values[0] - plain.values[1]) / 2)
    page = table.markdown(plan, outcomes, "a command", "abc1234", missing)
    assert f"{ours.mean:.4f} +- {ours.error:.4f}" in page
    assert f"**{ours.rate:g}: {outcomes[0].trials[ours.rate]:.4f}**" in page
    assert os.uname().nodename not in page
    cells = list(csv.DictReader(io.StringIO(table.as_csv(outcomes))))
    assert [row["name"] for row in cells] == ["ours", "plain", "plain, half as long"]
    assert float(cells[0]["bytes_up"]) == ours.up
    assert table.from_csv(table.as_csv(outcomes)) == [ours, plain, half]
    drawn = plot.draw([ours, plain, half], tmp_path / "p.png", plan.title, "accuracy")
    assert drawn.read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize("sign", [1.0, -1.0])
def test_a_picture_bends_what_lies_far_below_and_nothing_that_its_bars_reach(sign: float) -> None:
    def line(*values: float) -> table.Line:
        return table.Line("row", "static", "", 1.0, {}, [sign * v for v in values], 0, 1.0, 1.0, 1.0, None)

    good = [line(0.9), line(0.88), line(0.86)]
    assert plot.limit([*good, line(0.2)], sign > 0) == pytest.approx(sign * (0.9 - plot.REACH * 0.03))
    narrow, wide = line(0.81, 0.83), line(0.74, 0.90)  # of one mean, and bars of 0.01 and 0.08 each way
    bent = sign * (0.9 - plot.REACH * 0.04)
    assert plot.limit([*good, narrow, line(0.2)], sign > 0) == pytest.approx(bent)
    assert plot.limit([*good, wide, line(0.2)], sign > 0) == pytest.approx(sign * 0.74)
    let_in = line(0.71, 0.81)  # below the border, and above where the wide bar ends: 0.76 with a bar of 0.05
    most = [line(0.89), *good, wide, let_in, line(0.2)]
    assert plot.limit(most, sign > 0) == pytest.approx(sign * 0.71)
    assert plot.limit([*good, line(0.8)], sign > 0) == pytest.approx(sign * 0.8)  # it fits almost


@pytest.mark.parametrize(
    ("old", "new", "says"),
    [
        ("seed = 7", "seed = 1", "another seed"),
        ("epochs = 0.4", "epochs = 0", "tune"),
        ("epochs = 0.4", "speed = 2", "tune"),
        ("seeds = [0, 1]", "seeds = []", "seeds"),
        ("lr = 10.0", "", "run 1: needs lr"),
        ('name = "ours"', 'name = "plain"', "run 2: another row is called 'plain'"),
        ("dim = 32", "dim = 32\nseed = 3", "seed are the study's to set"),
        ('method = "static"', 'method = "zip"', "run 1: --method: unknown method 'zip'"),
    ],
)
def test_a_wrong_file_is_said_before_anything_runs(tmp_path: Path, old: str, new: str, says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        tiny(tmp_path, TINY.replace(old, new, 1))


@pytest.mark.parametrize("name", ["mlp", "conv"])
def test_the_committed_comparison_has_every_method(name: str) -> None:
    plan = study.parse(read_toml(EXPERIMENTS / f"baselines-{name}.toml")["small"], name)
    assert {row.config.method for row in plan.rows} == set(METHODS) - {"narrow"}  # bytes.toml has it
    folders = {attempts.folder_of(plan.final(row, 1.0, 0)) for row in plan.rows}
    assert len(folders) == len(plan.rows)


def test_every_method_has_a_look_of_its_own() -> None:
    assert set(METHODS) <= set(STYLE)
    assert len(set(STYLE.values())) == len(STYLE)
    assert set(FAMILY) <= set(METHODS)


CONFIGS = [
    {"task": "digits", "rounds": 3, "method": "topk", "error_feedback": False, "k": 7, "lr": 0.1 + 0.2},
    {"task": "digits", "method": "time-varying", "epochs": 0.3, "optimiser": "adam", "carry": True},
    {"task": "quadratic", "rounds": 1, "schedule": "0:0,1:1", "name": "a name, with -- in it", "prox": 0.0},
]


@pytest.mark.parametrize("values", CONFIGS, ids=str)
def test_flags_say_the_whole_configuration(
    values: dict[str, object], monkeypatch: pytest.MonkeyPatch
) -> None:
    config = make_config(values)
    got: list[RunConfig] = []

    def start(config: RunConfig, *rest: object, **more: object) -> Path:
        got.append(config)
        raise ConfigError("enough")

    monkeypatch.setattr(runner, "start", start)
    CliRunner().invoke(app, ["run", *words.arguments(config), "--out", "x"])
    assert got == [config]


def test_a_process_of_its_own_runs_and_diverges_alike(tmp_path: Path) -> None:
    config = make_config(
        {"task": "quadratic", "rounds": 3, "method": "uncompressed", "lr": 0.1, "threads": 1}
    )
    processes = Processes()
    processes(config, tmp_path / "good")
    assert run_folder.finished(tmp_path / "good")
    bad = config.model_copy(update={"lr": 1e30, "schedule": "constant", "rounds": 9})
    assert not attempts.attempt(bad, tmp_path / "bad", processes)
    assert "lower --lr" in (tmp_path / "bad" / run_folder.DIVERGED).read_text()
    processes.stop()
    with pytest.raises(Interrupted):
        processes(config, tmp_path / "late")


def test_what_cannot_begin_has_not_diverged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Python ends with 1 where it finds no module, and no traceback tells."""
    monkeypatch.setattr(sys, "executable", shutil.which("false"))
    config = make_config({"task": "quadratic", "rounds": 3, "method": "uncompressed", "lr": 0.1})
    with pytest.raises(RuntimeError, match="ended with 1"):
        attempts.attempt(config, tmp_path / "run", Processes())
    assert not run_folder.diverged(tmp_path / "run")


def test_the_end_of_a_process_is_judged_by_its_code() -> None:
    _judge(0, "", [])
    for code, said, kind in [
        (DIVERGED, "error: the loss is nan: lower --lr", Diverged),
        (1, "python: No module named narrowcast_studies", RuntimeError),
        (1, "Traceback (most recent call last): ...", RuntimeError),
        (2, "error: no such file", RuntimeError),
        (-9, "", RuntimeError),
        (130, "stopped after round 3", Interrupted),
    ]:
        with pytest.raises(kind):
            _judge(code, said, ["narrowcast"])


def test_a_run_in_a_process_of_its_own_has_the_options_of_others_methods(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Their settings are fields of a configuration made for them: RunConfig alone knows none of these."""
    monkeypatch.syspath_prepend(EXPERIMENTS.parent.parent / "examples" / "my_method")
    asked = {
        "task": "quadratic",
        "rounds": 1,
        "width": 50,
        "method": "my_method:Pooled",
        "pool": 5,
        "lr": 0.1,
    }
    config = make_config(asked, admit=True)
    assert worker.work(config.model_dump_json(), tmp_path / "run") == 0
    assert run_folder.load_settings(tmp_path / "run")["pool"] == 5
