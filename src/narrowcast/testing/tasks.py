"""The laws of a task: theta0 of the same bits, a gradient that is one, clients whose sum is the cohort's."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from narrowcast.methods.table import METHODS
from narrowcast.numerics import keyed
from narrowcast.numerics.keyed import Purpose
from narrowcast.rounds.plan import Plan
from narrowcast.rounds.simulator import Simulation
from narrowcast.rounds.task import Batch, Task
from narrowcast.testing.contract import Contract, raw

SOME = 4  # clients, and directions


class TaskContract(Contract):
    """Of the task that `make` returns: of seconds, not minutes, and with at least two clients."""

    learns = True  # the loss of a few rounds of uncompressed training goes down
    rate = 0.1  # at this rate

    def make(self) -> Task:
        raise NotImplementedError("say which task: def make(self): return my_task()")

    def test_theta0_is_the_same_every_time_and_a_copy(self) -> None:
        one, other = self.make(), self.make()
        theta = one.theta0()
        assert (theta.dtype, theta.shape) == (torch.float32, (one.layout.size,)), f"theta0 is {theta.dtype}"
        assert torch.isfinite(theta).all(), "theta0 is not finite"
        assert raw(theta) == raw(other.theta0()), "theta0 is another in another task: draw it from the key"
        theta += 1.0
        assert raw(one.theta0()) == raw(other.theta0()), "theta0 can be written to"

    def test_clients_share_no_example_and_have_at_least_one(self) -> None:
        task = self.make()
        index = [np.asarray(client) for client in task.clients]
        assert len(index) >= 2, f"{len(index)} clients: a federation has two"
        assert all(len(one) for one in index), "a client without examples"
        everything = np.concatenate(index)
        assert everything.dtype == np.int64, f"indices are {everything.dtype}, not int64"
        assert len(np.unique(everything)) == len(everything), "an example belongs to two clients"
        again = [np.asarray(client) for client in self.make().clients]
        assert all(np.array_equal(a, b) for a, b in zip(index, again, strict=True)), (
            "other clients every time"
        )

    def test_the_gradient_is_that_of_the_loss(self) -> None:
        """Against central differences along random directions, in units of what float32 leaves of them."""
        task = self.make()
        theta, batch = task.theta0(), self._batch(task)
        loss, gradient = task.gradient(theta, batch)
        gradient = gradient.clone()
        assert abs(loss - task.loss(theta, batch)) <= 1e-4 * (1 + abs(loss)), "gradient and loss disagree"
        step = 1e-3
        for i in range(SOME):
            z = torch.from_numpy(keyed.normals(i, Purpose.DATA, theta.numel()))
            z /= torch.linalg.norm(z)
            slope = (task.loss(theta + step * z, batch) - task.loss(theta - step * z, batch)) / (2 * step)
            found = float(gradient @ z)
            most = 0.02 * float(torch.linalg.norm(gradient)) + 2e-7 * (1 + abs(loss)) / step
            assert abs(slope - found) <= most, f"the slope is {slope:.6g}, the gradient says {found:.6g}"

    def test_the_gradient_of_a_cohort_is_the_weighted_sum_over_its_clients(self) -> None:
        """Where examples do not depend on each other, as `separable` says; and each is computed alone."""
        task = self.make()
        theta, clients = task.theta0(), [np.asarray(c) for c in task.clients[:SOME]]
        each = [Batch(c, torch.full((len(c),), 1 / len(c)), 7) for c in clients]
        found = [(loss, gradient.clone()) for loss, gradient in task.gradients(theta, each)]
        for batch, (loss, gradient) in zip(each, found, strict=True):
            alone, own = task.gradient(theta, batch)
            assert abs(alone - loss) <= 1e-4 * (1 + abs(loss)), (
                "gradients() and gradient() disagree on a loss"
            )
            torch.testing.assert_close(own, gradient, rtol=1e-3, atol=1e-5)
        if task.separable:
            weight = torch.cat([batch.weight for batch in each]) / len(each)
            loss, whole = task.gradient(theta, Batch(np.concatenate(clients), weight, 7))
            mean = torch.stack([gradient for _, gradient in found]).mean(0)
            torch.testing.assert_close(whole, mean, rtol=1e-3, atol=1e-5)

    def test_the_same_batch_gives_the_same_gradient_and_theta_is_left_alone(self) -> None:
        task = self.make()
        theta, batch = task.theta0(), self._batch(task)
        before = raw(theta)
        first = raw(task.gradient(theta, batch)[1])
        task.evaluate(theta)
        assert raw(task.gradient(theta, batch)[1]) == first, "another gradient the second time"
        assert raw(theta) == before, "theta was changed"

    def test_the_metric_is_among_what_evaluate_returns(self) -> None:
        task = self.make()
        metrics = task.evaluate(task.theta0())
        assert task.metric in metrics, f"metric is {task.metric!r}, evaluate returns {sorted(metrics)}"
        assert all(isinstance(value, float) for value in metrics.values()), f"not all are floats: {metrics}"
        assert isinstance(task.higher_is_better, bool), "higher_is_better is a bool"

    def test_its_weights_have_a_state_dict(self) -> None:
        task = self.make()
        theta = task.theta0() + 1.0
        state = task.state_dict(theta)
        assert state, "an empty state_dict"
        assert all(isinstance(value, torch.Tensor) for value in state.values()), "tensors by name"
        assert any(bool((value != 0).any()) for value in state.values()), "theta is not in it"

    def test_it_trains_and_resumes_bit_for_bit(self) -> None:
        task = self.make()
        cohort = min(10, len(task.clients))
        plan = Plan(cohort=cohort, lr=self.rate, rounds=6, key=1, evaluate_every=0)
        method: Any = METHODS["uncompressed"].make()
        whole = Simulation(task, method, plan)
        records = list(whole)
        stopped = Simulation(task, method, plan)
        for _ in range(3):
            stopped.step()
        resumed = Simulation(self.make(), method, plan)
        resumed.restore(stopped.state())
        assert all(a.same_as(b) for a, b in zip(resumed, records[3:], strict=True)), (
            "another run after a resume"
        )
        assert raw(resumed.theta) == raw(whole.theta), "theta is another after a resume"
        if self.learns:
            everyone = self._batch(task)
            first, last = (task.loss(theta, everyone) for theta in (task.theta0(), whole.theta))
            assert last < first, (
                f"the loss was {first:.4g}, and is {last:.4g} after six rounds at {self.rate}"
            )

    def _batch(self, task: Task) -> Batch:
        """The mean over the examples of some clients."""
        index = np.concatenate([np.asarray(client) for client in task.clients[: 5 * SOME]])
        return Batch(index, torch.full((len(index),), 1 / len(index)), 3, 4)
