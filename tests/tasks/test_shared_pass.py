"""Clients' own gradients from one pass are those of each client alone, or the pass is not taken."""

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn.functional import linear

from narrowcast import Batch, TorchTask
from narrowcast.tasks import module, torch_task
from narrowcast.tasks.init import initialise


class Residual(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv, self.norm = nn.Conv2d(4, 4, 3, padding=1, bias=False), nn.GroupNorm(2, 4)

    def forward(self, x):
        return x + torch.tanh(self.norm(self.conv(x)))


class Twice(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner, self.last = nn.Linear(72, 72), nn.Linear(72, 3)

    def forward(self, x):
        return self.last(self.inner(torch.tanh(self.inner(x.flatten(1)))))


class Borrowed(nn.Module):
    """A weight is used beside its layer, at first with no effect."""

    def __init__(self):
        super().__init__()
        self.inner, self.last = nn.Linear(72, 8), nn.Linear(8, 3)
        self.gate = nn.Linear(1, 1, bias=False)

    def forward(self, x):
        x = x.flatten(1)
        more = self.gate(x[:, :1]) * linear(x, self.inner.weight)
        return self.last(torch.tanh(self.inner(x)) + more)


class Unused(nn.Module):
    def __init__(self):
        super().__init__()
        self.last, self.spare = nn.Linear(72, 3), nn.Linear(2, 2)

    def forward(self, x):
        return self.last(x.flatten(1))


SHARED = {
    "convolutions": lambda: nn.Sequential(
        nn.Conv2d(2, 4, 3, stride=2, padding=1), nn.ReLU(inplace=True), nn.Conv2d(4, 6, (3, 1), groups=2),
        nn.ReLU(inplace=True), nn.Flatten(), nn.Linear(18, 3),
    ),
    "residual, group norm": lambda: nn.Sequential(
        nn.Conv2d(2, 4, 3, dilation=2), Residual(), nn.AvgPool2d(2), nn.Flatten(), nn.Linear(4, 3, bias=False)
    ),
}  # fmt: skip
NOT_SHARED = {"twice": Twice, "borrowed": Borrowed, "unused": Unused, "another kind": lambda: nn.Sequential(
    nn.Conv2d(2, 4, 3, padding="same"), nn.Flatten(), nn.Linear(144, 3)
)}  # fmt: skip


def made(net, monkeypatch, clients=9):
    monkeypatch.setattr(module, "SMALL", 0)
    monkeypatch.setattr(torch_task, "SMALL", 0)
    monkeypatch.setattr(torch_task, "PASS_AT_ONCE", 12)
    x = torch.randn(60, 2, 6, 6, generator=torch.Generator().manual_seed(0))
    y = torch.arange(60) % 3
    task = TorchTask(initialise(net(), key=1), train=(x, y), test=(x, y), clients=[np.arange(60)])
    if net is Borrowed:
        task._theta0[-1] = 0.0
    sizes = [5, 5, 5, 2, 2, 1, 13, 5, 5][:clients]
    rng = np.random.default_rng(0)
    index = [rng.permutation(60)[:size] for size in sizes]
    return task, [Batch(i, torch.rand(len(i), generator=torch.Generator().manual_seed(1)), 0) for i in index]


def alone(task, batches):
    return [(loss, v.clone()) for loss, v in (task.gradient(task.theta0(), batch) for batch in batches)]


def together(task, batches):
    rows = task.gradient_rows(task.theta0(), batches)
    return [(a, v.clone()) for losses, vs in rows for a, v in zip(losses, vs, strict=True)]


def assert_same(found, expected):
    for (loss, v), (true, w) in zip(found, expected, strict=True):
        assert loss == pytest.approx(true, rel=1e-5)
        torch.testing.assert_close(v, w, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", SHARED)
def test_gradients_of_one_pass_are_those_of_each_client(name, monkeypatch):
    task, batches = made(SHARED[name], monkeypatch)
    expected = alone(task, batches)
    monkeypatch.setattr(task, "_by_vmap", None)  # it is not asked
    assert_same(together(task, batches), expected)
    assert task._tried


@pytest.mark.parametrize("name", NOT_SHARED)
def test_what_a_pass_would_get_wrong_goes_another_way(name, monkeypatch):
    task, batches = made(NOT_SHARED[name], monkeypatch)
    assert_same(together(task, batches), alone(task, batches))
    assert not task._known


@pytest.mark.parametrize("net", [SHARED["convolutions"], Twice])
def test_a_pass_leaves_the_module_as_it_was(net, monkeypatch):
    task, batches = made(net, monkeypatch, clients=3)
    before = task.theta0()
    task.buffer().copy_(before)
    list(task.gradient_rows(task.buffer(), batches))
    assert torch.equal(task.buffer(), before)
    assert not any(m._forward_hooks for m in task.module.modules())
    assert all(p.requires_grad for p in task.module.parameters())
