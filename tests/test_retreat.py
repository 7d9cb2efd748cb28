"""A rate on the edge of stability: all seeds run again at the next lower one, and the table says so."""

import math
import statistics
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import msgspec

from narrowcast import runner, study
from narrowcast.config import RunConfig, make_config
from narrowcast.methods import Diverged
from narrowcast.report import study_table, table
from narrowcast.report.summary import Summary, summarise
from narrowcast.study import Study
from test_study import Counting, tiny


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
    assert not study.conduct(plan, folder / "runs", ["ours"], run=run, say=lambda line: None)
    (outcome,), _ = study.collect(plan, folder / "runs")
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
    assert [r.facts.seed for r in outcome.runs] == [0, 1]
    assert outcome.trials == calm.trials  # the retreat is no part of the search
    again = Unstable(run.bad)
    study.conduct(plan, tmp_path / "edge" / "runs", ["ours"], run=again, say=lambda line: None)
    assert not again.ran
    (line,) = study_table.lines([outcome])
    assert (line.rate, line.given_up, line.diverged) == (lower, {top: 1}, 0)
    assert f"| {lower:g} ({top:g}: 1 failed) |" in study_table.markdown(plan, [outcome], "x", "abc", [])


def quadratic(rate: float, folder: Path) -> Summary:
    """Nine rounds of gradient descent on a quadratic: above some rate every one of them makes it worse."""
    values = {"task": "quadratic", "method": "uncompressed", "rounds": 9, "schedule": "constant", "lr": rate}
    return summarise(runner.start(make_config(values), folder))


def test_a_run_knows_the_metric_it_began_with(tmp_path: Path) -> None:
    good, bad = quadratic(0.1, tmp_path / "good"), quadratic(3.0, tmp_path / "bad")
    task, _ = runner.rebuild(good.folder)
    assert good.facts.untrained == bad.facts.untrained == task.evaluate(task.theta0())[task.metric]
    assert runner.load_facts(good.folder) == good.facts
    assert (good.worse_than_untrained, bad.worse_than_untrained) == (False, True)
    old = msgspec.structs.replace(bad.facts, untrained=None)  # a run from before it was measured
    assert not replace(bad, facts=old).worse_than_untrained


class Ruinous(Counting):
    """Final runs at the highest rates come to their end, but the model was better before."""

    def __init__(self, top: float) -> None:
        super().__init__()
        self.top = top

    def __call__(self, config: RunConfig, folder: Path) -> None:
        super().__call__(config, folder)
        if not config.validation and config.lr >= self.top:
            facts = msgspec.structs.replace(runner.load_facts(folder), untrained=1.0)
            (folder / "facts.json").write_bytes(msgspec.json.encode(facts))


def test_a_run_that_ends_worse_than_it_began_is_no_result(tmp_path: Path) -> None:
    _, _, calm = unstable(tmp_path / "calm", lambda seed, rate: False)
    assert calm.tuned is not None
    plan, run, said = tiny(tmp_path), Ruinous(calm.tuned), list[str]()
    assert not study.conduct(plan, tmp_path / "runs", ["ours"], run=run, say=said.append)
    (outcome,), _ = study.collect(plan, tmp_path / "runs")
    lower = plan.grid(plan.rows[0]).below(calm.tuned)
    assert (outcome.rate, outcome.diverged) == (lower, {calm.tuned: 2})
    assert all(r.facts.untrained is not None and r.facts.untrained < 0.5 for r in outcome.runs)
    assert sum("worse than untrained" in line for line in said) == 2
    page = study_table.markdown(plan, [outcome], "x", "abc", [])
    mean = statistics.mean(r.facts.untrained or 0.0 for r in outcome.runs)
    assert f"Untrained: {mean:.4f}, mean over the seeds." in page


def test_at_the_end_of_a_retreat_a_run_stands_as_it_is(tmp_path: Path) -> None:
    """Worse than untrained at every rate that may be tried is a result, and a poor one."""
    plan, run = tiny(tmp_path), Ruinous(0.0)
    assert not study.conduct(plan, tmp_path / "runs", ["ours"], run=run, say=lambda line: None)
    (outcome,), _ = study.collect(plan, tmp_path / "runs")
    assert len(outcome.diverged) == study.RETREATS
    assert outcome.rate not in outcome.diverged
    assert len(outcome.runs) == 2
    assert all(r.worse_than_untrained for r in outcome.runs)


def test_a_retreat_ends_after_three_steps_and_says_what_still_diverged(tmp_path: Path) -> None:
    plan, run, outcome = unstable(tmp_path, lambda seed, rate: seed == 0)
    grid = plan.grid(plan.rows[0])
    assert outcome.tuned is not None
    rates = [outcome.tuned]
    for _ in range(study.RETREATS):
        rates.append(grid.below(rates[-1]))
    assert list(outcome.diverged.items()) == [(rate, 1) for rate in rates]
    assert outcome.rate == rates[-1]
    assert len([c for c in run.ran if not c.validation]) == 2 * (1 + study.RETREATS)
    (line,) = study_table.lines([outcome])
    assert (line.diverged, line.given_up, len(line.values)) == (1, dict.fromkeys(rates[:-1], 1), 1)


def test_a_rate_that_diverged_in_the_tuning_is_passed_over(tmp_path: Path) -> None:
    plan = tiny(tmp_path)
    row = plan.rows[0]
    grid = plan.grid(row)
    trials = {grid.rate(1): 0.9, grid.rate(0): math.nan, grid.rate(-1): 0.5}
    assert study.lower(grid, grid.rate(1), trials) == grid.rate(-1)
    assert study.lower(grid, grid.rate(-1), trials) == grid.rate(-2)  # nobody tried it


def test_the_table_of_runs_says_where_they_began(tmp_path: Path) -> None:
    good, bad = quadratic(0.1, tmp_path / "good"), quadratic(3.0, tmp_path / "bad")
    assert good.facts.untrained is not None
    assert f"untrained: {good.facts.untrained:.4f};" in table.caption([good, bad])
    other = replace(bad, facts=msgspec.structs.replace(bad.facts, untrained=2.0))  # another seed, say
    assert "untrained" not in table.caption([good, other])
