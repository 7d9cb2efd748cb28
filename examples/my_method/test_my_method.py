"""The method is its naive twin, and both it and the task keep every law that narrowcast's own keep."""

import numpy as np
import torch
from my_method import Pooled
from my_task import spirals

import narrowcast as nc
from narrowcast.testing import MethodContract, TaskContract


class TestPooled(MethodContract):
    def make(self):
        return Pooled(pool=4)


class TestSpirals(TaskContract):
    def make(self):
        return spirals(clients=8, width=8, key=3)


def twin(task: nc.Task, plan: nc.Plan, b: int) -> np.ndarray:
    """The algorithm as it is written down, in float64, with one client a round: no messages, no server."""
    theta = task.theta0().double().numpy()
    cohorts = plan.cohorts(len(task.clients))
    for round in range(plan.length(len(task.clients))):
        (client,) = cohorts.come(round).tolist()
        index = np.asarray(task.clients[client])
        batch = nc.Batch(index, torch.full((len(index),), 1 / len(index)), 0)
        v = task.gradient(torch.tensor(theta, dtype=torch.float32), batch)[1].double().numpy()
        for start in range(0, len(v), b):
            group = np.arange(start, min(start + b, len(v)))
            theta[group] -= plan.lr * v[group].sum() / b
    return theta


def test_it_is_its_naive_twin():
    plan = nc.Plan(cohort=1, lr=0.1, rounds=8, key=1)
    simulation = nc.Simulation(spirals(clients=8, width=8), Pooled(pool=4), plan)
    records = list(simulation)
    np.testing.assert_allclose(
        simulation.theta.numpy(), twin(spirals(clients=8, width=8), plan, 4), atol=1e-5
    )
    D = simulation.theta.numel()
    assert all(record.up < 4 * D / 4 + 50 for record in records)
