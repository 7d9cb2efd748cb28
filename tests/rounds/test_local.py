"""Several local steps: clients side by side walk as they do one by one, whoever computes them."""

from functools import partial

import numpy as np
import pytest
import torch
from torch import nn

from narrowcast import TorchTask
from narrowcast.numerics import pool
from narrowcast.rounds.local import Local, client_updates
from narrowcast.rounds.task import Task
from narrowcast.tasks.init import initialise
from narrowcast.tasks.side_by_side import plain_layers

SIZES = [5, 5, 5, 2, 5, 5, 1, 1, 1, 1, 7]  # runs of equally many examples, and clients between them
GROUP = [(c, 100 + c) for c in range(len(SIZES))]


def task(*layers):
    made = torch.Generator().manual_seed(0)
    x, y = torch.randn(sum(SIZES), 6, generator=made), torch.arange(sum(SIZES)) % 3
    clients = np.split(np.arange(sum(SIZES)), np.cumsum(SIZES)[:-1])
    return TorchTask(
        initialise(nn.Sequential(*layers), key=1), train=(x, y), test=(x, y), clients=clients, chunk=16
    )


def stack():
    return task(
        nn.Linear(6, 8), nn.Tanh(), nn.Sequential(nn.Linear(8, 8, bias=False), nn.ReLU()), nn.Linear(8, 3)
    )


def updates(made, local):
    theta = made.theta0()
    return [(loss, v.clone()) for loss, v in client_updates(made, theta, GROUP, local, 3)]


@pytest.mark.parametrize("local", [Local(4, 0, 0.3), Local(3, 2, 0.3), Local(3, 0, 0.3, prox=0.5)])
def test_side_by_side_is_the_loop_up_to_rounding(local, monkeypatch):
    fast, slow = stack(), stack()
    monkeypatch.setattr(fast, "gradient", None)  # it asks for none
    monkeypatch.setattr(slow, "walk", partial(Task.walk, slow))
    for (loss, v), (expected, w) in zip(updates(fast, local), updates(slow, local), strict=True):
        assert loss == pytest.approx(expected, rel=1e-5)
        torch.testing.assert_close(v, w, rtol=1e-4, atol=1e-5)


def test_no_bit_depends_on_the_number_of_workers_and_torch_keeps_its_threads():
    before = torch.get_num_threads()
    results = []
    for threads in (1, 2, 3):
        pool.set_threads(threads)
        results.append(updates(stack(), Local(4, 0, 0.3)))
        assert torch.get_num_threads() == before
    for other in results[1:]:
        for (loss, v), (same, w) in zip(results[0], other, strict=True):
            assert loss == same
            assert torch.equal(v, w)


def test_a_task_with_a_gradient_of_its_own_is_asked_for_it():
    class Own(TorchTask):
        def gradient(self, theta, batch):
            return 1.0, torch.ones_like(theta)

    made = stack()
    made.__class__ = Own
    for loss, v in updates(made, Local(2, 0, 0.5)):
        assert loss == 1.0
        torch.testing.assert_close(v, torch.full_like(v, 2.0))


def test_only_plain_stacks_are_taken():
    linear = nn.Linear(2, 2)
    frozen, hooked = nn.Linear(2, 2), nn.Linear(2, 2)
    frozen.bias.requires_grad_(False)
    hooked.register_forward_hook(lambda *_: None)
    assert len(plain_layers(nn.Sequential(linear, nn.Sequential(nn.ReLU(), nn.Linear(2, 2))))) == 3
    assert plain_layers(nn.Linear(2, 2))
    for other in (nn.Dropout(), nn.BatchNorm1d(2), nn.Conv2d(1, 1, 1), linear, frozen, hooked):
        assert not plain_layers(nn.Sequential(linear, other))
