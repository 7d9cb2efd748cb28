"""Runs that blow up without a NaN are called diverged; whatever learned, or merely did not, is not."""

from __future__ import annotations

import math

import pytest
import torch

import narrowcast as nc
from narrowcast.errors import Diverged
from narrowcast.rounds import ends, rates
from narrowcast.rounds.ends import Ending
from narrowcast.runs import make_config, prepare

UNTRAINED = {"loss": 2.5, "accuracy": 0.12}
SMALL = {"task": "digits", "width": 16, "rounds": 20, "cohort": 20, "seed": 0}


def ruined(loss: float, accuracy: float, grown: bool = False) -> bool:
    after = {"loss": loss, "accuracy": accuracy}
    return bool(Ending(UNTRAINED, after, "accuracy", True, grown).ruined)


@pytest.mark.parametrize(
    ("loss", "accuracy", "grown", "bad"),
    [
        (1e30, 0.17, False, True),  # beyond all bounds, whatever luck the metric had
        (40.0, 0.10, False, True),  # far above, and no better
        (40.0, 0.80, False, False),  # learned too surely
        (24.0, 0.10, False, False),  # nothing learned, some harm: a poor run, not nonsense
        (2.3026, 0.14, True, True),  # a dead net: a constant's loss, from weights without measure
        (2.3026, 0.14, False, False),  # a constant's loss from usual weights: nothing was learned
        (0.7, 0.8, True, False),  # large weights that do their work
    ],
)
def test_what_is_nonsense(loss: float, accuracy: float, grown: bool, bad: bool) -> None:
    assert ruined(loss, accuracy, grown) is bad


def test_without_a_loss_or_from_a_perfect_start_nothing_is_said() -> None:
    for before, after in (({}, {"loss": 1e30}), (UNTRAINED, {}), ({"loss": 0.0}, {"loss": 1.0})):
        assert not Ending(before, after, "accuracy", True, True).ruined
    falling = {"before": {"perplexity": 30.0, "loss": 3.4}, "metric": "perplexity", "higher_is_better": False}
    assert not Ending(after={"perplexity": 20.0, "loss": 40.0}, grown=False, **falling).ruined  # type: ignore
    assert Ending(after={"perplexity": 1e9, "loss": 40.0}, grown=False, **falling).ruined  # type: ignore


def test_weights_grow_by_their_root_mean_square() -> None:
    ones = torch.ones(400)
    assert not ends.grown(9e3 * ones, torch.zeros(400))
    assert ends.grown(2e4 * ones, torch.zeros(400))
    assert not ends.grown(2e4 * ones, 10 * ones)
    assert not ends.grown(torch.zeros(0), torch.zeros(0))


class OnApple(torch.Tensor):
    """What a tensor on such a device refuses."""

    @property
    def device(self) -> torch.device:  # type: ignore[override]
        return torch.device("mps")

    def norm(self) -> torch.Tensor:  # type: ignore[override]
        return torch.linalg.vector_norm(self.as_subclass(torch.Tensor))  # torch warns of a subclass's

    def double(self) -> torch.Tensor:
        raise TypeError("the MPS framework doesn't support float64")


def test_a_device_without_float64_can_be_judged_too() -> None:
    ones = torch.ones(400).as_subclass(OnApple)
    assert ends.grown(2e4 * ones, ones)
    assert not ends.grown(9e3 * ones, ones)
    assert rates._distance(3 * ones, ones) == pytest.approx(40.0)


@pytest.mark.parametrize(("method", "lr"), [("signsgd", 1e9), ("fedkseed", 1.0), ("narrow", 20.0)])
def test_a_run_that_ends_in_finite_nonsense_has_diverged(method: str, lr: float) -> None:
    run = prepare(make_config({**SMALL, "method": method, "lr": lr, "dim": 64}))
    with pytest.raises(Diverged, match="lower --lr"):
        list(run.simulation())


@pytest.mark.parametrize(("method", "lr"), [("uncompressed", 1e-6), ("uncompressed", 0.3), ("signsgd", 0.03)])
def test_a_poor_run_is_a_run(method: str, lr: float) -> None:
    run = prepare(make_config({**SMALL, "method": method, "lr": lr}))
    *_, last = run.simulation()
    assert math.isfinite(last.metrics["loss"])


def test_a_suspect_that_is_none_keeps_what_it_learned() -> None:
    """Weights that must be large: theta0 is measured, nothing is said, the model holds the trained ones."""
    torch.manual_seed(0)
    x = torch.randn(80, 3)
    y = x @ torch.tensor([[3e4], [-5e4], [1e5]])
    model = torch.nn.Linear(3, 1)
    task = nc.TorchTask(
        model, lambda out, y: (out - y).square().mean(1), train=(x, y), test=(x, y),
        clients=nc.iid(80, clients=8), metrics=lambda out, y: {}, metric="loss", higher_is_better=False,
    )  # fmt: skip
    run = nc.Simulation(task, nc.method("uncompressed"), nc.Plan(cohort=8, lr=0.2, rounds=60))
    *_, last = run
    assert ends.grown(run.theta, run.theta0)
    assert last.metrics["loss"] < 1.0
    assert torch.allclose(model.weight.detach(), torch.tensor([[3e4, -5e4, 1e5]]), rtol=1e-3)


def test_a_resumed_run_knows_how_it_began() -> None:
    run = prepare(make_config({**SMALL, "method": "signsgd", "lr": 1e9}))
    stopped, resumed = run.simulation(), run.simulation()
    for _ in range(19):
        stopped.step()
    resumed.restore(stopped.state())
    assert resumed.first == stopped.first is not None
    for training in (stopped, resumed):
        with pytest.raises(Diverged, match="before the first round"):
            training.step()
    old = stopped.state()
    del old["first"]  # of an older version
    resumed.restore(old)
    assert resumed.first is None
