"""Modules that people bring: norms, buffers, tied weights, dropout. Both roads agree on each."""

import copy
import multiprocessing
import os
import pickle
import threading
import time
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import narrowcast as nc
from narrowcast.rounds.task import Batch
from narrowcast.tasks.side_effects import drawing_from

SIDE, CLASSES, EXAMPLES, CLIENTS = 6, 3, 48, 12
PLAN = nc.Plan(cohort=4, lr=0.1, rounds=6, key=5, evaluate_every=1)
METHODS = {"static": {"dim": 40}, "topk": {"k": 60}}


def batch_norm(channels: int) -> nn.Module:
    return nn.BatchNorm2d(channels)


def group_norm(channels: int) -> nn.Module:
    return nn.GroupNorm(2, channels)


class Block(nn.Module):
    def __init__(self, norm, channels: int) -> None:
        super().__init__()
        self.conv = nn.Conv2d(channels, channels, 3, padding=1, bias=False)
        self.norm = norm(channels)

    def forward(self, x: Tensor) -> Tensor:
        return x + F.relu(self.norm(self.conv(x)))


def resnet(norm) -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(1, 4, 3, padding=1), norm(4), nn.ReLU(), Block(norm, 4), Block(norm, 4),
        nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, CLASSES),
    )  # fmt: skip


def pretrained(norm=batch_norm) -> nn.Module:
    """One whose running statistics are not those it was made with."""
    module = resnet(norm)
    x, _ = examples()
    with torch.no_grad():
        for part in x.split(8):
            module(part)
    return module


def examples() -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(1)
    y = torch.arange(EXAMPLES) % CLASSES
    x = torch.randn(EXAMPLES, 1, SIDE, SIDE, generator=generator)
    x += 2 * y[:, None, None, None] * torch.eye(SIDE)
    return x, y


def task(module: nn.Module, **more) -> nc.TorchTask:
    x, y = examples()
    return nc.TorchTask(module, train=(x, y), test=(x, y), clients=nc.by_class(y, CLIENTS), **more)


class Flat(nn.Module):
    """A net over flat inputs with something in its middle."""

    def __init__(self, middle: nn.Module) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first, self.middle, self.last = nn.Linear(SIDE * SIDE, 8), middle, nn.Linear(8, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(torch.tanh(self.middle(self.first(x.flatten(1)))))


def trained(module: nn.Module, method: str = "static", plan: nc.Plan = PLAN, **more) -> nc.Simulation:
    run = nc.Simulation(task(module, **more), nc.method(method, **METHODS[method]), plan)
    for _ in run:
        pass
    return run


def seeded(make) -> nn.Module:
    torch.manual_seed(0)
    return make()


def assert_both_roads_agree(make, **more) -> None:
    """Summed before compressing, or one upload a client: the same model, up to rounding."""
    for steps in (1, 2):
        plan = replace(PLAN, local_steps=steps, local_batch=3)
        one, other = (trained(seeded(make), plan=replace(plan, per_client=r), **more) for r in (False, True))
        assert torch.equal(one.theta0, other.theta0)
        way = torch.linalg.norm(one.theta - one.theta0)
        assert way > 0
        assert torch.linalg.norm(one.theta - other.theta) < 1e-4 * way


# ---- running statistics


class Kept(nn.Module):
    """A model that keeps batch norm in evaluation by itself, as many do."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = pretrained()

    def train(self, mode: bool = True) -> nn.Module:
        super().train(mode)
        for layer in self.modules():
            if isinstance(layer, nn.BatchNorm2d):
                layer.eval()
        return self

    def forward(self, x: Tensor) -> Tensor:
        return self.layers(x)


def only_eval() -> nn.Module:
    """`eval` on the layers alone: the first evaluation, and the training after it, would undo it."""
    module = pretrained()
    for layer in module.modules():
        if isinstance(layer, nn.BatchNorm2d):
            layer.eval()
    return module


@pytest.mark.parametrize(
    "make",
    [
        lambda: resnet(batch_norm),
        only_eval,
        lambda: resnet(nn.SyncBatchNorm),
        lambda: resnet(lambda c: nn.InstanceNorm2d(c, track_running_stats=True)),
        lambda: resnet(lambda c: nn.BatchNorm2d(c, momentum=None, affine=False)),
    ],
)
def test_running_statistics_are_refused_with_the_way_out(make):
    with pytest.raises(ValueError, match=r"1 keeps running statistics .*nc\.freeze_batch_norm.*GroupNorm"):
        task(make())


class Counts(nn.Module):
    """Keeps statistics in a way that no type tells."""

    def __init__(self, persistent: bool = True) -> None:
        super().__init__()
        self.register_buffer("mean", torch.zeros(8), persistent=persistent)

    def forward(self, x: Tensor) -> Tensor:
        if self.training:
            self.mean = 0.9 * self.mean + 0.1 * x.detach().mean(0)
        return x - self.mean


def spectral() -> nn.Module:
    return nn.utils.parametrizations.spectral_norm(nn.Linear(8, 8))


@pytest.mark.parametrize(("middle", "name"), [(Counts, "middle.mean"), (spectral, r"middle\.\S*_u")])
@pytest.mark.parametrize("per_client", [False, True])
def test_other_buffers_that_training_changes_are_refused_in_the_first_step(middle, name, per_client):
    module = Flat(middle())
    before = copy.deepcopy(module.state_dict())
    with pytest.raises(ValueError, match=f"training changes {name}.*no parameters"):
        trained(module, plan=replace(PLAN, per_client=per_client))
    assert all(torch.equal(value, before[name]) for name, value in module.state_dict().items())


def test_what_is_computed_by_hand_is_watched_too():
    """`gradient` alone, which no trial comes before."""
    made = task(Flat(Counts()))
    made.__dict__["_habits"] = nc.tasks.side_effects.Habits(draws=False, mixes=False)
    with pytest.raises(ValueError, match=r"training changes middle\.mean"):
        made.gradient(made.theta0(), Batch(np.arange(4), torch.ones(4), 0))


class Table(nn.Module):
    """Adds a table of positions, with a buffer that nobody saves, and one with a hole."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("positions", torch.linspace(0, 1, 8))
        self.register_buffer("hole", torch.tensor([1.0, float("nan")]))
        self.register_buffer("seen", torch.zeros(1), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        self.seen = self.seen + 1
        return x + self.positions


class Tied(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.one, self.two = nn.Linear(8, 8), nn.Linear(8, 8)
        self.two.weight = self.one.weight

    def forward(self, x: Tensor) -> Tensor:
        return self.two(torch.relu(self.one(x)))


# ---- both roads


@pytest.mark.parametrize(
    "make",
    [
        lambda: nc.freeze_batch_norm(pretrained()),
        Kept,
        lambda: resnet(group_norm),
        lambda: resnet(nn.InstanceNorm2d),
        lambda: resnet(lambda c: nn.BatchNorm2d(c, track_running_stats=False)),
        lambda: Flat(Table()),
        lambda: Flat(Tied()),
        lambda: Flat(nn.Dropout(0.3)),
    ],
    ids=["frozen", "kept", "group", "instance", "batch", "buffers", "tied", "dropout"],
)
def test_both_roads_give_the_same_model(make):
    assert_both_roads_agree(make)


def test_a_loss_that_looks_at_the_whole_batch_is_each_clients_own():
    def contrast(outputs: Tensor, targets: Tensor) -> Tensor:
        return F.cross_entropy(outputs - outputs.mean(0), targets, reduction="none")

    assert not task(Flat(nn.Identity()), loss=contrast).separable
    assert_both_roads_agree(lambda: Flat(nn.Identity()), loss=contrast)


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("make", [lambda: nc.freeze_batch_norm(pretrained()), lambda: resnet(group_norm)])
def test_a_resnet_trains_through_one_call(make, method):
    module = make()
    state = {name: value.clone() for name, value in module.named_buffers()}
    made = task(module)
    assert made.separable
    plan = replace(PLAN, rounds=40, lr=2.0 if method == "static" else 0.3)
    records = list(nc.simulate(made, nc.method(method, **METHODS[method]), plan))
    assert records[-1].metrics["loss"] < 0.8 * records[0].metrics["loss"]
    assert all(torch.equal(value, state[name]) for name, value in module.named_buffers())


def test_frozen_statistics_stay_and_the_rest_trains():
    module = pretrained()
    plain, names = copy.deepcopy(module).eval(), list(module.state_dict())
    x, _ = examples()
    assert nc.freeze_batch_norm(module) is module
    for here in (module, copy.deepcopy(module), pickle.loads(pickle.dumps(module))):
        here.eval()
        here.train()
        assert list(here.state_dict()) == names
        assert here[0].training
        assert here[1].train(True) is here[1]
        assert torch.equal(here(x), plain(x))
    assert "1.weight" in task(module).layout.names
    with pytest.raises(ValueError, match=r"1 has no running statistics.*GroupNorm"):
        nc.freeze_batch_norm(resnet(lambda c: nn.BatchNorm2d(c, track_running_stats=False)))


# ---- what a module draws


class Drops(nn.Module):
    """Dropout that no type tells, and what it drew."""

    def __init__(self) -> None:
        super().__init__()
        self.drawn: list[Tensor] = []

    def forward(self, x: Tensor) -> Tensor:
        if not self.training:
            return x
        kept = torch.rand_like(x) > 0.3
        self.drawn.append(kept)
        return x * kept / 0.7


DROPS = {"layer": lambda: nn.Dropout(0.3), "function": Drops}


@pytest.mark.parametrize("middle", DROPS)
@pytest.mark.parametrize("per_client", [False, True])
@pytest.mark.parametrize("steps", [1, 2])
def test_the_model_depends_on_the_runs_key_alone(middle, per_client, steps):
    plan, ends = replace(PLAN, per_client=per_client, local_steps=steps, local_batch=3), []
    for seed in (1, 2):
        module = Flat(DROPS[middle]())
        torch.manual_seed(seed)
        before = torch.get_rng_state()
        ends.append(trained(module, plan=plan).theta.clone())
        assert torch.equal(torch.get_rng_state(), before)  # the user's generator is where it was
    assert torch.equal(*ends)
    other = trained(Flat(DROPS[middle]()), plan=replace(plan, key=6))
    assert not torch.equal(ends[0], other.theta)


def test_every_client_round_and_step_draws_its_own():
    middle = Drops()
    run = nc.Simulation(
        task(Flat(middle)),
        nc.method("static", dim=40),
        replace(PLAN, local_steps=2, evaluate_every=0, rounds=3),
    )
    run.step()
    middle.drawn.clear()  # with the trial's
    run.step(), run.step()
    assert len(middle.drawn) == 2 * 4 * 2
    assert len({bytes(mask.numpy().tobytes()) for mask in middle.drawn}) == 16


@pytest.mark.parametrize("method", METHODS)
def test_a_run_goes_on_after_any_round_to_the_same_model(method):
    plan = replace(PLAN, local_batch=3)
    whole = trained(Flat(nn.Dropout(0.3)), method, plan)
    for stop in range(PLAN.rounds):
        torch.manual_seed(stop)
        first = nc.Simulation(task(Flat(nn.Dropout(0.3))), nc.method(method, **METHODS[method]), plan)
        for _ in range(stop):
            first.step()
        again = nc.Simulation(task(Flat(nn.Dropout(0.3))), nc.method(method, **METHODS[method]), plan)
        again.restore(copy.deepcopy(first.state()))
        for _ in again:
            pass
        assert torch.equal(again.theta, whole.theta)


def test_both_probes_of_a_slope_see_the_same_model():
    """Forward differences of FedKSeed under dropout: noise between them would drown the slope."""
    made = task(Flat(nn.Dropout(0.3)))
    batch = Batch(np.arange(6), torch.full((6,), 1 / 6), 0, noise=9)
    assert made.loss(made.theta0(), batch) == made.loss(made.theta0(), batch)
    assert made.loss(made.theta0(), batch) != made.loss(made.theta0(), batch._replace(noise=10))
    assert made.loss(made.theta0(), batch) == pytest.approx(made.gradient(made.theta0(), batch)[0], rel=1e-6)


def test_a_model_that_draws_nothing_costs_no_seeding_and_is_one_batch():
    made = task(Flat(nn.Dropout(0.0)))
    assert made.separable
    assert not made.draws


def test_the_generator_is_put_back_after_an_error():
    before = torch.get_rng_state()
    with pytest.raises(RuntimeError), drawing_from((1 << 64) - 1):
        torch.rand(3) @ torch.rand(4)
    assert torch.equal(torch.get_rng_state(), before)


def test_threads_that_draw_at_once_draw_what_each_does_alone():
    def drawn(key: int, found: list[Tensor]) -> None:
        for _ in range(5):
            with drawing_from(key):
                found.append(torch.rand(2))
                time.sleep(0.002)  # the other has its turn
                found.append(torch.rand(2))

    alone, together = ([[], []] for _ in range(2))
    before = torch.get_rng_state()
    for key, found in enumerate(alone):
        drawn(key, found)
    threads = [threading.Thread(target=drawn, args=given) for given in enumerate(together)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert torch.equal(torch.get_rng_state(), before)
    for mine, same in zip(alone, together, strict=True):
        assert torch.equal(torch.stack(mine), torch.stack(same))


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")  # of the thread that is tested here
def test_a_forked_process_draws_though_a_thread_here_did():
    begun, forked = threading.Event(), threading.Event()

    def draws() -> None:
        with drawing_from(1):
            begun.set()
            forked.wait()

    (other := threading.Thread(target=draws)).start()
    begun.wait()
    process = multiprocessing.get_context("fork").Process(target=_draws)
    process.start()
    process.join(20)
    ended = process.exitcode
    process.kill()
    forked.set()
    other.join()
    assert ended == 0


def _draws() -> None:
    with drawing_from(2):
        torch.rand(1)
