"""The fast path trains like the paper's algorithms written out with dense matrices in float64."""

import numpy as np
import pytest

from fitting import made
from naive import MODULES, toy
from naive.k_subspace import k_subspace
from naive.static import static
from naive.time_varying import time_varying
from narrowcast.numerics.keyed import Purpose, derive
from narrowcast.rounds.plan import Plan
from narrowcast.rounds.sampling import Cohorts
from narrowcast.rounds.simulator import Simulation
from narrowcast.subspaces import KINDS

E, N, W, d, K = 4, 12, 5, 8, 3  # the last round of an epoch has two clients
ETA, KEY = 0.3, 11

both_tasks = pytest.mark.parametrize("kind", MODULES)
both_conventions = pytest.mark.parametrize("unbiased", [True, False], ids=["paper", "orthonormal"])


def all_rounds():
    """(t, clients) of the run."""
    cohorts = Cohorts(N, W, KEY)
    return [(t, cohorts.come(t).tolist()) for t in range(E * cohorts.rounds_per_epoch)]


def epochs():
    """The same, epoch by epoch."""
    T = len(all_rounds()) // E
    return [all_rounds()[e * T : (e + 1) * T] for e in range(E)]


def route(t, c):
    return derive(KEY, Purpose.ROUTE, t, c) % K


def trained(name, kind, unbiased, **options):
    """(theta_0, theta, A, gradient) of the fast run whose rate is the paper's eta = ETA; A(e, k) is dense."""
    task, gradient = toy(kind, N)
    D = task.layout.size
    m = made(name, key=5, dim=d, subspaces=K, unbiased=unbiased, **options)
    run = Simulation(task, m, Plan(cohort=W, lr=ETA if unbiased else ETA * D / d, epochs=E, key=KEY))
    *_, last = run
    assert last.metrics["loss"] < 0.95 * task.evaluate(task.theta0())["loss"]  # theta is worth comparing

    def A(e, k=0):
        return m.matrix(D, e, k).dense().double().numpy()

    return task.theta0().double().numpy(), run.theta.double().numpy(), A, gradient


def assert_same(theta, twin, theta_0):
    """Equal up to float32: each of a few hundred operations on the way errs by 2^-24, relative."""
    way = np.linalg.norm(twin - theta_0)
    assert way > 0.5
    assert np.linalg.norm(theta - twin) < 5e-6 * way


@both_tasks
@both_conventions
@pytest.mark.parametrize("subspace", KINDS)
def test_static(kind, unbiased, subspace):
    theta_0, theta, A, gradient = trained("static", kind, unbiased, subspace=subspace)
    assert_same(theta, static(theta_0, A(0), all_rounds(), gradient, ETA), theta_0)


@both_tasks
@both_conventions
def test_k_subspace(kind, unbiased):
    theta_0, theta, A, gradient = trained("k-subspace", kind, unbiased)
    twin = k_subspace(theta_0, [A(0, k) for k in range(K)], epochs(), gradient, route, ETA)
    assert_same(theta, twin, theta_0)


@both_tasks
@both_conventions
def test_time_varying(kind, unbiased):
    theta_0, theta, A, gradient = trained("time-varying", kind, unbiased)
    twin = time_varying(theta_0, [A(e) for e in range(E)], epochs(), gradient, ETA)
    assert_same(theta, twin, theta_0)


@both_tasks
@both_conventions
def test_the_combination_is_k_subspace_begun_afresh_every_epoch(kind, unbiased):
    theta_0, theta, A, gradient = trained("k-subspace-time-varying", kind, unbiased)
    twin = theta_0
    for e, rounds in enumerate(epochs()):
        twin = k_subspace(twin, [A(e, k) for k in range(K)], [rounds], gradient, route, ETA)
    assert_same(theta, twin, theta_0)


def test_the_twins_can_tell_the_methods_apart():
    theta_0, theta, A, gradient = trained("time-varying", "mlp", False)
    twin = static(theta_0, A(0), all_rounds(), gradient, ETA)
    assert np.linalg.norm(theta - twin) > 0.1 * np.linalg.norm(twin - theta_0)
