"""A short run of a method on a toy task, for its twin to be held against."""

import numpy as np

from naive import toy
from narrowcast.numerics.keyed import Purpose, derive
from narrowcast.rounds.plan import Plan
from narrowcast.rounds.sampling import Cohorts
from narrowcast.rounds.simulator import Simulation

E, N, W, KEY = 4, 12, 5, 11  # the last round of an epoch has two clients


def rounds():
    """(t, clients) of the run."""
    cohorts = Cohorts(N, W, KEY)
    return [(t, cohorts.come(t).tolist()) for t in range(E * cohorts.rounds_per_epoch)]


def key_of(t, c):
    """The key of client c in round t."""
    return derive(KEY, Purpose.ROUTE, t, c)


def trained(method, kind, eta, **plan):
    """(simulation, theta_0, theta, gradient) of the fast run."""
    task, gradient = toy(kind, N)
    run = Simulation(task, method, Plan(cohort=W, lr=eta, epochs=E, key=KEY, **plan))
    *_, last = run
    assert last.metrics["loss"] < 0.95 * task.evaluate(task.theta0())["loss"]  # theta is worth comparing
    return run, task.theta0().double().numpy(), run.theta.double().numpy(), gradient


def distance(theta, twin, theta_0):
    """How far theta is from the twin's, against how far that has come."""
    way = np.linalg.norm(twin - theta_0)
    assert way > 0.3
    return np.linalg.norm(theta - twin) / way


def assert_same(theta, twin, theta_0, tolerance=5e-6):
    """Equal up to float32: each of a few hundred operations on the way errs by 2^-24, relative."""
    assert distance(theta, twin, theta_0) < tolerance
