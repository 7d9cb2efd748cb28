"""`lr = auto`: trials find a rate that learns, and from there on it is a setting of the run."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

import narrowcast as nc
from narrowcast.errors import ConfigError, Diverged
from narrowcast.methods import METHODS
from narrowcast.rounds import rates
from narrowcast.runs import attempts, make_config, run_folder, runner
from narrowcast.runs.prepared import prepare

SMALL = {"task": "quadratic", "rounds": 12, "dim": 8, "directions": 16, "evaluate_every": 0}


def _config(method: str = "static", **changes: object):
    return make_config({**SMALL, "method": method, **changes})


@pytest.mark.parametrize("method", METHODS)
def test_every_method_is_given_a_rate_that_learns(method: str) -> None:
    """At the rate found, training ends with a lower loss than it began with, and far from diverging."""
    run = prepare(_config(method))
    found = run.find_rate()
    first, *_, last = run.with_rate(found.rate).simulation()
    assert math.isfinite(found.rate)
    assert found.rate > 0
    assert last.loss < first.loss


def test_the_search_is_deterministic_and_says_what_it_cost() -> None:
    one, two = (prepare(_config()).find_rate() for _ in range(2))
    assert (one.rate, one.trials, one.short, one.up) == (two.rate, two.trials, two.short, two.up)
    assert one.rounds == two.rounds == 1 + 8 * len(one.short) + 12 * len(one.trials)  # and the first step
    assert min(one.up, one.down) > 0


def test_the_rate_found_scales_with_the_loss() -> None:
    """A loss of c f has gradients of c g: the rate that is right for it is 1/c of the other."""

    class Scaled(nc.TorchTask):
        factor = 1.0

        def gradient(self, theta, batch):  # type: ignore[no-untyped-def]
            loss, gradient = super().gradient(theta, batch)
            return loss * self.factor, gradient.mul_(self.factor)

    def rate(factor: float) -> float:
        torch.manual_seed(0)
        x = torch.randn(60, 6)
        y = (x @ torch.randn(6, 3)).argmax(1)
        task = Scaled(torch.nn.Linear(6, 3), train=(x, y), test=(x, y), clients=nc.iid(60, clients=12))
        task.factor = factor
        method = nc.method("uncompressed")
        plan = nc.Plan(cohort=4, lr="auto", rounds=20)
        return rates.by_trials(plan, method, 12, lambda p: nc.Simulation(task, method, p)).rate

    assert rate(16.0) == pytest.approx(rate(1.0) / 16, rel=0.02)


@pytest.mark.parametrize("empty", [1, 6])
def test_rounds_without_a_client_before_the_first_step_leave_the_rate_as_it_was(empty: int) -> None:
    class Empty(nc.Simulation):
        """Nobody comes in the first rounds."""

        def collect(self, round, record):  # type: ignore[no-untyped-def]
            return self.nobody() if round.number < empty else super().collect(round, record)

    config = _config("uncompressed", clients=20, cohort=20)  # all come: every round has the same step
    run = prepare(config)
    there, later = (
        rates.first_step(run.plan, run.method, lambda plan, kind=kind: kind(run.task, run.method, plan))
        for kind in (nc.Simulation, Empty)
    )
    assert later.rounds == there.rounds + empty
    assert later.rate == pytest.approx(there.rate, rel=0.01)


def test_a_simulation_takes_auto() -> None:
    run = prepare(_config())
    chosen = nc.Simulation(run.task, run.method, replace(run.plan, lr="auto"))
    assert chosen.plan.lr == run.find_rate().rate
    assert chosen.round == 0  # the trials were others
    assert [r.loss for r in nc.simulate(run.task, run.method, replace(run.plan, lr="auto"))] == [
        r.loss for r in run.with_rate(run.find_rate().rate).simulation()
    ]


def test_a_lucky_trial_at_the_edge_is_not_trusted() -> None:
    """Scores of fedprox on digits, seed 2: 1.76 did best, and the run at 1.24 ended at 0.51."""
    scores = {0.22: -0.374, 0.439: -0.322, 0.878: -0.33, 1.76: -0.228, 3.51: -0.651}
    assert rates.safe(scores, 4.0) == pytest.approx(0.62, abs=0.01)
    assert rates.safe({1.0: -0.5, 2.0: -0.1, 4.0: -math.inf}, 4.0) == pytest.approx(math.sqrt(2))


def test_nothing_above_the_best_trial_is_trusted() -> None:
    """Scores of fedavg on digits, seed 0: the run at 0.933 ended at 0.85, the one at 0.467 at 0.95."""
    scores = {0.0826: -0.582, 0.331: -0.336, 0.66: -0.225, 1.32: -0.313, 2.64: -1.14}
    assert rates.safe(scores, 4.0) == pytest.approx(0.467, abs=0.001)
    flat = {1.0: -0.3, 2.0: -0.2, 4.0: -0.2, 8.0: -0.9}
    assert rates.safe(flat, 1.21) == pytest.approx(2.0 / 1.1)  # a little longer: a little less than the best
    assert rates.safe(flat, 1.0) == 2.0


@pytest.mark.parametrize("method", ["static", "topk", "powersgd", "ef21", "signsgd"])
def test_a_trial_as_long_as_the_run_is_the_run(method: str) -> None:
    """So that the best of them needs no margin: what it ended with is what the run ends with."""
    run = prepare(_config(method))
    found = run.find_rate()
    assert found.trials[f"{found.rate:g}"] == min(x for x in found.trials.values() if x is not None)
    losses = [record.loss for record in run.with_rate(found.rate).simulation()]
    assert found.trials[f"{found.rate:g}"] == pytest.approx(sum(losses[-3:]) / 3, rel=5e-3)  # three digits


@pytest.mark.parametrize("best", [0.1, 0.5, 1.0, 3.0, 40.0])
def test_climbing_ends_with_a_worse_rate_at_each_side_of_the_best(best: float) -> None:
    tried: list[float] = []

    def score(rate: float) -> float:
        tried.append(rate)
        return -abs(math.log(rate / best)) if rate < 8 * best else -math.inf

    scores = rates.climb(1.0, score, {})
    found = rates.best_rate(scores)
    assert max(found / best, best / found) <= math.sqrt(2) * 1.01
    assert min(scores) < found < max(scores)
    assert len(set(tried)) == len(tried) <= 9
    assert rates.climb(1.0, lambda rate: pytest.fail("known"), scores) == scores


def test_climbing_goes_down_where_all_diverge_and_ends() -> None:
    scores = rates.climb(1.0, lambda rate: -math.inf, {})
    assert len(scores) == rates.MOST
    assert max(scores) == 1.0


class Misleading:
    """Training whose rates above 0.5 do best for 30 rounds, and then blow up: error feedback comes back."""

    def __init__(self, plan: nc.Plan) -> None:
        self.plan, self.theta, self.rounds = plan, torch.ones(4), 0
        self.server = SimpleNamespace(version=0)

    def step(self) -> SimpleNamespace:
        self.rounds += 1
        self.server.version += 1
        rate = self.plan.rate
        self.theta = self.theta * (1 - rate)
        loss = 1 / rate if self.rounds <= 30 else abs(math.log(rate / 0.1))
        return SimpleNamespace(loss=loss if rate < 4 else math.nan, up=1, down=1)

    def typical(self, record: SimpleNamespace) -> float:
        return float(record.loss)


@pytest.mark.parametrize(("quick", "low", "high"), [(False, 0.07, 0.15), (True, 0.8, 4.0)])
def test_what_short_trials_cannot_see_long_ones_do(quick: bool, low: float, high: float) -> None:
    plan, method = nc.Plan(cohort=1, lr="auto", rounds=60), nc.method("uncompressed")
    found = rates.by_trials(plan, method, 1, Misleading, quick=quick)  # type: ignore[arg-type]
    assert low < found.rate < high


def test_a_method_says_how_its_rate_falls_with_the_length_of_a_run() -> None:
    """signSGD's as one over the root; no trial of a long run, nor the run itself, is left out of it."""
    assert nc.method("signsgd").slower(25, 100, 10) == 2.0
    assert nc.method("topk").slower(25, 100, 10) == 1.0
    plan = nc.Plan(cohort=1, lr="auto", rounds=4 * rates.LONG_TRIAL)
    one, two = (
        rates.by_trials(plan, nc.method(name), 1, Misleading).rate  # type: ignore[arg-type]
        for name in ("uncompressed", "signsgd")
    )
    assert two == pytest.approx(one / 2, rel=0.5)  # of other grids: the strides differ


@pytest.mark.parametrize("wrong", ["Auto", "", -1.0, 0.0, math.nan, math.inf])
def test_another_word_or_no_rate_is_refused(wrong: object) -> None:
    with pytest.raises(ValueError, match="positive number"):
        nc.Plan(cohort=1, lr=wrong, rounds=1)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match='--lr: must be a positive number or "auto"'):
        _config(lr=wrong)


def test_a_whole_number_that_is_no_float_is_refused() -> None:
    """A TOML file may write a one and four hundred zeros."""
    for name in ("lr", "dp-clip"):
        with pytest.raises(ConfigError, match=f"--{name}: must be a positive number"):
            _config(**{name.replace("-", "_"): 10**400})


def test_where_every_rate_diverges_it_is_said() -> None:
    class Broken(type(prepare(_config()).task)):  # type: ignore[misc]
        calls = 0

        def gradient(self, theta, batch):  # type: ignore[no-untyped-def]
            self.calls += 1
            loss, gradient = super().gradient(theta, batch)
            return (loss if self.calls == 1 else math.nan), gradient

    run = prepare(_config("uncompressed"))
    run.task.__class__ = Broken
    with pytest.raises(Diverged, match=r"every rate from .* diverged"):
        run.find_rate()


def test_a_run_records_its_rate_and_resumes_with_it(tmp_path: Path) -> None:
    """The folder has a number; going on does not search again, and the same configuration agrees with it."""
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    runner.start(_config("topk"), whole)
    left = [0]

    def stop() -> bool:
        left[0] += 1
        return left[0] == 5

    runner.start(_config("topk"), parts, until=stop)
    facts = run_folder.load_facts(parts)
    assert facts.search is not None
    assert run_folder.load_config(parts).lr == facts.search.rate
    runner.resume(parts)
    one, two = ([r.loss for r in runner.records.read(f / run_folder.RECORDS)] for f in (whole, parts))
    assert one == two
    assert (whole / run_folder.MODEL).read_bytes() == (parts / run_folder.MODEL).read_bytes()
    attempts.agree(_config("topk"), parts, "")
    with pytest.raises(ConfigError, match="other settings"):
        attempts.agree(_config("topk", lr=facts.search.rate * 2), parts, "")


def test_a_given_rate_is_not_searched(tmp_path: Path) -> None:
    runner.start(_config(lr=0.1), tmp_path / "run")
    assert run_folder.load_facts(tmp_path / "run").search is None
    with pytest.raises(ConfigError, match="other settings"):
        attempts.agree(_config(), tmp_path / "run", "")
