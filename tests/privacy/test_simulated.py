"""A private run in the simulator: every client is clipped by itself, on every road, and every round steps."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import narrowcast as nc
from narrowcast.methods.optimisers import Adam
from narrowcast.privacy import noise
from narrowcast.privacy.clipping import Adaptive, Fixed
from narrowcast.privacy.mean import PrivateMean
from narrowcast.rounds import records
from narrowcast.rounds.records import HIDDEN, TOLD, RoundRecord
from narrowcast.rounds.simulator import Simulation
from narrowcast.rounds.task import Batch, IndexArray
from narrowcast.testing import toy_task

CLIP, COHORT = 0.05, 4


@pytest.fixture
def no_noise(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(noise, "discrete_gaussian", lambda s, shape, entropy: np.zeros(shape, np.int64))


def private(method: Any, clip: Fixed | None = None, **more: Any) -> Simulation:
    aggregate = PrivateMean(clip or Fixed(CLIP), noise=1.0, delta=1e-4)
    plan = nc.Plan(**{"cohort": COHORT, "lr": 1.0, "rounds": 3, "key": 1, "aggregate": aggregate, **more})
    return Simulation(toy_task(), method, plan)


def whole(index: IndexArray) -> Batch:
    return Batch(index, torch.full((len(index),), 1 / len(index)), key=0)


def clipped(vs: Iterable[Tensor]) -> list[Tensor]:
    return [v * min(1.0, CLIP / float(v.norm())) for v in vs]


@pytest.mark.usefixtures("no_noise")
@pytest.mark.parametrize("per_client", [False, True])
@pytest.mark.parametrize("participation", [1.0, 0.5])
def test_a_round_is_the_sum_of_clipped_gradients_over_the_expected_cohort(
    per_client: bool, participation: float
) -> None:
    """theta - lr / W sum_w clip(g_w), W as planned: the naive twin of a round without its noise."""
    run = private(nc.method("uncompressed"), per_client=per_client, participation=participation)
    task, theta = toy_task(), run.theta.clone()
    came = run.cohorts.come(0).tolist()
    gradients = [task.gradient(theta, whole(task.clients[client]))[1].clone() for client in came]
    assert sum(float(g.norm()) > CLIP for g in gradients) >= 1, "else clipping is not seen"
    run.step()
    expected = theta - sum(clipped(gradients), torch.zeros_like(theta)) / COHORT
    assert torch.allclose(run.theta, expected, atol=1e-6)
    assert len(came) == COHORT or participation < 1


@pytest.mark.usefixtures("no_noise")
@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("static", {"dim": 16}),
        ("time-varying", {"dim": 16}),
        ("k-subspace", {"dim": 16, "subspaces": 3}),
        ("static", {"dim": 16, "up_bits": 1.0}),
        ("static", {"dim": 16, "optimiser": Adam()}),
    ],
)
def test_no_road_and_no_method_lets_a_cohort_move_further_than_its_clips(
    name: str, options: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of W clients the sum is W C long at most, over all routes, whatever they were sent in."""
    totals = []
    truly = PrivateMean.total

    def spied(self: PrivateMean, *given: Any) -> Any:
        memory, acc = truly(self, *given)
        totals.append(acc)
        return memory, acc

    monkeypatch.setattr(PrivateMean, "total", spied)
    list(private(nc.method(name, key=1, **options), Fixed(1e-3)))
    assert len(totals) == 3
    for acc in totals:
        assert 0 < float(acc.total.norm()) <= COHORT * 1e-3 * (1 + 1e-5)
        assert acc.weight == acc.count == COHORT


def test_rounds_to_which_nobody_comes_step_too() -> None:
    """One client a round on average, by coins: a third of the rounds is empty."""
    run = private(nc.method("static", dim=8), Adaptive(), cohort=1, rounds=40, sampling="poisson", lr=0.01)
    before, empty = run.theta.clone(), 0
    for number in range(40):
        round, record = run.open()
        acc = run.collect(round, record)
        empty += record.clients == 0
        run.close(acc, record)
        assert run.server.version == number + 1
        assert record.clients == 0, "nor is it told"
        assert not torch.equal(run.theta, before)
        before = run.theta.clone()
    assert empty > 2


def test_the_noise_of_an_adaptive_bound_leaves_the_sum_more_of_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """What the bit takes is not the update's: both widths are those that come to sigma together."""
    widths = []
    monkeypatch.setattr(
        noise, "discrete_gaussian", lambda s, shape, entropy: (widths.append(s), np.zeros(shape, np.int64))[1]
    )
    private(nc.method("static", dim=8), Adaptive(), rounds=1).step()
    updates, bits = widths
    sigma_u, sigma_b = updates / noise.RADIUS, bits / (1 << 10)  # in sensitivities: a bound, half a bit
    assert sigma_u**-2 + sigma_b**-2 == pytest.approx(1.0, rel=1e-3)


def test_a_field_that_nobody_thought_of_is_hidden() -> None:
    assert TOLD | set(HIDDEN) == set(RoundRecord.__struct_fields__)
    full = RoundRecord(1, 0, 2, 0.5, 0.7, 3, 4, 5)
    for name in HIDDEN:
        setattr(full, name, {"late": 1} if isinstance(HIDDEN[name], dict) else 7)
    full.hide()
    assert records.to_line(full) == records.to_line(RoundRecord(1, 0, 2, 0.5, None, 0, 0, 0))


def test_cohorts_of_a_million_can_have_an_adaptive_bound() -> None:
    rule = Adaptive()
    for cohort in (10**6, 10**9):
        z, bit = rule.noise_of_updates(1.0, cohort), rule.noise_of_bits(1.0, cohort)
        assert z**-2 + (2 * bit) ** -2 == pytest.approx(1.0)
        assert rule.next(1.0, 0, 1.0, cohort, np.random.Generator(np.random.Philox(1)).bytes) > 0
