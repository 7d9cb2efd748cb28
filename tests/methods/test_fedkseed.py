"""FedKSeed trains like a dense Z with true slopes; its directions are the same bits for any threads."""

import numpy as np
import pytest
import torch

from naive import MODULES, toy
from naive import fedkseed as naive
from narrowcast.errors import ConfigError, Diverged
from narrowcast.methods import RoundInfo
from narrowcast.methods.fedkseed import MAX_STEPS, FedKSeed, Seeds
from narrowcast.numerics import pool
from narrowcast.numerics.keyed import Purpose, derive
from narrowcast.rounds import exchange
from narrowcast.rounds.exchange import Round
from narrowcast.rounds.local import Local, client_updates
from narrowcast.rounds.plan import Plan
from narrowcast.rounds.sampling import Cohorts
from narrowcast.rounds.simulator import Simulation
from narrowcast.testing import toy_task
from narrowcast.wire import messages as wire
from narrowcast.wire.messages import WireError

KEY, E, N, W, K = 11, 4, 12, 5, 13
SIZES = [1, 127, 128, 129, 4095, 4096, 4097, 9000]


def dense(key, D, count):
    """Z (D, K), from the method's own kernel, a direction at a time."""
    return torch.stack([Seeds(key, count).expand(torch.zeros(D), s) for s in torch.eye(count)], 1)


def which(key, step, count):
    """The direction of a client's step, by the rule: Philox of the low 32 bits of its key."""
    return derive(key & 0xFFFFFFFF, Purpose.SUBSPACE, step) % count


# The directions.


@pytest.mark.parametrize("D", [1, 130, 4200])
def test_the_directions_are_the_bits_they_should_be(D):
    assert np.array_equal(dense(KEY, D, 3).numpy(), naive.directions(KEY, D, 3))


def test_signs_are_fair_and_directions_differ():
    Z = dense(KEY, 9000, 40).double()
    alike = Z.T @ Z / 9000 - torch.eye(40)
    assert alike.abs().max() < 5 / 9000**0.5
    assert Z.mean(0).abs().max() < 5 / 9000**0.5
    assert Z.mean(1).abs().mean() < 0.2


@pytest.mark.parametrize("D", SIZES)
@pytest.mark.parametrize("count", [1, 4, 7])
def test_theta_is_summed_in_the_order_of_the_directions(D, count):
    """Bit for bit: base + ((s_0 z_0 + s_1 z_1) + ...), every addition rounded to float32."""
    noise = torch.Generator().manual_seed(D)
    base, s = torch.randn(D, generator=noise), torch.randn(count, generator=noise)
    Z, total = dense(KEY, D, count), torch.zeros(D)
    for j in range(count):
        total = total + Z[:, j] * s[j]
    found = Seeds(KEY, count).expand(base, s)
    assert torch.equal(found, base + total)


@pytest.mark.parametrize("threads", [2, 3, 7])
def test_any_number_of_threads_gives_the_same_bits(threads):
    D, seeds, s = 50_001, Seeds(KEY, 9), torch.randn(9)
    base = torch.randn(D)
    results = []
    for count in (1, threads):
        pool.set_threads(count)
        theta = seeds.expand(base, s)
        seeds.add(theta, 5, 2, 0.3)
        results.append(theta)
    assert torch.equal(*results)


@pytest.mark.parametrize("D", SIZES)
def test_a_probe_goes_along_the_direction_of_its_step(D):
    seeds, Z, key = Seeds(KEY, K), dense(KEY, D, K), derive(3, Purpose.ROUTE)
    for step in range(4):
        theta = torch.zeros(D)
        seeds.add(theta, key, step, 0.25)
        assert torch.equal(theta, Z[:, which(key, step, K)] * 0.25)


# The method.


@pytest.mark.parametrize("kind", MODULES)
@pytest.mark.parametrize("steps", [1, 4])
def test_the_slopes_are_those_of_the_gradient(kind, steps):
    task, gradient = toy(kind, N)
    m, theta, rate = FedKSeed(key=5, directions=K), task.theta0(), 0.01
    Z = naive.directions(derive(5, Purpose.SUBSPACE), theta.numel(), K)
    group = [(c, derive(1, Purpose.ROUTE, 0, c)) for c in range(N)]
    local = Local(steps, rate=rate, probes=m.probes)
    for (c, key), (_, v) in zip(group, client_updates(task, theta, group, local, 0), strict=True):
        here = theta.double().numpy()
        assert v.shape == (steps,)
        for step in range(steps):
            z = Z[:, which(key, step, K)]
            slope = z @ gradient(here, c)
            assert v[step] == pytest.approx(slope, rel=2e-3, abs=2e-3)
            here = here - rate * slope * z


@pytest.mark.parametrize("kind", MODULES)
@pytest.mark.parametrize("steps", [1, 4])
def test_it_trains_like_the_twin(kind, steps):
    """Two losses in float32 err by about 2^-24 / epsilon in a slope, hence the tolerance."""
    task, gradient = toy(kind, N)
    eta = 0.4 / task.layout.size
    m = FedKSeed(key=5, directions=K, epsilon=5e-3)
    run = Simulation(task, m, Plan(cohort=W, lr=eta, epochs=E, key=KEY, local_steps=steps))
    list(run)
    cohorts = Cohorts(N, W, KEY)
    rounds = [(t, cohorts.come(t).tolist()) for t in range(E * cohorts.rounds_per_epoch)]
    theta_0 = task.theta0().double().numpy()
    Z = naive.directions(derive(5, Purpose.SUBSPACE), len(theta_0), K)

    def probe(t, c, i):
        return which(derive(KEY, Purpose.ROUTE, t, c), i, K)

    twin = naive.fedkseed(theta_0, Z, rounds, gradient, probe, steps, eta)
    way = np.linalg.norm(twin - theta_0)
    assert way > 0.05
    assert np.linalg.norm(run.theta.double().numpy() - twin) < 2e-3 * way


def test_the_estimate_is_unbiased_with_the_variance_it_should_have():
    """E[(1/n) sum z z^T g] = g over keys; a coordinate's variance is about |g|^2 / n."""
    D, steps, runs = 12, 3, 600
    g, found = torch.linspace(-1, 2, D), []
    for run in range(runs):
        m, key = FedKSeed(key=derive(run, Purpose.RUN), directions=64), derive(run, Purpose.ROUTE)
        server = m.server(torch.zeros(D), None)
        z = torch.zeros(steps, D)
        for step in range(steps):
            m.probes.add(z[step], key, step, 1.0)
        _, up = m.compress(None, (z * g).sum(1), m.newcomer(torch.zeros(D)), key)
        server = m.step(server, m.add(m.zero(server), up, 1.0), RoundInfo(0, 0, False, 1.0))
        found.append(-m.theta(server))  # after one step of rate 1 from nothing
    estimates = torch.stack(found)
    variance = (g.square().sum() - g.square()) / steps
    assert ((estimates.mean(0) - g).abs() < 5 * (variance / runs) ** 0.5).all()
    torch.testing.assert_close(estimates.var(0), variance, rtol=0.4, atol=0)


def payload(blocks, route=7, kind=0):
    return wire.payload(blocks, route=route, kind=kind)


def test_a_client_has_one_say_however_many_slopes_it_sends():
    m = FedKSeed(key=KEY, directions=1)
    server = m.server(torch.zeros(5), None)
    for steps in (1, 2, MAX_STEPS):
        acc = m.add(m.zero(server), payload([wire.block(torch.full((steps,), 2.0))]), 1.0)
        assert acc.total.item() == pytest.approx(2.0)


@pytest.mark.parametrize(
    "bad",
    [
        payload([wire.block(torch.zeros(0))]),
        payload([wire.block(torch.zeros(MAX_STEPS + 1))]),
        payload([wire.Block(0, bytes(6))]),
        payload([wire.block(torch.ones(4), "f16")]),
        payload([wire.block(torch.ones(4), "int8")]),
        payload([wire.raw(bytes(8))]),
        payload([wire.block(torch.tensor([1.0, np.nan]))]),
        payload([wire.block(torch.tensor([-np.inf]))]),
        payload([wire.block(torch.tensor([1e20]))]),
        payload([wire.block(torch.ones(2))], kind=1),
        payload([wire.block(torch.ones(2))] * 2),
        payload([]),
    ],
)
def test_a_hostile_upload_is_refused(bad):
    m = FedKSeed(key=KEY, directions=9)
    acc = m.zero(m.server(torch.zeros(5), None))
    with pytest.raises(WireError):
        m.add(acc, bad, 1.0)
    assert not acc.total.any()


def test_slopes_along_other_directions_than_the_clients_own_are_refused():
    m = FedKSeed(key=KEY, directions=9)
    server = m.server(torch.zeros(5), None)
    round = Round(bytes(8), KEY, 0, 0, bytes(8))
    _, up = m.compress(None, torch.ones(2), m.newcomer(torch.zeros(5)), round.client_key(1))
    data = exchange.seal(round, up, 1)
    exchange.receive_up(m, m.zero(server), data, round, 1, set())
    with pytest.raises(WireError, match="another route"):
        exchange.receive_up(m, m.zero(server), data, round, 2, set())


@pytest.mark.parametrize(
    "bad",
    [
        payload([wire.block(torch.zeros(8))]),
        payload([wire.block(torch.zeros(10))]),
        payload([wire.block(torch.zeros(9))] * 2),
        payload([wire.block(torch.zeros(9))], kind=1),
        payload([wire.block(torch.full((9,), np.nan))]),
        payload([]),
    ],
)
def test_a_hostile_download_is_refused(bad):
    m = FedKSeed(key=KEY, directions=9)
    with pytest.raises(WireError):
        m.reconcile(m.newcomer(torch.zeros(5)), bad, 1)


@pytest.mark.parametrize("shape", [(0,), (MAX_STEPS + 1,), (2, 2), ()])
def test_a_gradient_is_no_list_of_slopes(shape):
    with pytest.raises(ValueError, match="slopes"):
        FedKSeed().compress(None, torch.zeros(shape), FedKSeed().newcomer(torch.zeros(5)), 0)


def test_a_model_that_leaves_all_bounds_is_diverged():
    m = FedKSeed(key=KEY, directions=9)
    server = m.server(torch.zeros(5), None)
    acc = m.add(m.zero(server), payload([wire.block(torch.ones(3))]), 1.0)
    with pytest.raises(Diverged):
        m.step(server, acc, RoundInfo(0, 0, False, 1e30))


@pytest.mark.parametrize(
    "wrong", [{"directions": 0}, {"directions": 1 << 17}, {"epsilon": 0.0}, {"epsilon": 2.0}]
)
def test_settings_that_make_no_sense_are_refused(wrong):
    with pytest.raises(ValueError, match="got"):
        FedKSeed(**wrong)


def test_more_steps_than_an_upload_has_slopes_are_refused_before_the_first():
    task, method = toy_task(), FedKSeed()
    with pytest.raises(ConfigError, match=r"--local-steps 1025: a client of fedkseed .* at most 1024"):
        Simulation(task, method, Plan(cohort=2, lr=0.01, rounds=1, local_steps=1025))
    Simulation(task, method, Plan(cohort=2, lr=0.01, rounds=1, local_steps=1024))
