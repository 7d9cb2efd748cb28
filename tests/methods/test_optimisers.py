"""The server's optimisers are torch's, step for step, and the rate's schedule is piecewise linear."""

from itertools import pairwise

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from narrowcast.methods.optimisers import OPTIMISERS, SGD, Adam, Momentum
from narrowcast.rounds.schedules import factor as schedule

TWINS = {
    "sgd": (SGD(), lambda p: torch.optim.SGD(p, 1.0)),
    "momentum": (Momentum(0.8), lambda p: torch.optim.SGD(p, 1.0, momentum=0.8)),
    "adam": (Adam(0.8, 0.95, 1e-3), lambda p: torch.optim.Adam(p, 1.0, (0.8, 0.95), 1e-3)),
}


@pytest.mark.parametrize("name", OPTIMISERS)
def test_fifty_steps_are_those_of_torch(name):
    """In float64, at rates that change and gradients of many sizes (one coordinate never moves)."""
    ours, theirs = TWINS[name]
    start = torch.randn(3, 7, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    parameter = torch.nn.Parameter(start.clone())
    torch_optimiser = theirs([parameter])
    x, state = start.clone(), ours.init(start)
    for t in range(50):
        gradient = torch.sin(x * 3 + t) * torch.logspace(-6, 3, 21, dtype=torch.float64).view(3, 7)
        gradient[0, 0] = 0
        rate = 0.1 / (1 + t)
        state, step = ours.step(state, gradient, rate)
        x = x - step
        torch_optimiser.param_groups[0]["lr"] = rate
        parameter.grad = gradient.clone()
        torch_optimiser.step()
        torch.testing.assert_close(x, parameter.detach(), rtol=1e-12, atol=1e-12)
    assert x[0, 0] == start[0, 0]
    assert (x - start).abs().view(-1)[1:].min() > 0


@pytest.mark.parametrize("name", OPTIMISERS)
def test_a_step_leaves_the_state_it_was_given_as_it_was(name):
    optimiser = OPTIMISERS[name]()
    state, _ = optimiser.step(optimiser.init(torch.zeros(4)), torch.ones(4), 0.1)
    before = {key: value.clone() for key, value in state.items()}
    optimiser.step(state, torch.randn(4), 0.1)
    optimiser.carry(state, torch.neg)
    assert all(torch.equal(state[key], value) for key, value in before.items())


def test_what_is_carried_to_new_coordinates():
    """Momentum is moved like a vector; Adam's second moment becomes its mean, its count goes on."""

    def double(m):
        return 2 * m

    momentum, second, count = torch.tensor([1.0, 2.0]), torch.tensor([1.0, 5.0]), torch.tensor(9.0)
    assert SGD().carry({}, double) == {}
    assert torch.equal(Momentum().carry({"momentum": momentum}, double)["momentum"], 2 * momentum)
    new = Adam().carry({"momentum": momentum, "second": second, "count": count}, double)
    assert torch.equal(new["momentum"], 2 * momentum)
    assert torch.equal(new["second"], torch.tensor([3.0, 3.0]))
    assert new["count"] == 9


def test_what_is_carried_does_not_depend_on_torchs_threads():
    """Sums that are long enough to be split over them, some of which would round otherwise."""
    before = torch.get_num_threads()
    for seed in range(8):
        second = torch.rand(8, 16384, generator=torch.Generator().manual_seed(seed))
        state = {"momentum": second, "second": second, "count": torch.ones(())}
        carried = []
        for threads in (1, 2):
            torch.set_num_threads(threads)
            try:
                carried.append(Adam().carry(state, torch.neg)["second"])
                assert torch.get_num_threads() == threads
            finally:
                torch.set_num_threads(before)
        assert torch.equal(*carried), seed


@pytest.mark.parametrize(
    ("kind", "bad"),
    [
        (Momentum, {"beta": -3.0}), (Momentum, {"beta": 1.0}), (Momentum, {"beta": float("nan")}),
        (Adam, {"beta": 1.0}), (Adam, {"beta2": 1.0}), (Adam, {"beta2": -0.1}), (Adam, {"epsilon": 0.0}),
        (Adam, {"epsilon": float("nan")}),
    ],
    ids=str,
)  # fmt: skip
def test_what_ruins_every_step_is_refused(kind, bad):
    ((name, value),) = bad.items()
    with pytest.raises(ValueError, match=rf"^{name} must be .*, got {value}$"):
        kind(**bad)


PAPER = [(0.0, 0.0), (5.0, 1.0), (24.0, 0.0)]


@pytest.mark.parametrize(
    ("epoch", "factor"), [(-1, 0), (0, 0), (2.5, 0.5), (5, 1), (14.5, 0.5), (24, 0), (30, 0)]
)
def test_the_schedule_of_the_paper(epoch, factor):
    assert schedule(PAPER, epoch) == pytest.approx(factor)


@given(
    st.lists(st.tuples(st.integers(0, 100), st.floats(0, 10)), min_size=2, unique_by=lambda knot: knot[0]),
    st.floats(0, 1),
)
def test_between_two_knots_the_schedule_is_the_straight_line(knots, part):
    knots = sorted((float(e), f) for e, f in knots)
    for (e0, f0), (e1, f1) in pairwise(knots):
        expected = (1 - part) * f0 + part * f1
        assert np.isclose(schedule(knots, (1 - part) * e0 + part * e1), expected, rtol=1e-9, atol=1e-9)
    assert schedule(knots, knots[0][0] - 1) == knots[0][1]
    assert schedule(knots, knots[-1][0] + 1) == knots[-1][1]


def test_one_knot_is_a_constant():
    assert {schedule([(0.0, 0.7)], epoch) for epoch in (0, 0.5, 99)} == {0.7}
