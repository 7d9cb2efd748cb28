"""A rate on the edge of stability: all seeds run again at the next lower one, and the table says so."""

import math
import statistics
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import msgspec

from narrowcast.errors import Diverged
from narrowcast.rounds import records
from narrowcast.runs import runner
from narrowcast.runs.config import RunConfig
from narrowcast.runs.reading import make_config
from narrowcast_studies import conducting, ran, study, untrained
from narrowcast_studies.ledger import Ledger
from narrowcast_studies.ran import Ran
from narrowcast_studies.reproduce import table
from narrowcast_studies.study import Study
from tiny import Counting, collected, tiny


class Unstable(Counting):
    """Final runs of these (seed, rate) diverge after their last round."""

    def __init__(self, bad: Callable[[int, float], bool]) -> None:
        super().__init__()
        self.bad = bad

    def __call__(self, config: RunConfig, folder: Path) -> None:
        super().__call__(config, folder)
        if not config.validation and self.bad(config.seed, config.lr):
            (folder / "model.narrowcast").unlink()
            raise Diverged("the loss is nan: lower --lr")


def unstable(folder: Path, bad: Callable[[int, float], bool]) -> tuple[Study, Unstable, study.Outcome]:
    """The row "ours" of a study whose final runs diverge so, and what the folders alone say of it."""
    plan, run = tiny(folder), Unstable(bad)
    assert not conducting.conduct(plan, Ledger(folder / "runs"), ["ours"], run=run, say=lambda line: None)
    (outcome,), _ = collected(plan, folder / "runs")
    return plan, run, outcome


def test_when_any_seed_diverges_all_run_again_at_the_next_lower_rate(tmp_path: Path) -> None:
    _, _, calm = unstable(tmp_path / "calm", lambda seed, rate: False)
    assert calm.tuned == calm.rate is not None
    assert calm.diverged == {}
    top = calm.rate
    plan, run, outcome = unstable(tmp_path / "edge", lambda seed, rate: seed == 1 and rate >= top)
    lower = plan.grid(plan.rows[0]).below(top)
    assert (outcome.tuned, outcome.rate, outcome.diverged) == (top, lower, {top: 1})
    finals = [(c.seed, c.lr) for c in run.ran if not c.validation]
    assert finals == [(0, top), (1, top), (0, lower), (1, lower)]
    assert [r.seed for r in outcome.runs] == [0, 1]
    assert outcome.trials == calm.trials  # the retreat is no part of the search
    again = Unstable(run.bad)
    conducting.conduct(plan, Ledger(tmp_path / "edge" / "runs"), ["ours"], run=again, say=lambda line: None)
    assert not again.ran
    (line,) = table.lines([outcome])
    assert (line.rate, line.given_up, line.diverged) == (lower, {top: 1}, 0)
    assert f"| {lower:g} ({top:g}: 1 failed) |" in table.markdown(plan, [outcome], "x", "abc", [])


def quadratic(rate: float, folder: Path) -> tuple[RunConfig, Ran]:
    """Nine rounds of gradient descent on a quadratic: above some rate every one of them makes it worse."""
    values = {"task": "quadratic", "method": "uncompressed", "rounds": 9, "schedule": "constant", "lr": rate}
    config = make_config(values)
    return config, ran.from_folder(runner.start(config, folder), "a row", {})


def test_harm_is_a_worse_metric_and_a_higher_loss(tmp_path: Path) -> None:
    (config, good), (_, bad) = quadratic(0.1, tmp_path / "good"), quadratic(2.3, tmp_path / "bad")
    task, _ = runner.rebuild(tmp_path / "good")
    before = untrained.measured(config, tmp_path / "deep" / "out")
    assert before == task.evaluate(task.theta0())
    assert untrained.known(config, tmp_path / "deep" / "out") == before
    assert (untrained.harmed(good, before), untrained.harmed(bad, before)) == (False, True)
    assert not untrained.harmed(bad, {})  # what is not known does not count
    assert not untrained.harmed(bad, before | {"loss": math.inf})  # no higher loss: luck
    lucky = msgspec.structs.replace(bad, curve={9: bad.last | {"excess": 0.0}})
    assert not untrained.harmed(lucky, before)  # no worse metric


def test_the_untrained_model_is_measured_once_for_what_decides_it(tmp_path: Path) -> None:
    config, _ = quadratic(0.1, tmp_path / "run")
    untrained.measured(config, tmp_path)
    (file,) = tmp_path.glob("untrained-*.json")
    file.write_text('{"excess": 5.0}')
    other = config.model_copy(update={"lr": 7.0, "method": "static", "rounds": 2})
    assert untrained.measured(other, tmp_path) == {"excess": 5.0}  # not measured again
    file.write_text("{")
    assert untrained.known(config, tmp_path) == {}
    assert "loss" in untrained.measured(config, tmp_path)
    untrained.measured(config.model_copy(update={"seed": 3}), tmp_path)
    assert len([*tmp_path.glob("untrained-*.json")]) == 2


class Ruinous(Counting):
    """Final runs at the highest rates come to their end, but the model was better before."""

    def __init__(self, top: float) -> None:
        super().__init__()
        self.top = top

    def __call__(self, config: RunConfig, folder: Path) -> None:
        super().__call__(config, folder)
        if not config.validation and config.lr >= self.top:
            *early, last = records.read(folder / "records.jsonl")
            ruined = msgspec.structs.replace(last, metrics={"accuracy": 0.0, "loss": 99.0})
            (folder / "records.jsonl").write_bytes(b"".join(map(records.to_line, [*early, ruined])))


def test_a_run_that_ends_worse_than_it_began_is_no_result(tmp_path: Path) -> None:
    _, _, calm = unstable(tmp_path / "calm", lambda seed, rate: False)
    assert calm.tuned is not None
    plan, run, said = tiny(tmp_path), Ruinous(calm.tuned), list[str]()
    assert not conducting.conduct(plan, Ledger(tmp_path / "runs"), ["ours"], run=run, say=said.append)
    (outcome,), _ = collected(plan, tmp_path / "runs")
    lower = plan.grid(plan.rows[0]).below(calm.tuned)
    assert (outcome.rate, outcome.diverged) == (lower, {calm.tuned: 2})
    assert sum("worse than untrained" in line for line in said) == 2
    page = table.markdown(plan, [outcome], "x", "abc", [])
    mean = statistics.mean(outcome.untrained[seed]["accuracy"] for seed in plan.seeds)
    assert 0 < mean < 0.5
    assert f"Untrained: {mean:.4f}, mean over the seeds." in page
    assert "Untrained" not in table.markdown(plan, [replace(outcome, untrained={})], "x", "abc", [])


def test_at_the_end_of_a_retreat_a_run_stands_as_it_is(tmp_path: Path) -> None:
    """Worse than untrained at every rate that may be tried is a result, and a poor one."""
    plan, run = tiny(tmp_path), Ruinous(0.0)
    assert not conducting.conduct(plan, Ledger(tmp_path / "runs"), ["ours"], run=run, say=lambda line: None)
    (outcome,), _ = collected(plan, tmp_path / "runs")
    assert len(outcome.diverged) == study.Tuning().retreats
    assert outcome.rate not in outcome.diverged
    assert [r.value for r in outcome.runs] == [0.0, 0.0]


def test_a_study_may_forbid_to_retreat(tmp_path: Path) -> None:
    plan, run = tiny(tmp_path), Ruinous(0.0)
    assert plan.tuning is not None
    plan = replace(plan, tuning=msgspec.structs.replace(plan.tuning, retreats=0))
    assert not conducting.conduct(plan, Ledger(tmp_path / "runs"), ["ours"], run=run, say=lambda line: None)
    (outcome,), _ = collected(plan, tmp_path / "runs")
    assert (outcome.rate, outcome.diverged) == (outcome.tuned, {})
    assert len([c for c in run.ran if not c.validation]) == 2


def test_a_retreat_ends_after_three_steps_and_says_what_still_diverged(tmp_path: Path) -> None:
    plan, run, outcome = unstable(tmp_path, lambda seed, rate: seed == 0)
    grid = plan.grid(plan.rows[0])
    assert outcome.tuned is not None
    rates = [outcome.tuned]
    for _ in range(study.Tuning().retreats):
        rates.append(grid.below(rates[-1]))
    assert list(outcome.diverged.items()) == [(rate, 1) for rate in rates]
    assert outcome.rate == rates[-1]
    assert len([c for c in run.ran if not c.validation]) == 2 * (1 + study.Tuning().retreats)
    (line,) = table.lines([outcome])
    assert (line.diverged, line.given_up, len(line.values)) == (1, dict.fromkeys(rates[:-1], 1), 1)


def test_a_rate_that_diverged_in_the_tuning_is_passed_over(tmp_path: Path) -> None:
    plan = tiny(tmp_path)
    row = plan.rows[0]
    grid = plan.grid(row)
    trials = {grid.rate(1): 0.9, grid.rate(0): math.nan, grid.rate(-1): 0.5}
    assert study.lower(grid, grid.rate(1), trials) == grid.rate(-1)
    assert study.lower(grid, grid.rate(-1), trials) == grid.rate(-2)  # nobody tried it
