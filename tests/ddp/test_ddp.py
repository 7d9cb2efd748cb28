"""The laws of the DDP hook: two gloo processes train what the method objects train, whatever the buckets.

Two pairs of processes do all the work (tests/ddp_worker.py); the second goes on where the first was killed.
"""

from __future__ import annotations

import copy
import pickle
import runpy
import signal
import subprocess
import sys

import numpy as np
import pytest
import torch
import torch.distributed as dist
from torch import nn

import children
import ddp_worker as worker
from fitting import made
from narrowcast.ddp import IntrinsicState, hook
from narrowcast.methods import RoundInfo
from narrowcast.methods.optimisers import Momentum
from narrowcast.rounds.plan import Plan
from narrowcast.rounds.simulator import Simulation
from narrowcast.rounds.task import Batch
from narrowcast.tasks.nets import mlp
from narrowcast.tasks.torch_task import TorchTask
from narrowcast.wire import messages as wire
from places import EXAMPLES

pytestmark = children.GROUP
PATIENCE = 600
EXAMPLE = EXAMPLES / "ddp.py"


def pair(part, folder):
    """The exit codes of two workers."""
    logs = [folder / f"{part}-{rank}.log" for rank in range(2)]
    started = [children.start(worker.main, part, rank, folder, log=log) for rank, log in enumerate(logs)]
    codes = children.codes(started, PATIENCE)
    return codes, "\n".join(log.read_text()[-3000:] for log in logs)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("ddp")


@pytest.fixture(scope="module")
def found(folder):
    """What both workers saw."""
    codes, said = pair("all", folder)
    assert codes == [-signal.SIGKILL] * 2, said  # the last thing they do is to be killed
    return [torch.load(folder / f"all-{rank}.pt", weights_only=False) for rank in range(2)]


def task():
    x, y = worker.data()
    clients = list(np.arange(len(y)).reshape(worker.WORKERS, -1))
    return TorchTask(mlp(1, *worker.SIZES), train=(x, y), test=(x, y), clients=clients)


def simulated(name, **options):
    """Theta of the simulator with two clients, who come in every round."""
    options = {"dim": worker.DIM, "key": worker.KEY, "refresh": 3, **options}
    simulation = Simulation(
        task(), made(name, **options), Plan(cohort=2, lr=worker.RATE, rounds=worker.STEPS)
    )
    list(simulation)
    return simulation.theta


def by_turns(name, **options):
    """Theta of the method objects, when all clients take subspace t mod K in round t."""
    t, m = task(), made(name, dim=worker.DIM, key=worker.KEY, **options)
    server = m.server(t.theta0(), t.layout)
    for number in range(worker.STEPS):
        theta, acc, k = m.theta(server), m.zero(server), number % m.subspaces
        for client in t.clients:
            v = t.gradient(theta, Batch(client, torch.full((len(client),), 1 / len(client)), 0))[1]
            coordinates = m.matrix(v.numel(), server.stage, k).project(v)
            acc = m.add(acc, wire.payload([wire.block(coordinates)], stage=server.stage, route=k), 1.0)
        server = m.step(server, acc, RoundInfo(number, 0, False, worker.RATE))
    return m.theta(server)


def close(a, b, tolerance=2e-6):
    """Equal within float32's rounding, in length, relative to b."""
    return float((a - b).norm()) <= tolerance * float(b.norm())


@pytest.mark.parametrize("name", ["static", "time-varying"])
def test_two_workers_train_the_simulators_theta(found, name):
    theta = found[0]["schedules"][name]
    assert torch.equal(theta, found[1]["schedules"][name])
    assert close(theta, simulated(name))
    assert close(simulated(name), by_turns(name, refresh=3))  # the next test's twin is the simulator too
    assert not close(theta, task().theta0(), 0.01)


@pytest.mark.parametrize("name", ["k-subspace", "k-subspace-time-varying"])
def test_k_subspaces_in_turn_are_those_of_the_method(found, name):
    options = worker.SCHEDULES[name]
    theta = found[0]["schedules"][name]
    assert close(theta, by_turns(name, **options))
    assert not close(theta, by_turns(name, **{**options, "subspaces": 2}), 1e-3)


def test_momentum_on_theta_is_momentum_on_static_coordinates(found):
    theta = simulated("static", optimiser=Momentum(0.9))
    assert close(found[0]["schedules"]["momentum"], theta, 1e-5)


def test_with_d_equal_to_D_or_in_warm_up_nothing_is_lost(found):
    theta = simulated("uncompressed")
    assert close(found[0]["schedules"]["whole"], theta, 1e-5)
    assert close(found[0]["schedules"]["warm"], theta)


def test_buckets_change_nothing(found):
    for rank in range(2):
        runs = found[rank]["buckets"]
        (one, seen), (_, many) = runs["one"], runs["many"]
        assert {len(names) for names in seen} == {6}
        # Reality check: DDP did rebuild its buckets after the first step, in another order.
        assert many[0] != many[1]
        assert len(many) > worker.STEPS
        narrow = runs["one, narrow"][0]
        assert not torch.equal(narrow, one)
        for name, (theta, _) in runs.items():
            assert torch.equal(theta, narrow if "narrow" in name else one), name
    assert torch.equal(*(found[rank]["buckets"]["one, narrow"][0] for rank in range(2)))


def test_unused_parameters_count_as_zero_and_those_of_nobody_stay_without_gradient(found):
    for rank in range(2):
        rows = found[rank]["unused"]["rows"]
        assert found[rank]["unused"]["D"] == 3 * 110 + 44  # the frozen parameter is left out
        for want, got in rows:
            assert {name for name, g in got.items() if g is None} == {"nobody.0.weight", "nobody.0.bias"}
            for name, g in got.items():
                if g is not None:
                    assert close(g, want[name], 1e-5), name


@pytest.mark.parametrize(
    ("name", "tolerance", "dtype"),
    [
        ("accumulated", 1e-5, torch.float32),
        ("autocast", 1e-5, torch.float32),
        ("bf16", 2**-8, torch.bfloat16),
        ("channels last", 1e-5, torch.float32),
    ],
)
def test_a_step_is_the_naive_one(found, name, tolerance, dtype):
    for rank in range(2):
        row = found[rank]["kinds_of_steps"][name]
        assert row["step"] == 1
        assert set(row["types"]) == {dtype}
        assert float(row["want"].norm()) > 0
        assert close(row["got"].float(), row["want"], tolerance)
    assert torch.equal(*(found[rank]["kinds_of_steps"][name]["got"] for rank in range(2)))


def test_sent_and_kept_is_the_gradient_and_what_was_kept_before(found):
    both = [found[rank]["error_feedback"]["rows"] for rank in range(2)]
    for row, other in zip(*both, strict=True):
        for own, before, after, sent, _ in (row, other):
            assert close(sent + after, own + before, 1e-6)
        assert close(row[4], (row[3] + other[3]) / 2, 1e-5)
        assert torch.equal(row[4], other[4])
    applied = sum(row[4] for row in both[0])
    kept = (both[0][-1][2] + both[1][-1][2]) / 2
    given = sum((row[0] + other[0]) / 2 for row, other in zip(*both, strict=True))
    assert close(applied + kept, given, 1e-5)
    assert float(kept.norm()) > 0.1 * float(given.norm())


def test_narrow_numbers_are_within_half_a_step_and_counted_as_reduced(found):
    """The step of the lattice is max_w |A^T g_w| / 3 with 4 bits and two workers."""
    first, second = (found[rank]["narrow"] for rank in range(2))
    for (gradients, A, got), (_, _, other) in zip(first["rows"], second["rows"], strict=True):
        assert torch.equal(got, other)
        x = gradients @ A
        scale = worker.DIM / first["D"]
        near = torch.linalg.lstsq(A, got[:, None]).solution[:, 0] / scale
        error = (near - x.mean(0)).abs()
        assert float(error.max()) <= float(x.abs().max()) / 3 / 2 * 1.001
        assert float(error.max()) > float(x.abs().max()) / 3 / 20  # it is the lattice that was used
    assert first["sent"] == second["sent"] == [4 * first["D"], *[4 + worker.DIM // 2] * 3]


@pytest.mark.parametrize("bits", ["plain", "narrow"])
def test_an_overflow_is_skipped_by_all_and_leaves_the_error(found, bits):
    for rank in range(2):
        (scale, moved, error, _), (lower, skipped, same, _), (_, again, later, theta) = found[rank][
            "overflow"
        ][bits]
        assert moved
        assert again
        assert not skipped
        assert lower < scale
        assert torch.equal(error, same)
        assert torch.isfinite(later).all()
        assert not torch.equal(later, same)
        assert torch.isfinite(theta).all()
    assert torch.equal(*(found[rank]["overflow"][bits][-1][3] for rank in range(2)))


def test_two_models_in_one_backward_pass(found):
    for rank in range(2):
        parts = found[rank]["two_models"]
        for want, got in zip(parts["want"], parts["got"], strict=True):
            assert close(got, want, 1e-5)


@pytest.mark.parametrize("bits", ["plain", "narrow"])
def test_join_with_uneven_inputs(found, bits):
    first, last = (found[rank]["uneven"][bits] for rank in range(2))
    assert first["step"] == last["step"] == 5
    assert torch.equal(first["theta"], last["theta"])


def test_the_hook_refuses_what_cannot_be_right(found):
    for rank in range(2):
        said = found[rank]["refused"]
        assert f"'key': {rank}" in said["keys"]
        assert "same arguments" in said["keys"]
        assert "belongs to one model" in said["other"]
        assert "0.weight" in said["frozen"]
        assert "frozen since" in said["frozen"]
        assert "give bits=2.37 or more" in said["bits"]


def test_killed_and_resumed_is_undisturbed_bit_for_bit(found, folder):
    codes, said = pair("resume", folder)
    assert codes == [0, 0], said
    for rank in range(2):
        assert torch.equal(torch.load(folder / f"resumed-{rank}.pt"), found[rank]["undisturbed"])


# ---- one process, no DDP


class Bucket:
    """What the hook uses of a GradBucket."""

    def __init__(self, index, last, parameters, gradients):
        self._parameters, self._index, self._last = parameters, index, last
        self._buffer = torch.cat([g.reshape(-1) for g in gradients])
        parts = self._buffer.split([g.numel() for g in gradients])
        self._gradients = [part.view(g.shape) for part, g in zip(parts, gradients, strict=True)]

    def index(self):
        return self._index

    def is_last(self):
        return self._last

    def buffer(self):
        return self._buffer

    def parameters(self):
        return self._parameters

    def gradients(self):
        return self._gradients


@pytest.fixture
def alone():
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


def test_futures_stay_open_until_the_last_bucket(alone):
    model = mlp(1, 6, 8, 3)
    state = IntrinsicState(model, 16)
    a, b, *rest = model.parameters()
    g = [torch.randn(p.shape) for p in (a, b, *rest)]
    A = state.subspace()
    want = A.expand(A.project(torch.cat([t.reshape(-1) for t in g])) * (16 / state.D))
    lost = hook.intrinsic_hook(state, Bucket(0, False, [a], [g[0]]))  # a backward pass that failed
    first = hook.intrinsic_hook(state, Bucket(0, False, rest, g[2:]))
    assert not first.done()
    assert state.step == 0
    last = hook.intrinsic_hook(state, Bucket(1, True, [b, a], [g[1], g[0]]))
    assert first.done()
    assert last.done()
    assert not lost.done()
    assert state.step == 1
    got = torch.cat([last.value()[b.numel() :], last.value()[: b.numel()], first.value()])
    assert torch.equal(got, want)


def test_schedule_of_subspaces():
    def keys(**options):
        state, seen = IntrinsicState(mlp(1, 6, 8, 3), 16, warmup=2, **options), []
        for state.step in range(2, 14):
            seen.append(state.subspace().key)
        return seen

    static, turns, both = keys(refresh=0), keys(refresh=0, subspaces=3), keys(refresh=6, subspaces=3)
    assert len(set(static)) == 1
    assert turns == turns[:3] * 4
    assert len(set(turns)) == 3
    assert both == both[:3] * 2 + both[6:9] * 2
    assert len(set(both)) == 6
    assert len(set(keys(refresh=1))) == 12
    assert len(set(keys(refresh=4))) == 3


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"dim": 10_000}, "dim 10000 exceeds the model's 83 trainable numbers"),
        ({"dim": 0}, "dim >= 1"),
        ({"dim": 8, "refresh": "epoch"}, r"refresh=len\(loader\)"),
        ({"dim": 8, "refresh": -1}, "refresh"),
        ({"dim": 8, "warmup": -1}, "numbers of steps"),
        ({"dim": 8, "kind": "round"}, "unknown kind"),
        ({"dim": 8, "bits": 1}, "1.6 to 16, or 32"),
        ({"dim": 8, "error_feedback": "all"}, "True, False or 'rounding', got 'all'"),
        ({"dim": 8, "error_feedback": "rounding", "refresh": 9}, "got bits=32"),
        ({"dim": 8, "error_feedback": "rounding", "bits": 4}, "an A that stays"),
        ({"dim": 8, "error_feedback": True, "refresh": 0}, "never sent"),
        ({"dim": 8, "error_feedback": True, "unbiased": True}, "unbiased=False"),
        ({"dim": 8, "error_feedback": True, "kind": "fastfood"}, "fastfood"),
    ],
)
def test_settings_that_cannot_work_are_refused(options, said):
    with pytest.raises(ValueError, match=said):
        IntrinsicState(mlp(1, 6, 8, 3), **options)


def test_frozen_parameters_are_left_out_and_complex_ones_refused():
    model = mlp(1, 6, 8, 3)
    model[0].weight.requires_grad_(False)
    assert IntrinsicState(model, 8).D == 83 - 48
    model.odd = nn.Parameter(torch.zeros(2, dtype=torch.complex64))
    with pytest.raises(ValueError, match=r"odd \(torch.complex64\)"):
        IntrinsicState(model, 8)


class Alone:
    """One worker."""

    count, rank = 1, 0

    def add(self, x):
        return x.clone()

    def most(self, *x):
        return list(x)


def test_what_rounding_took_away_is_sent_until_the_next_A():
    """What was applied and what is kept add up to the gradients' numbers; a copy goes on alike."""

    def made():
        return IntrinsicState(mlp(1, 6, 8, 3), 16, bits=1.6, refresh=5, error_feedback="rounding")

    state = made()
    scale, applied, given = 16 / state.D, torch.zeros(16), torch.zeros(16)
    for state.step in range(12):
        A = state.subspace()
        g = torch.randn(state.D, generator=torch.Generator().manual_seed(state.step))
        if state.step % 5 == 0:  # another A: nothing is left of what was kept
            applied, given = torch.zeros(16), torch.zeros(16)
        given += A.project(g)
        state.reduce(g, Alone())
        applied += torch.linalg.lstsq(A.dense(), g[:, None]).solution[:, 0] / scale
        assert state.error.shape == (16,)
        assert float(state.error.norm()) > 0
        assert torch.allclose(applied + state.error, given, atol=1e-4)
    other, more = made(), [torch.ones(state.D), torch.ones(state.D)]
    other.load_state_dict(state.state_dict())
    for each, g in zip((state, other), more, strict=True):
        each.step += 1
        each.reduce(g, Alone())
    assert torch.equal(*more)
    assert torch.equal(state.error, other.error)


def stepped():
    """A state some steps on, with an error."""
    model = mlp(1, 6, 8, 3)
    state = IntrinsicState(model, 16, key=2**64 - 1, error_feedback=True)
    for seed in range(3):
        state.reduce(torch.randn(state.D, generator=torch.Generator().manual_seed(seed)), Alone())
        state.step += 1
    return model, state


@pytest.mark.parametrize("way", [copy.deepcopy, lambda s: pickle.loads(pickle.dumps(s))])
def test_a_copy_goes_on_alike_once_it_has_a_model(way, alone):
    model, state = stepped()
    state.process_group = dist.group.WORLD
    other = way(state)
    assert other.process_group is None
    bucket = [list(model.parameters()), [torch.ones(p.shape) for p in model.parameters()]]
    with pytest.raises(ValueError, match="attach"):
        hook.intrinsic_hook(other, Bucket(0, True, *bucket))
    with pytest.raises(ValueError, match="make a new IntrinsicState"):
        other.attach(mlp(1, 6, 9, 3))
    other.attach(model)
    results = [hook.intrinsic_hook(s, Bucket(0, True, *bucket)).value() for s in (state, other)]
    assert torch.equal(*results)
    assert torch.equal(state.error, other.error)
    assert state.step == other.step == 4


def test_state_dict_loads_as_weights_only_and_is_checked(tmp_path):
    model, state = stepped()
    torch.save(state.state_dict(), tmp_path / "state.pt")
    saved = torch.load(tmp_path / "state.pt", weights_only=True)
    fresh = IntrinsicState(model, 16, key=2**64 - 1, error_feedback=True)
    fresh.load_state_dict(saved)
    assert fresh.step == 3
    assert torch.equal(fresh.error, state.error)
    assert float(state.error.norm()) > 0
    assert fresh.error.data_ptr() != saved["error"].data_ptr()
    with pytest.raises(ValueError, match="dim = 16, this state 8"):
        IntrinsicState(model, 8, key=2**64 - 1).load_state_dict(saved)
    with pytest.raises(ValueError, match=r"bits = 32.0, this state 4.0"):
        IntrinsicState(model, 16, key=2**64 - 1, bits=4).load_state_dict(saved)
    fresh.load_state_dict({name: value for name, value in saved.items() if name != "bits"})  # an older one
    with pytest.raises(ValueError, match="layout"):
        IntrinsicState(mlp(1, 8, 6, 3), 16, key=2**64 - 1).load_state_dict(saved)
    with pytest.raises(ValueError, match="that of worker 5"):
        fresh.load_state_dict({**saved, "rank": 5})
    fresh.load_state_dict({name: value for name, value in saved.items() if name != "error"})
    assert not fresh.error.any()


def test_sparse_gradients_are_refused(alone):
    model = nn.Embedding(9, 4)
    state = IntrinsicState(model, 4)
    bucket = Bucket(0, True, [model.weight], [model.weight.detach()])
    bucket._buffer = bucket._buffer.to_sparse()
    with pytest.raises(ValueError, match="sparse=False"):
        hook.intrinsic_hook(state, bucket)


def test_the_example_trains_with_one_worker(alone, capsys):
    runpy.run_path(str(EXAMPLE))["train"]()
    _, accuracy, _, steps, *_ = capsys.readouterr().out.split()
    assert float(accuracy) > 0.9
    assert int(steps) == 450


@pytest.mark.slow
def test_the_example_starts_its_workers():
    done = subprocess.run([sys.executable, str(EXAMPLE)], capture_output=True, text=True, check=True)
    assert "after 230 steps of 8192 bytes" in done.stdout
