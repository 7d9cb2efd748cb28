"""Several local steps: many clients at once walk as each does alone, whoever computes them."""

import threading
from copy import copy
from functools import partial

import numpy as np
import pytest
import torch
from torch import nn

from narrowcast import TorchTask
from narrowcast.numerics import pool
from narrowcast.rounds.local import Local, client_updates, summed_updates
from narrowcast.rounds.task import Task
from narrowcast.tasks import factors, forks, stacks, torch_task, workers
from narrowcast.tasks.factors import plain_layers
from narrowcast.tasks.init import initialise

SIZES = [5, 5, 5, 2, 5, 5, 1, 1, 1, 1, 7, 12]  # runs of equally many examples, and clients between them
GROUP = [(c, 100 + c) for c in range(len(SIZES))]
STACKS = {
    "deep": (
        nn.Linear(6, 8), nn.Tanh(), nn.Sequential(nn.Linear(8, 8, bias=False), nn.ReLU()), nn.Linear(8, 3)
    ),
    "one layer": (nn.Linear(6, 3),),
    "one layer, no bias": (nn.Linear(6, 3, bias=False),),
    "two in a row": (nn.Linear(6, 20, bias=False), nn.Linear(20, 3)),
    "first is elementwise": (nn.Softplus(), nn.Linear(6, 4), nn.GELU(), nn.Linear(4, 3)),
    "ends elementwise": (nn.Linear(6, 3), nn.LeakyReLU()),
    "in place": (
        nn.ELU(inplace=True), nn.Linear(6, 8), nn.ReLU(inplace=True), nn.Linear(8, 5), nn.SiLU(inplace=True),
        nn.Linear(5, 3), nn.LeakyReLU(inplace=True),
    ),
}  # fmt: skip
LOCALS = {
    "all examples": Local(4, 0, 0.3),
    "drawn": Local(3, 2, 0.3),
    "prox": Local(3, 0, 0.3, prox=0.5),
    "prox, drawn": Local(4, 4, 0.3, prox=0.5),
    "one example": Local(3, 1, 0.3),
    "one step": Local(1, 0, 0.0),
}


def task(*layers, sizes=SIZES, chunk=16, **more):
    made = torch.Generator().manual_seed(0)
    x, y = torch.randn(sum(sizes), 6, generator=made), torch.arange(sum(sizes)) % 3
    clients = np.split(np.arange(sum(sizes)), np.cumsum(sizes)[:-1])
    module = initialise(nn.Sequential(*layers), key=1)
    return TorchTask(module, train=(x, y), test=(x, y), clients=clients, chunk=chunk, **more)


def stack(name="deep", **more):
    return task(*(type_copy(layer) for layer in STACKS[name]), **more)


def type_copy(layer):
    """Layers of its own for every task: theta lies in them."""
    if isinstance(layer, nn.Linear):
        return nn.Linear(layer.in_features, layer.out_features, layer.bias is not None)
    return nn.Sequential(*map(type_copy, layer)) if isinstance(layer, nn.Sequential) else copy(layer)


def naively(made, monkeypatch):
    """The task, made to take one gradient after the other."""
    for name in ("gradients", "gradient_rows", "walk_rows", "walk_sums"):
        monkeypatch.setattr(made, name, partial(getattr(Task, name), made))
    return made


def updates(made, local, group=GROUP):
    theta = made.theta0()
    return [(loss, v.clone()) for loss, v in client_updates(made, theta, group, local, 3)]


def sums(made, local, groups, weights):
    found = summed_updates(made, made.theta0(), groups, weights, local, 3)
    return [(loss, v.clone()) for loss, v in found]


def assert_same(found, expected):
    for (loss, v), (true, w) in zip(found, expected, strict=True):
        assert loss == pytest.approx(true, rel=1e-5)
        torch.testing.assert_close(v, w, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("keep", ["factors", "products", "either"])
@pytest.mark.parametrize("local", LOCALS.values(), ids=LOCALS)
@pytest.mark.parametrize("name", STACKS)
def test_many_at_once_are_the_loop_up_to_rounding(name, local, keep, monkeypatch):
    """Each client's update, and weighted sums by groups, whichever form the layers keep theirs in."""
    monkeypatch.setattr(factors, "LONGER", {"factors": 1e9, "products": 0, "either": factors.LONGER}[keep])
    monkeypatch.setattr(stacks, "MOST_AT_ONCE", 4)
    fast, slow = stack(name), naively(stack(name), monkeypatch)
    monkeypatch.setattr(fast, "gradient", None)  # it asks for none
    assert_same(updates(fast, local), updates(slow, local))
    groups, weights = [GROUP[::2], GROUP[1::3], GROUP[3:4]], [[1.0, 2, 3, 4, 5, 6], [2.0, 1, 1, 3], [2.5]]
    assert_same(sums(fast, local, groups, weights), sums(slow, local, groups, weights))


def test_steps_on_pictures_that_change_are_the_loop_too(monkeypatch):
    def augment(x, index, key):
        return x + (key % 7) * 0.1

    local = Local(3, 0, 0.3)
    fast, slow = stack(augment=augment), naively(stack(augment=augment), monkeypatch)
    assert_same(updates(fast, local), updates(slow, local))
    same = naively(stack(), monkeypatch)
    assert not torch.allclose(updates(fast, local)[0][1], updates(same, local)[0][1])


def test_a_client_of_many_examples_is_looped_over(monkeypatch):
    sizes, group = [3, 40, 2], [(0, 1), (1, 2), (2, 3)]
    fast, slow = stack(sizes=sizes), naively(stack(sizes=sizes), monkeypatch)
    monkeypatch.setattr(stacks.Stack, "__init__", None)
    assert_same(updates(fast, Local(2, 0, 0.3), group), updates(slow, Local(2, 0, 0.3), group))


def test_updates_come_in_the_clients_order_whatever_is_kept_at_once(monkeypatch):
    expected = updates(stack(), Local(3, 0, 0.3))
    monkeypatch.setattr(stacks, "MEMORY_AT_ONCE", 8_000)  # bytes: a few clients
    monkeypatch.setattr(stacks, "CACHE_AT_ONCE", 2_000)
    assert_same(updates(stack(), Local(3, 0, 0.3)), expected)


@pytest.mark.parametrize("local", [Local(4, 0, 0.3), Local(3, 2, 0.3), Local(1, 0, 0.0)])
def test_no_bit_depends_on_the_number_of_workers_and_torch_keeps_its_threads(local, monkeypatch):
    monkeypatch.setattr(stacks, "MOST_AT_ONCE", 3)
    monkeypatch.setattr(stacks, "EXAMPLES_AT_ONCE", 7)
    before, groups = torch.get_num_threads(), [GROUP[::2], GROUP[1::2]]
    results = []
    for threads in (1, 2, 3):
        with pool.using(threads):
            made = stack()
            results.append(updates(made, local) + sums(made, local, groups, [[1.0] * 6, [2.0] * 6]))
        assert torch.get_num_threads() == before
    for other in results[1:]:
        for (loss, v), (same, w) in zip(results[0], other, strict=True):
            assert loss == same
            assert torch.equal(v, w)


def convolutions():
    return task(nn.Unflatten(1, (1, 6)), nn.Conv1d(1, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(16, 3))


class Remembers(nn.Module):
    """Keeps what it saw on itself until the next line: two threads in one such module would mix it up."""

    def forward(self, x):
        self.seen = x
        return self.seen.tanh() + 0.0 * self.seen


@pytest.mark.parametrize("local", [Local(3, 2, 0.3), Local(2, 0, 0.3, prox=0.5), Local(1, 0, 0.0)])
@pytest.mark.parametrize("threads", [2, 3])
def test_workers_with_a_copy_each_change_no_bit(local, threads, monkeypatch):
    """Of a module that is no plain stack: clients one by one, and a large batch in parts."""
    monkeypatch.setattr(torch_task, "EXAMPLES_AT_ONCE", 7)
    for make in (convolutions, lambda: task(nn.Linear(6, 5), Remembers(), nn.Linear(5, 3))):
        found = []
        for count in (1, threads):
            with pool.using(count):
                made = make()
                found.append(updates(made, local) + sums(made, local, [GROUP], [[1.0] * len(GROUP)]))
                assert len(made.copies()) == count
        for (loss, v), (same, w) in zip(*found, strict=True):
            assert loss == same
            assert torch.equal(v, w)


@pytest.mark.parametrize("possible", [False, True], ids=["threads", "processes"])
@pytest.mark.parametrize("local", [Local(2, 0, 0.3), Local(1, 0, 0.0)], ids=["steps", "gradients"])
@pytest.mark.parametrize("make", [stack, convolutions])
def test_under_autocast_workers_compute_what_one_alone_does(make, local, possible, monkeypatch):
    """They would not cast by themselves; the quick roads of float32 are not taken, and come back after it."""
    monkeypatch.setattr(torch_task, "EXAMPLES_AT_ONCE", 7)
    monkeypatch.setattr(forks, "possible", lambda: possible)
    found = []
    for count in (1, 2):
        with pool.using(count):
            made = make()
            with torch.autocast("cpu", torch.bfloat16):
                found.append(updates(made, local) + sums(made, local, [GROUP], [[1.0] * len(GROUP)]))
            plain = updates(made, local)
            assert_same(plain, updates(make(), local))
            assert not torch.equal(plain[0][1], found[-1][0][1])
    for (loss, v), (same, w) in zip(*found, strict=True):
        assert loss == same
        assert torch.equal(v, w)


def test_workers_walk_as_the_loop_does(monkeypatch):
    local, groups = Local(3, 2, 0.3), [GROUP[::2], GROUP[1::2]]
    fast, slow = convolutions(), naively(convolutions(), monkeypatch)
    monkeypatch.setattr(torch_task, "EXAMPLES_AT_ONCE", 7)
    with pool.using(3):
        assert_same(updates(fast, local), updates(slow, local))
        weights = [[1.0] * 6, [2.0] * 6]
        assert_same(sums(fast, local, groups, weights), sums(slow, local, groups, weights))
        assert_same(sums(fast, Local(), groups, weights), sums(slow, Local(), groups, weights))


def test_a_module_that_cannot_be_copied_has_one_worker():
    class Locked(nn.Module):
        def __init__(self):
            super().__init__()
            self.lock = threading.Lock()

        def forward(self, x):
            return x

    with pool.using(3):
        made = task(nn.Linear(6, 3), Locked())
        assert len(updates(made, Local(2, 0, 0.3))) == len(GROUP)
        assert made.copies() == [made]


def test_a_worker_that_fails_says_so_and_torch_keeps_its_threads():
    def work(part, worker):
        if part == 1:
            raise ArithmeticError("no")
        return part

    before = torch.get_num_threads()
    with pytest.raises(ArithmeticError, match="no"):
        list(workers.in_workers([0, 1, 2], work))
    assert torch.get_num_threads() == before


def test_a_task_with_a_gradient_of_its_own_is_asked_for_it():
    class Own(TorchTask):
        def gradient(self, theta, batch):
            return 1.0, torch.ones_like(theta)

    made = stack()
    made.__class__ = Own
    for loss, v in updates(made, Local(2, 0, 0.5)):
        assert loss == 1.0
        torch.testing.assert_close(v, torch.full_like(v, 2.0))
    ((loss, v),) = sums(made, Local(2, 0, 0.5), [GROUP[:3]], [[1.0, 2.0, 3.0]])
    assert loss == 6.0
    torch.testing.assert_close(v, torch.full_like(v, 12.0))


class Regularised(TorchTask):
    """0.5 |theta|^2 is added to every objective."""

    def objectives(self, batch):
        yield from super().objectives(batch)
        yield 0.5 * sum(p.square().sum() for p in self.module.parameters())


class Pulled(TorchTask):
    """The same, by its gradient."""

    def part_gradient(self, theta, *batches):
        loss, v = super().part_gradient(theta, *batches)
        return loss + 0.5 * float(theta @ theta), v.add_(theta)


@pytest.mark.parametrize("kind", [Regularised, Pulled])
@pytest.mark.parametrize("local", [Local(2, 0, 0.3), Local(1, 0, 0.0)], ids=["steps", "gradients"])
@pytest.mark.parametrize("make", [stack, convolutions])
def test_an_objective_of_its_own_counts_on_every_road(make, local, kind, monkeypatch):
    def whole(theta, batch):
        loss, v = plain.part_gradient(theta, batch)
        return loss + 0.5 * float(theta @ theta), v.add_(theta)

    monkeypatch.setattr(torch_task, "EXAMPLES_AT_ONCE", 7)
    made, plain = make(), naively(make(), monkeypatch)
    made.__class__ = kind
    monkeypatch.setattr(plain, "gradient", whole)
    with pool.using(2):
        assert_same(updates(made, local), updates(plain, local))
        found = sums(made, local, [GROUP], [[1.0 / len(GROUP)] * len(GROUP)])
        assert_same(found, sums(plain, local, [GROUP], [[1.0 / len(GROUP)] * len(GROUP)]))


@pytest.mark.parametrize("local", [Local(2, 0, 0.3), Local(1, 0, 0.0)], ids=["steps", "gradients"])
@pytest.mark.parametrize("make", [stack, convolutions])
def test_a_hook_of_a_parameter_is_asked_on_every_road(make, local):
    made = make()
    first = next(made.module.parameters())
    first.register_hook(torch.zeros_like)
    with pool.using(2):
        for _, v in updates(made, local) + sums(made, local, [GROUP], [[1.0] * len(GROUP)]):
            assert not v[: first.numel()].any()
            assert v[first.numel() :].any()


def test_only_plain_stacks_are_taken():
    linear = nn.Linear(2, 2)
    frozen, hooked, before = nn.Linear(2, 2), nn.Linear(2, 2), nn.Linear(2, 2)
    frozen.bias.requires_grad_(False)
    hooked.register_forward_hook(lambda *_: None)
    before.register_full_backward_pre_hook(lambda *_: None)
    assert len(plain_layers(nn.Sequential(linear, nn.Sequential(nn.ReLU(), nn.Linear(2, 2))))) == 3
    assert plain_layers(nn.Linear(2, 2))
    for other in (nn.Dropout(), nn.BatchNorm1d(2), nn.Conv2d(1, 1, 1), linear, frozen, hooked, before):
        assert not plain_layers(nn.Sequential(linear, other))
