"""A short run of a method on a toy task, for a twin to be held against."""

import numpy as np

from naive import toy
from narrowcast.methods import method
from narrowcast.plan import Plan
from narrowcast.sampling import Cohorts
from narrowcast.simulate import Simulation

E, N, W, KEY = 4, 12, 5, 11  # the last round of an epoch has two clients


def rounds():
    """(t, clients) of the run."""
    cohorts = Cohorts(N, W, KEY)
    return [(t, cohorts.come(t).tolist()) for t in range(E * cohorts.rounds_per_epoch)]


def trained(m, kind, lr):
    """(theta_0, theta, gradient) of the fast run of a method (or of one by its name)."""
    task, gradient = toy(kind, N)
    run = Simulation(task, method(m) if isinstance(m, str) else m, Plan(W, lr, epochs=E, key=KEY))
    *_, last = run
    assert last.metrics["loss"] < 0.95 * task.evaluate(task.theta0())["loss"]  # theta is worth comparing
    return task.theta0().double().numpy(), run.theta.double().numpy(), gradient


def distance(theta, twin, theta_0):
    """How far theta is from the twin's, against how far that has come."""
    way = np.linalg.norm(twin - theta_0)
    assert way > 0.3
    return np.linalg.norm(theta - twin) / way
