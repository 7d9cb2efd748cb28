"""`narrowcast measure --suggest`: bytes counted before a run are those of the run; what fits is tried."""

import re
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner

from narrowcast.cli.app import app
from narrowcast.measure import results, suggest, suggest_table
from narrowcast.measure.candidates import Candidate, bytes_of, largest, traffic, variants
from narrowcast.measure.probing import Trial
from narrowcast.measure.results import Trained
from narrowcast.measure.trainers import InFolders
from narrowcast.rounds.simulator import Simulation
from narrowcast.runs import run_folder, runner
from narrowcast.runs.config import RunConfig
from narrowcast.runs.reading import make_config
from narrowcast.tasks import build
from narrowcast.units import parse_bytes


def config_of(**changes: object) -> RunConfig:
    return make_config(
        {"task": "quadratic", "width": 300, "clients": 20, "epochs": 4, "cohort": 4, **changes}
    )


CANDIDATES = [*variants(5, 20), Candidate("time-varying", 1, "1"), Candidate("uncompressed")]


@pytest.mark.parametrize("c", CANDIDATES, ids=lambda c: c.label)
@pytest.mark.parametrize(
    "changes",
    [{}, {"uplink": "int8", "downlink": "f16"}, {"participation": 0.3, "dropout": 0.5}],
    ids=["plain", "formats", "partial"],
)
def test_bytes_before_the_run_are_those_of_the_run(c: Candidate, changes: dict[str, object]) -> None:
    """Also where a whole base is smaller than the stages a client lacks (d = 100 of 300)."""
    if c.method == "narrow":
        pytest.skip("its bytes are what its numbers need: see below")
    for d in (7, 100):
        config = config_of(**changes).model_copy(update={**c.settings(), "dim": d})
        task = build("quadratic", config.task_options())
        plan = config.plan(len(task.clients), bytes(8))
        simulation = Simulation(task, config.build_method(len(task.clients)), plan)
        sent = sum(record.up + record.down for record in simulation) / len(task.clients)
        visits = traffic(simulation.cohorts, simulation.rounds, c)
        assert bytes_of(c, d, task.layout.size, visits, config) == pytest.approx(sent)


@pytest.mark.parametrize("changes", [{"method": "narrow"}, {"up_bits": 3.0, "down_bits": 4.0}])
def test_few_bits_take_nearly_the_bytes_that_were_planned(changes: dict[str, object]) -> None:
    config = config_of(width=4000, lr=0.5, dim=2000, **changes)
    task = build("quadratic", config.task_options())
    plan = config.plan(len(task.clients), bytes(8))
    simulation = Simulation(task, config.build_method(len(task.clients)), plan)
    sent = sum(record.up + record.down for record in simulation) / len(task.clients)
    c = Candidate(config.method)
    visits = traffic(simulation.cohorts, simulation.rounds, c)
    assert bytes_of(c, 2000, task.layout.size, visits, config) == pytest.approx(sent, rel=0.12)


@given(st.integers(0, 5000), st.integers(1, 3000))
def test_the_largest_that_fits(limit: int, most: int) -> None:
    found = largest(lambda d: d <= limit, most)
    true = min(limit, most)
    assert found <= true
    assert found > 0.9 * true - 1
    assert len(str(found).rstrip("0")) <= 2


def test_variants_of_a_short_run_do_not_repeat_static() -> None:
    assert all(c.varies is False or (c.stage(10) or 0) < 20 for c in variants(10, 20))
    assert not any(c.varies for c in variants(1, 1))
    assert len(set(variants(10, 240))) == len(variants(10, 240)) == 10


@pytest.mark.parametrize(
    ("text", "count"), [("2MB", 2_000_000), ("500 kB", 500_000), ("1.5G", 1.5e9), ("7", 7), ("1e3", 1000)]
)
def test_bytes_are_read(text: str, count: int) -> None:
    assert parse_bytes(text) == count


@pytest.mark.parametrize("text", ["", "MB", "-1MB", "0", "2Mb/s", "1e3e"])
def test_other_than_bytes_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="expected bytes such as 2MB"):
        parse_bytes(text)


def test_the_best_that_fits_is_suggested(tmp_path: Path) -> None:
    """On a quadratic, where lower is better; the test set is not read, and the budget is kept."""
    config = config_of(epochs=6, cohort=5)
    found = suggest.propose(config, (0, 1), 12_000, tmp_path, rates=2, full_rate=0.05)
    means = [o.mean for o in found.options]
    assert means == sorted(means)
    assert all(o.predicted <= 12_000 < found.whole.predicted for o in found.options)
    near = {"narrow": 0.2}  # with as few numbers as this
    assert all(o.sent == pytest.approx(o.predicted, rel=near.get(o.method, 0.02)) for o in found.options)
    best = found.options[0]
    assert found.command.startswith(f"narrowcast run quadratic --method {best.method} --dim {best.d}")
    assert "--validation" not in found.command
    assert all(run_folder.load_config(p).validation for p in tmp_path.iterdir())
    assert best.trials[f"{best.rate:g}"] == best.metrics[0]
    spread = [(min(o.metrics), max(o.metrics)) for o in found.options]
    overlap = sum(low <= spread[0][1] and spread[0][0] <= high for low, high in spread[1:])
    assert f"The ranges of {overlap} of the other {len(spread) - 1} overlap" in suggest_table.markdown(found)
    with pytest.raises(ValueError, match="nothing of the family fits 100 B a client"):
        suggest.propose(config, (0,), 100, tmp_path)


def test_an_option_that_lost_seeds_stands_behind_those_that_lost_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However good the seeds are that it has left; table and sentence say how many it lost."""
    config, train = config_of(epochs=2, cohort=10), InFolders.train

    def lose(self: InFolders, trial: Trial, target: float | None) -> Trained:
        run = train(self, trial, target)
        if trial.method == "static":
            good = [(rounds, value - 1e6) for rounds, value in run.curve]
            return msgspec.structs.replace(run, curve=good, diverged=trial.seed == 1)
        return run

    monkeypatch.setattr(InFolders, "train", lose)
    said: list[str] = []
    found = suggest.propose(config, (0, 1, 2), 12_000, tmp_path, rates=1, full_rate=0.05, say=said.append)
    assert [o.method == "static" for o in found.options] == [False] * (len(found.options) - 1) + [True]
    last = found.options[-1]
    assert (last.diverged, len(last.metrics)) == (1, 2)
    assert last.mean < found.options[0].mean  # lower is better
    assert all(o.diverged == 0 and len(o.metrics) == 3 for o in found.options[:-1])
    assert any(line.startswith("static") and "1 of 3 diverged" in line for line in said)
    (row,) = [line for line in suggest_table.markdown(found).splitlines() if line.startswith("| static")]
    assert f"| {last.mean:.4f}, 1 of 3 diverged |" in row
    sentence = suggest_table.certainty(found)
    assert f"of the other {len(found.options) - 2} that lost as few seeds overlap" in sentence
    assert sentence.endswith("a row stands behind those that lost fewer: static (1 of 3 diverged).")
    results.write(tmp_path / "suggest.json", found)
    old = re.sub(r',\s*"diverged": \d+', "", (tmp_path / "suggest.json").read_text())
    (tmp_path / "suggest.json").write_text(old)
    read = results.read_results(tmp_path / "suggest.json", suggest.Suggested)
    assert not any(o.diverged for o in read.options)


def test_the_quick_command_prints_a_run_that_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    words = [
        "measure",
        "digits",
        "--quick",
        "--suggest",
        "--budget",
        "30kB",
        "--rates",
        "1",
        "--repeats",
        "1",
    ]
    words += ["--epochs", "3", "--width", "32", "--out", str(tmp_path)]
    done = CliRunner().invoke(app, words, env={"COLUMNS": "200"})
    assert done.exit_code == 0, done.output
    found = results.read_results(tmp_path / "suggest.json", suggest.Suggested)
    page = (tmp_path / "suggest.md").read_text()
    assert found.command in page
    assert "--suggest --budget 30kB" in page
    assert suggest_table.answer(found) in done.output
    assert len(found.options) >= 6
    again = CliRunner().invoke(app, [*found.command.split()[1:], "--out", str(tmp_path / "run")])
    assert again.exit_code == 0, again.output
    monkeypatch.setattr(runner, "start", lambda *a, **k: pytest.fail("everything is there"))
    assert CliRunner().invoke(app, words).exit_code == 0
