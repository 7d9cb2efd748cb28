"""EF21: the server's estimate is the mean of the clients', and only corrections are sent."""

import msgspec
import numpy as np
import pytest
import torch

from naive import MODULES, toy
from naive.ef21 import ef21
from naive.runs import KEY, N, W, assert_same, rounds, trained
from narrowcast.errors import ConfigError
from narrowcast.methods import RoundInfo, method
from narrowcast.numerics.flat import Layout
from narrowcast.rounds.plan import Plan
from narrowcast.rounds.simulator import Simulation
from narrowcast.rounds.task import Task
from narrowcast.wire import messages as wire
from narrowcast.wire.codes import sparse
from narrowcast.wire.messages import WireError

D, K = 40, 5
LAYOUT = Layout(("w",), ((D,),))


def made(**options):
    return method("ef21", **{"clients": N, "k": K} | options)


def vector(seed=1):
    return torch.randn(D, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("kind", MODULES)
def test_it_trains_like_its_twin(kind):
    run, theta_0, theta, gradient = trained(made(k=9), kind, 0.2)
    assert_same(theta, ef21(theta_0, N, 9, rounds(), gradient, 0.2), theta_0)
    assert len(run.store) == N


@pytest.mark.parametrize("uplink", ["f32", "f16", "int8"])
def test_the_servers_estimate_is_the_mean_of_the_clients(uplink):
    task, _ = toy("mlp", N)
    run = Simulation(task, made(uplink=uplink), Plan(cohort=W, lr=0.2, epochs=3, key=KEY))
    for _ in run:
        theirs = [run.store.get(c) for c in range(N)]
        total = sum(private["estimate"].double() for private in theirs if private is not None)
        torch.testing.assert_close(run.server.estimate.double(), total / N, rtol=0, atol=1e-6)
    assert run.server.estimate.abs().max() > 1e-3


def test_an_estimate_takes_the_k_largest_corrections():
    m, v = made(), vector()
    model = m.newcomer(v, LAYOUT)
    private, _ = m.compress(None, v, model, 0)
    for visit in range(2, 11):
        before = private["estimate"].clone()
        previous, (private, up) = private, m.compress(private, v, model, 0)
        assert torch.equal(previous["estimate"], before)  # the old state is left alone
        where, values = sparse.read(*up.blocks, D, K)
        left = (v - before).abs()
        assert left[where].min() >= left.sort().values[-K]
        if visit <= D // K:
            torch.testing.assert_close(values, v[where])
    torch.testing.assert_close(private["estimate"], v, rtol=0, atol=1e-6)


def test_all_coordinates_of_all_clients_are_no_compression():
    task, _ = toy("logistic", N)
    plan = Plan(cohort=N, lr=0.3, rounds=10, key=KEY)
    one, other = Simulation(task, made(k=1000), plan), Simulation(task, method("uncompressed"), plan)
    assert len(list(one)) == len(list(other))
    way = torch.linalg.norm(other.theta - task.theta0())
    assert torch.linalg.norm(one.theta - other.theta) < 5e-6 * way


def test_a_lost_estimate_begins_anew_and_its_old_share_stays():
    m, v = made(k=D), vector()
    model, server = m.newcomer(v, LAYOUT), m.server(torch.zeros(D), LAYOUT)
    for share in (1, 2):  # the same client, which has lost its state
        acc = m.add(m.zero(server), m.compress(None, v, model, 0)[1], 1.0)
        server = m.step(server, acc, RoundInfo(0, 0, False, 0.1))
        torch.testing.assert_close(server.estimate, v * share / N)


def test_who_does_not_come_keeps_its_say():
    """Two of three clients come: g takes a third of the sum of what they correct, whatever their weights."""
    m = made(clients=3, k=D)
    model, server = m.newcomer(vector(), LAYOUT), m.server(torch.zeros(D), LAYOUT)
    acc = m.zero(server)
    for seed in (1, 2):
        acc = m.add(acc, m.compress(None, vector(seed), model, 0)[1], 7.0)
    server = m.step(server, acc, RoundInfo(0, 0, False, 0.5))
    torch.testing.assert_close(server.estimate, (vector(1) + vector(2)) / 3)
    torch.testing.assert_close(server.weights, -0.5 * server.estimate)


class Constant(Task):
    """Client c's gradient is `targets[c]`, wherever theta is; clients have 1, 2, 3, ... examples."""

    name, metric, higher_is_better = "constant", "loss", False

    def __init__(self, targets):
        self.layout, self.targets = LAYOUT, targets
        ends = np.cumsum(np.arange(len(targets)) + 1)
        self.clients = [np.arange(end - c - 1, end) for c, end in enumerate(ends)]
        self.owner = np.repeat(np.arange(len(targets)), np.arange(len(targets)) + 1)

    def theta0(self):
        return torch.zeros(D)

    def buffer(self):
        return torch.empty(D)

    def gradient(self, theta, batch):
        return 0.0, batch.weight @ self.targets[self.owner[batch.index]]

    def evaluate(self, theta):
        return {"loss": 0.0}


def test_under_constant_gradients_the_estimate_becomes_their_mean_whoever_comes():
    targets = torch.stack([vector(seed) for seed in range(N)])
    plan = Plan(cohort=W, lr=0.1, epochs=40, participation=0.5, key=KEY)
    run = Simulation(Constant(targets), made(), plan)
    assert all(record.clients < N for record in run)
    torch.testing.assert_close(run.server.estimate, targets.mean(0), rtol=1e-4, atol=1e-5)


def test_a_mean_by_examples_over_those_who_come_is_refused():
    """It was off by more than itself: the corrections of a round were weighed against each other alone."""
    plan = Plan(cohort=W, lr=0.1, epochs=40, participation=0.5, key=KEY, weighting="examples")
    with pytest.raises(ConfigError, match="--weighting examples: ef21 takes the mean over all clients"):
        Simulation(Constant(torch.zeros(N, D)), made(), plan)


def test_a_run_must_know_how_many_clients_there_are():
    """With one client as the default, all steps were N times too long."""
    plan = Plan(cohort=W, lr=0.1, epochs=1, key=KEY)
    with pytest.raises(ConfigError, match=f"not told how many there are: .*clients={N}"):
        Simulation(Constant(torch.zeros(N, D)), method("ef21", k=K), plan)
    with pytest.raises(ValueError, match="clients must be at least 1, got 0"):
        made(clients=0)


def test_hostile_uploads_are_refused():
    m = made()
    acc = m.zero(m.server(torch.zeros(D), LAYOUT))
    up = m.compress(None, vector(), m.newcomer(vector(), LAYOUT), 7)[1]
    where, values = up.blocks
    ones = torch.ones(K)
    for bad in (ones[1:], torch.ones(K + 1), ones / 0, ones * 3e38, ones * 1e19):
        with pytest.raises(WireError):
            m.add(acc, msgspec.structs.replace(up, blocks=[where, wire.block(bad)]), 1.0)
    few = sparse.positions(torch.arange(K - 1), D)
    for blocks in (
        [where], [values, where], [where, values, values], [few, wire.block(ones[1:])],
        [wire.raw(b""), values], [wire.raw(b"\0\x80\0"), values], [wire.raw(b"\1" + b"\xff" * 5), values],
    ):  # fmt: skip
        with pytest.raises(WireError):
            m.add(acc, msgspec.structs.replace(up, blocks=blocks), 1.0)
    with pytest.raises(WireError):
        m.add(acc, msgspec.structs.replace(up, kind=1), 1.0)
    assert not acc.total.any()
    assert np.isclose(m.add(acc, up, 1.0).total.abs().sum(), vector().abs().sort().values[-K:].sum())
    with pytest.raises(ValueError, match="clients"):
        made(clients=0)


@pytest.mark.parametrize(("trial", "run"), [(1, 2), (2, 4), (3, 9), (4, 9)])
def test_a_step_grows_over_the_first_epoch_by_what_it_says_of_rates(trial, run):
    """Clients alike whose gradient stays: |g| after t rounds of an epoch of four is t / 4 of it, then all."""
    m, v, lengths = made(clients=8, k=D), vector(), []
    server, model, private = m.server(torch.zeros(D), LAYOUT), m.newcomer(vector(), LAYOUT), {}
    for t in range(run):
        acc = m.zero(server)
        for client in (2 * t % 8, 2 * t % 8 + 1):
            private[client], up = m.compress(private.get(client), v, model, 0)
            acc = m.add(acc, up, 1.0)
        server = m.step(server, acc, RoundInfo(t, t // 4, t % 4 == 3, 0.1))
        lengths.append(float(server.estimate.norm()))
    assert lengths[-1] / lengths[trial - 1] == pytest.approx(m.slower(trial, run, 4), rel=1e-5)
    assert m.slower(4, 9, 4) == 1.0
