"""The built-in tasks: sizes, gradients, theta0, and data files that may be absent, broken or hostile."""

import ast
import copy
import gzip
import hashlib
import io
import os
import pickle
import struct
import zipfile
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from torch import nn

from narrowcast.numerics import keyed
from narrowcast.rounds.task import Batch
from narrowcast.tasks import (
    TASKS,
    build,
    cifar10,
    cifar10_files,
    digits,
    fashion_mnist,
    files,
    table,
)
from narrowcast.tasks.files import DataError
from narrowcast.tasks.init import initialise
from narrowcast.tasks.judging import cross_entropy
from narrowcast.tasks.nets import RESIDUAL_SCALE, ResNet9, convnet, mlp, resnet9
from narrowcast.tasks.options import TaskOptions, hold_out, split
from narrowcast.tasks.partition import iid
from narrowcast.tasks.torch_task import TorchTask
from places import SHARED

CIFAR = SHARED / "cifar10"
needs_mosaics = pytest.mark.skipif(
    not (CIFAR / "test.webp").exists(), reason=f"no CIFAR-10 mosaics in {CIFAR}"
)
needs_small = pytest.mark.skipif(
    not (CIFAR / "cifar10_small.npz").exists(), reason=f"no small CIFAR-10 in {CIFAR}"
)
needs_fashion = pytest.mark.skipif(
    not fashion_mnist.SYSTEM.exists(),
    reason=f"no Fashion-MNIST in {fashion_mnist.SYSTEM}: apt-get install it",
)


@pytest.fixture(autouse=True)
def _surroundings(monkeypatch):
    """One torch thread, since tests run side by side, and no data folder from outside."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    monkeypatch.delenv("NARROWCAST_DATA", raising=False)
    yield
    torch.set_num_threads(threads)


def batch_of(clients, key=1):
    """The mean over all examples of these clients."""
    index = np.concatenate(list(clients))
    return Batch(index, torch.full((len(index),), 1 / len(index)), key)


def digest(theta):
    return hashlib.sha256(theta.numpy().astype("<f4").tobytes()).hexdigest()[:16]


def small_tasks():
    yield build("digits", TaskOptions(3, width=16))
    yield build("quadratic", TaskOptions(3, width=50))


# ---- the table and the options


def test_importing_the_table_imports_no_task():
    """Read from the source: in this process everything is imported already, and a new one takes seconds."""
    body = ast.parse(Path(table.__file__).read_text()).body
    imported = {node.module for node in body if isinstance(node, ast.ImportFrom)}
    assert imported == {"__future__", "narrowcast.registry", "typing"}
    assert not any(isinstance(node, ast.Import) for node in body)


def test_an_unknown_task_is_refused_with_those_there_are():
    with pytest.raises(
        ValueError,
        match=r"unknown task 'emnist' .did you mean 'mnist'.*: choose one of digits, fashion-mnist, fash",
    ):
        build("emnist", TaskOptions(0))


@pytest.mark.parametrize(
    ("bad", "message"),
    [
        ({"key": -1}, "64 bits, got -1"),
        ({"key": 1 << 64}, "64 bits"),
        ({"clients": 0}, "clients=0"),
        ({"partition": "shards"}, "'shards': choose one of class, iid, dirichlet, natural"),
        ({"alpha": float("nan")}, "got nan"),
        ({"alpha": 0.0}, "alpha > 0"),
        ({"width": -4}, "got -4"),
        ({"width": 0}, "at least 1"),
    ],
)
def test_options_refuse_nonsense(bad, message):
    with pytest.raises(ValueError, match=message):
        TaskOptions(**{"key": 0, **bad})


@pytest.mark.parametrize("kind", ["class", "iid", "dirichlet"])
def test_split_obeys_the_options(kind):
    labels = np.arange(100) % 4
    cut = split(TaskOptions(0, clients=10, partition=kind), labels)
    assert len(cut) == 10
    assert np.array_equal(np.sort(cut.order), np.arange(100))
    assert (kind == "class") == all(len(set(labels[c])) == 1 for c in cut)


def test_split_by_natural_owners():
    options = TaskOptions(0, partition="natural")
    assert len(split(options, [0, 1, 1], ids=["al", "bo", "al"])) == 2
    with pytest.raises(ValueError, match="no natural owners"):
        split(options, [0, 1, 1])
    with pytest.raises(ValueError, match="2 natural clients, fewer than 3"):
        split(TaskOptions(0, partition="natural", clients=3), [0, 1, 1], ids=[1, 2, 1])


def test_too_many_clients_are_refused():
    with pytest.raises(ValueError, match="1437 examples cannot be cut into 2000 clients"):
        build("digits", TaskOptions(0, clients=2000))


def test_validation_holds_out_a_keyed_tenth_of_train_and_never_test():
    train, test = (torch.arange(100), torch.arange(100)), (torch.arange(7) + 1000, torch.arange(7))
    assert hold_out(TaskOptions(0), train, test) == (train, test)
    (x, _), (held, _) = hold_out(TaskOptions(0, validation=True), train, test)
    assert len(held) == 10
    assert sorted([*x.tolist(), *held.tolist()]) == list(range(100))
    assert hold_out(TaskOptions(1, validation=True), train, test)[1][0].tolist() != held.tolist()
    tiny = (torch.arange(9), torch.arange(9))
    with pytest.raises(ValueError, match="a tenth of 9 examples is none"):
        hold_out(TaskOptions(0, validation=True), tiny, test)


# ---- sizes, theta0, gradients


def test_parameter_counts():
    assert sum(p.numel() for p in mlp(0, 784, 128, 128, 10).parameters()) == 118_282
    assert sum(p.numel() for p in convnet(0).parameters()) == 24_186
    assert sum(p.numel() for p in ResNet9(64).parameters()) == 6_570_880
    assert sum(p.numel() for p in ResNet9(16).parameters()) == 412_384


def test_digits_are_those_of_scikit_learn(monkeypatch):
    ours = digits._images_and_labels()
    monkeypatch.setattr(digits.Path, "exists", lambda path: False)
    for mine, theirs in zip(ours, digits._images_and_labels(), strict=True):
        assert mine.dtype == theirs.dtype
        assert np.array_equal(mine, theirs)


def test_digits_has_287_clients_of_one_class():
    task = build("digits", TaskOptions(0))
    assert (task.layout.size, len(task.clients)) == (301_066, 287)
    train, test = digits.load()
    assert (len(train[1]), len(test[1])) == (1437, 360)
    assert abs(train[0].mean()) < 1e-6
    assert abs(train[0].std() - 1) < 1e-3
    assert all(len(set(train[1][c].tolist())) == 1 for c in task.clients)
    assert {len(c) for c in task.clients} <= {4, 5, 6}


def test_theta0_is_the_same_on_every_machine():
    assert digest(build("digits", TaskOptions(7)).theta0()) == "11dee4ecbf8305dc"
    assert (
        digest(torch.cat([p.detach().reshape(-1) for p in resnet9(7, 16).parameters()])) == "7f04f9ca6b8e2f07"
    )
    assert digest(torch.cat([p.detach().reshape(-1) for p in convnet(7).parameters()])) == "15a4ad3a48846ccb"
    task = build("quadratic", TaskOptions(7))
    assert not task.theta0().any()
    assert digest(task.centre.float()) == "079e2b87b67fcac0"


def test_theta0_is_a_copy_and_stays_as_it_was():
    for task in small_tasks():
        start = task.theta0()
        task.buffer().add_(1.0)
        task.theta0().fill_(9.0)
        assert torch.equal(task.theta0(), start)


def test_initialise_has_hes_variance_and_no_bias():
    layer = nn.Conv2d(50, 200, 3)
    initialise(layer, 5)
    assert abs(float(layer.weight.detach().var()) * 450 / 2 - 1) < 0.02
    assert not layer.bias.any()


def test_metric_is_among_what_evaluate_returns():
    for task in small_tasks():
        found = task.evaluate(task.theta0())
        assert {task.metric, "loss"} <= set(found)
        assert task.higher_is_better == (task.metric == "accuracy")


def test_gradient_against_finite_differences():
    for task in small_tasks():
        batch = batch_of(task.clients[:3])
        theta = task.theta0() + 0.01 * torch.from_numpy(
            keyed.normals(1, keyed.Purpose.NORMALS, task.layout.size)
        )
        direction = torch.from_numpy(keyed.normals(2, keyed.Purpose.NORMALS, task.layout.size))
        direction /= direction.norm()
        loss, gradient = task.gradient(theta, batch)
        slope, h = float(gradient @ direction), 1e-2
        measured = (task.loss(theta + h * direction, batch) - task.loss(theta - h * direction, batch)) / (
            2 * h
        )
        assert loss == pytest.approx(task.loss(theta, batch), rel=1e-6)
        assert measured == pytest.approx(slope, rel=2e-2, abs=1e-3), task.name


def test_gradient_of_a_cohort_is_the_weighted_sum_over_its_clients():
    for task in small_tasks():
        theta, clients = task.theta0(), task.clients[:4]
        total = torch.zeros_like(theta)
        for c in clients:
            total += task.gradient(theta, batch_of([c]))[1] / 4
        index = np.concatenate(list(clients))
        weight = torch.cat([torch.full((len(c),), 1 / (4 * len(c))) for c in clients])
        _, together = task.gradient(theta, Batch(index, weight, 1))
        assert torch.allclose(together, total, atol=1e-5 * float(total.abs().max()))


def test_chunks_do_not_change_the_gradient():
    task = build("digits", TaskOptions(3, width=16))
    batch = batch_of(task.clients[:8])
    _, whole = task.gradient(task.theta0(), batch)
    whole = whole.clone()
    task.chunk = 7
    assert torch.allclose(task.gradient(task.theta0(), batch)[1], whole, atol=1e-6)


def test_digits_learns():
    task = build("digits", TaskOptions(0, width=64, validation=True))
    theta, batch = task.theta0(), batch_of(task.clients)
    for _ in range(40):
        theta -= 0.1 * task.gradient(theta, batch)[1]
    assert task.evaluate(theta)["accuracy"] > 0.85


def torch_task(module=None, **changes):
    x, y = torch.randn(6, 2, generator=torch.Generator().manual_seed(0)), torch.tensor([0, 1, 0, 1, 0, 1])
    settings = {"train": (x, y), "test": (x, y), "clients": [np.arange(3), np.arange(3, 6)], **changes}
    return TorchTask(module or nn.Linear(2, 2), **settings)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"train": (torch.zeros(5, 2), torch.zeros(6))}, "train has 5 inputs and 6 targets"),
        ({"test": (torch.zeros(0, 2), torch.zeros(0))}, "test has 0 inputs"),
        ({"test": (torch.full((6, 2), torch.nan), torch.zeros(6))}, "test's inputs have NaN"),
        ({"train": (torch.zeros(6, 2), torch.full((6,), torch.inf))}, "train's targets have NaN or inf"),
        ({"clients": [np.arange(3), np.array([6])]}, "client 1 has 1 examples"),
        ({"clients": [np.array([], np.int64)]}, "client 0 has 0 examples"),
        ({"clients": [np.array([-1])]}, r"all of 0 \.\. 5"),
        ({"clients": [[0, 1], []]}, "client 1 has 0 examples"),
        ({"chunk": 0}, "at once, got 0"),
        ({"clients": []}, r"list of arrays, .* got \[\]"),
        ({"clients": {0: np.arange(6)}}, r"list of arrays, .* got \{0"),
        ({"clients": [np.arange(6) < 3]}, r"client 0 is bool of shape \(6,\): .* np\.flatnonzero"),
        ({"clients": [np.arange(3), np.arange(3.0)]}, "client 1 is float64"),
        ({"clients": np.arange(6)}, r"client 0 is int64 of shape \(\)"),
    ],
)
def test_a_task_refuses_examples_that_do_not_fit(changes, message):
    with pytest.raises(ValueError, match=message):
        torch_task(**changes)


@pytest.mark.parametrize(
    "form",
    [list, lambda index: range(index[0], index[-1] + 1), torch.from_numpy, lambda index: index.astype("u1")],
    ids=["lists", "ranges", "tensors", "bytes"],
)
def test_clients_are_what_makes_an_array_of_integers(form):
    plain = torch_task()
    task = torch_task(clients=[form(index) for index in plain.clients])
    for index, same in zip(task.clients, plain.clients, strict=True):
        assert index.dtype == np.int64
        assert np.array_equal(index, same)
    one, other = (made.gradient(plain.theta0(), batch_of(made.clients))[1] for made in (task, plain))
    assert torch.equal(one, other)


def test_a_loss_that_reduces_is_refused():
    task = torch_task(loss=nn.functional.cross_entropy)
    with pytest.raises(ValueError, match='reduction="none"'):
        task.loss(task.theta0(), batch_of(task.clients))


class Returns(nn.Module):
    """A linear layer, and what is made of its outputs."""

    def __init__(self, made, outputs=2):
        super().__init__()
        self.layer, self.made = nn.Linear(2, outputs), made

    def forward(self, x):
        return self.made(self.layer(x))


def squared(outputs, targets):
    return (outputs.reshape(len(targets), -1).mean(1) - targets.reshape(len(targets), -1).mean(1)) ** 2


FLOATS = torch.randn(6, 2), torch.randn(6)


@pytest.mark.parametrize(
    ("module", "changes", "message"),
    [
        (Returns(lambda y: (y, y.sum())), {"loss": lambda y, t: squared(y[0], t)}, "one tensor, got tuple"),
        (Returns(lambda y: {"y": y}), {"loss": lambda y, t: squared(y["y"], t)}, "one tensor, got dict"),
        (Returns(lambda y: y[:, 0]), {}, r"\(3,\) and .* give metrics= and metric="),
        (Returns(lambda y: y, 1), {}, r"\(3, 1\) and \(3,\) torch\.int64"),
        (Returns(lambda y: y), {"train": FLOATS, "test": FLOATS}, r"integers, got .* torch\.float32"),
    ],
    ids=["tuple", "dict", "numbers", "one column", "float targets"],
)
def test_outputs_that_could_not_be_evaluated_are_refused_before_the_first_step(module, changes, message):
    task = torch_task(module, **{"loss": squared, **changes})
    with pytest.raises(ValueError, match=message):
        task.gradient(task.theta0(), batch_of(task.clients))


def test_a_loss_that_depends_on_no_parameter_is_refused():
    task = torch_task(Returns(torch.detach))
    with pytest.raises(ValueError, match="depends on no parameter"):
        task.gradient(task.theta0(), batch_of(task.clients))


def test_a_regression_has_metrics_of_its_own():
    task = torch_task(
        Returns(lambda y: y[:, 0]), loss=squared, train=FLOATS, test=FLOATS,
        metrics=lambda outputs, targets: {}, metric="loss", higher_is_better=False,
    )  # fmt: skip
    task.gradient(task.theta0(), batch_of(task.clients))
    assert set(task.evaluate(task.theta0())) == {"loss"}


def test_prepare_acts_after_augment_and_in_evaluation():
    seen = []
    task = torch_task(
        augment=lambda x, index, key: seen.append("augment") or x,
        prepare=lambda x: seen.append("prepare") or x,
    )
    assert task.separable  # found by trial, which takes examples too
    seen.clear()
    task.gradient(task.theta0(), batch_of(task.clients))
    task.evaluate(task.theta0())
    assert seen == ["augment", "prepare", "prepare"]


@pytest.mark.parametrize("where", ["module", "prepare"])
def test_what_works_in_place_leaves_the_callers_examples_alone(where):
    """A module whose first layer does, and a prepare that does."""
    x, y = torch.randn(6, 2, generator=torch.Generator().manual_seed(0)), torch.tensor([0, 1, 0, 1, 0, 1])
    first = nn.ReLU(inplace=True) if where == "module" else nn.Identity()
    task = TorchTask(
        nn.Sequential(first, nn.Linear(2, 2)),
        train=(x.clone(), y),
        test=(x.clone(), y),
        clients=[np.arange(3), np.arange(3, 6)],
        prepare=(lambda x: x.mul_(0.5)) if where == "prepare" else None,
        chunk=4,
    )
    once = task.evaluate(task.theta0())
    assert task._stacked
    assert task.evaluate(task.theta0()) == once
    assert all(torch.equal(stored, x) for stored, _ in (task._train, task._test))


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda task: pickle.loads(pickle.dumps(task))])
def test_a_copied_task_trains_its_own_model(copied):
    task = torch_task()
    other, theta, batch = copied(task), task.theta0() + 1, batch_of(task.clients)
    assert torch.equal(other.theta0(), task.theta0())
    expected = task.gradient(theta, batch)[1]
    assert torch.equal(other.gradient(theta, batch)[1], expected)
    assert torch.equal(other.module.weight.detach().reshape(-1), theta[:4])
    assert other.evaluate(theta) == task.evaluate(theta)


def test_weights_that_are_assigned_later_are_no_start():
    """As those that are copied are none: theta0 is what the module had when the task was made."""
    task = torch_task()
    start = task.theta0()
    task.module.load_state_dict({"weight": torch.ones(2, 2), "bias": torch.ones(2)}, assign=True)
    assert torch.equal(task.theta0(), start)
    task.module.weight = nn.Parameter(torch.ones(3, 2))
    with pytest.raises(ValueError, match=r"weight was \(2, 2\).* and is \(3, 2\)"):
        task.theta0()


@pytest.mark.parametrize("walks", [False, True], ids=["from outside", "in its own memory"])
def test_under_autocast_the_weights_are_those_of_theta(walks):
    """Autocast keeps what it has cast of a parameter, and does not see that theta was written."""
    task = torch_task()
    batch, theta = batch_of(task.clients), task.theta0()
    with torch.autocast("cpu", torch.bfloat16):
        task.gradient(theta, batch)
        later = task.buffer().copy_(theta + 1) if walks else theta + 1
        found = task.gradient(later, batch)[1].clone(), task.loss(later, batch), task.evaluate(later)
    with torch.autocast("cpu", torch.bfloat16):
        expected = task.gradient(theta + 1, batch)[1], task.loss(theta + 1, batch), task.evaluate(theta + 1)
    assert torch.equal(found[0], expected[0])
    assert found[1:] == expected[1:]


# ---- the quadratic


def test_quadratic_optimum_is_where_the_mean_gradient_vanishes():
    task = build("quadratic", TaskOptions(3, width=200))
    everyone = batch_of(task.clients)
    at_best = task.centre.float()
    loss, gradient = task.gradient(at_best, everyone)
    assert gradient.abs().max() < 1e-5
    assert loss == pytest.approx(task.optimum, rel=1e-5)
    assert task.evaluate(at_best)["excess"] < 1e-10
    start = task.evaluate(task.theta0())
    assert start["loss"] == pytest.approx(task.loss(task.theta0(), everyone), rel=1e-5)
    assert start["excess"] == pytest.approx(start["loss"] - task.optimum)


def test_quadratic_clients_disagree_about_the_optimum():
    task = build("quadratic", TaskOptions(3, width=200))
    own = [task.gradient(task.centre.float(), batch_of([c]))[1].norm() for c in task.clients[:10]]
    assert min(own) > 0.1
    iid = build("quadratic", TaskOptions(3, width=200, partition="iid"))
    mixed = [iid.gradient(iid.centre.float(), batch_of([c]))[1].norm() for c in iid.clients]
    single = [task.gradient(task.centre.float(), batch_of([c]))[1].norm() for c in task.clients]
    assert np.mean(mixed) < 0.8 * np.mean(single)


def test_quadratic_descends_to_its_optimum():
    task = build("quadratic", TaskOptions(3, width=20))
    theta, everyone = task.theta0(), batch_of(task.clients)
    for _ in range(400):
        theta -= task.gradient(theta, everyone)[1]
    assert task.evaluate(theta)["excess"] < 1e-6 * task.evaluate(task.theta0())["excess"]


# ---- Fashion-MNIST and IDX files


def idx(array):
    array = np.asarray(array, np.uint8)
    return bytes((0, 0, 8, array.ndim)) + struct.pack(f">{array.ndim}I", *array.shape) + array.tobytes()


def write_fashion(folder, packed, train=60, test=10):
    folder.mkdir(parents=True, exist_ok=True)
    for part, n in (("train", train), ("t10k", test)):
        images = np.arange(n * 784).reshape(n, 28, 28) % 251
        for kind, data in (("images-idx3", idx(images)), ("labels-idx1", idx(np.arange(n) % 10))):
            name = f"{part}-{kind}-ubyte"
            if packed:
                (folder / f"{name}.gz").write_bytes(gzip.compress(data))
            else:
                (folder / name).write_bytes(data)
    return folder


@pytest.mark.parametrize("packed", [True, False])
def test_fashion_mnist_reads_what_was_written(tmp_path, packed):
    write_fashion(tmp_path / "fashion-mnist", packed)
    task = build("fashion-mnist", TaskOptions(0, data=tmp_path))
    assert (task.layout.size, len(task.clients), task.name) == (118_282, 12, "fashion-mnist")
    train, test = fashion_mnist.load(tmp_path / "fashion-mnist")
    assert train[0].dtype == torch.uint8
    assert train[0][2, 3] == (2 * 784 + 3) % 251
    assert test[1].tolist() == list(range(10))
    task.gradient(task.theta0(), batch_of(task.clients))
    assert 0 <= task.evaluate(task.theta0())["accuracy"] <= 1


def test_the_environment_names_the_data_folder(tmp_path, monkeypatch):
    write_fashion(tmp_path, packed=False)
    monkeypatch.setenv("NARROWCAST_DATA", str(tmp_path))
    assert fashion_mnist.find(TaskOptions(0)) == tmp_path


def test_missing_data_says_what_is_needed_and_how_to_get_it(tmp_path, monkeypatch):
    monkeypatch.setattr(fashion_mnist, "SYSTEM", tmp_path / "absent")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    with pytest.raises(FileNotFoundError, match="apt-get install dataset-fashion-mnist"):
        build("fashion-mnist", TaskOptions(0))
    with pytest.raises(FileNotFoundError, match=rf"Searched: {tmp_path}, {tmp_path}/fashion-mnist\."):
        build("fashion-mnist", TaskOptions(0, data=tmp_path))
    with pytest.raises(FileNotFoundError, match=r"Searched: .*cache/narrowcast.*cifar-10-binary"):
        build("cifar10", TaskOptions(0))
    with pytest.raises(FileNotFoundError, match=r"cifar10_small\.npz"):
        build("cifar10-small", TaskOptions(0, data=tmp_path))


GOOD = idx(np.zeros((3, 28, 28)))


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "truncated: 0 of 4"),
        (GOOD[:-1], "truncated: 2351 of 2352"),
        (GOOD + b"x", "goes on after"),
        (b"\0\0\x0d\3" + GOOD[4:], "begins with 00000d03"),
        (idx(np.zeros(3)), "begins with 00000801"),
        (idx(np.zeros((3, 28, 27))), r"shape \(3, 28, 27\)"),
        (idx(np.zeros((0, 28, 28))), "n >= 1"),
        (bytes((0, 0, 8, 3)) + struct.pack(">3I", 2**32 - 1, 28, 28), "more than the"),
        (bytes((0, 0, 8, 3)) + struct.pack(">3I", 600_000, 28, 28), "truncated"),
    ],
)
@pytest.mark.parametrize("packed", [True, False])
def test_hostile_idx_files_are_refused(tmp_path, data, message, packed):
    path = tmp_path / ("x.gz" if packed else "x")
    path.write_bytes(gzip.compress(data) if packed else data)
    with pytest.raises(DataError, match=message):
        files.read_idx(path, (28, 28))


@pytest.mark.parametrize(
    "damage", [lambda b: b[:-9], lambda b: b"no gzip", lambda b: b[:40] + b"\xff" * 9 + b[49:]]
)
def test_damaged_gzip_is_refused(tmp_path, damage):
    path = tmp_path / "x.gz"
    path.write_bytes(damage(gzip.compress(idx(np.arange(2352).reshape(3, 28, 28) % 251))))
    with pytest.raises(DataError, match=r"x\.gz"):
        files.read_idx(path, (28, 28))


def test_labels_must_fit_their_images(tmp_path):
    write_fashion(tmp_path, packed=False)
    labels = tmp_path / "t10k-labels-idx1-ubyte"
    labels.write_bytes(idx([1, 2]))
    with pytest.raises(DataError, match="2 labels for 10 images"):
        build("fashion-mnist", TaskOptions(0, data=tmp_path))
    labels.write_bytes(idx(np.arange(10) + 1))
    with pytest.raises(DataError, match="label 10"):
        build("fashion-mnist", TaskOptions(0, data=tmp_path))


@needs_fashion
def test_the_real_fashion_mnist():
    task = build("fashion-mnist", TaskOptions(0))
    assert (task.layout.size, len(task.clients)) == (118_282, 12_000)
    train, test = fashion_mnist.load(fashion_mnist.SYSTEM)
    assert (len(train[0]), len(test[0])) == (60_000, 10_000)
    x = fashion_mnist.normalise(train[0][:20_000])
    assert abs(x.mean()) < 0.02
    assert abs(x.std() - 1) < 0.02
    labels = train[1].numpy()
    assert all(len(c) == 5 and len(set(labels[c])) == 1 for c in task.clients[::100])


@needs_fashion
def test_the_convolutional_net_has_the_same_clients_and_learns():
    task, other = (build(name, TaskOptions(0)) for name in ("fashion-mnist-conv", "fashion-mnist"))
    assert (task.layout.size, len(task.clients)) == (24_186, 12_000)
    assert all(np.array_equal(task.clients[i], other.clients[i]) for i in range(0, 12_000, 500))
    assert build("fashion-mnist-conv", TaskOptions(0, width=8)).layout.size == 10_050
    theta, batch = task.theta0(), batch_of(task.clients[:60])
    before = task.loss(theta, batch)
    for _ in range(15):
        theta -= 0.05 * task.gradient(theta, batch)[1]
    assert task.loss(theta, batch) < before / 2


def test_the_convolutional_net_takes_many_clients_at_once():
    x, y = torch.randint(0, 256, (20, 784), dtype=torch.uint8), torch.arange(20) % 10
    task = TorchTask(
        convnet(1, 4), train=(x, y), test=(x, y), clients=iid(20, 4), prepare=fashion_mnist.pictures
    )
    batches = [Batch(c, torch.full((5,), 0.2), key=0) for c in task.clients]
    many = [gradient.clone() for _, gradient in task.gradients(task.theta0(), batches)]
    assert task._vmap
    for batch, gradient in zip(batches, many, strict=True):
        _, expected = task.gradient(task.theta0(), batch)
        torch.testing.assert_close(gradient, expected, rtol=1e-4, atol=1e-5)


# ---- CIFAR-10: formats


IMAGES = (np.arange(4 * 3072) * 7 % 253).astype(np.uint8).reshape(4, 3, 32, 32)
LABELS = [3, 9, 0, 1]


def binary_batch():
    return b"".join(bytes([y]) + x.tobytes() for x, y in zip(IMAGES, LABELS, strict=True))


def test_binary_batches(tmp_path):
    path = tmp_path / "data_batch_1.bin"
    path.write_bytes(binary_batch())
    images, labels = cifar10_files.read_binary(path)
    assert np.array_equal(images, IMAGES)
    assert labels.tolist() == LABELS
    for data, message in (
        (binary_batch()[:-1], "records of 3073 bytes"),
        (b"", "has 0 bytes"),
        (b"\x0a" + binary_batch()[1:], "label 10"),
    ):
        path.write_bytes(data)
        with pytest.raises(DataError, match=message):
            cifar10_files.read_binary(path)


BATCHES = [*(f"data_batch_{i}" for i in range(1, 6)), "test_batch"]


def test_cifar10_from_binary_batches(tmp_path):
    for name in BATCHES:
        (tmp_path / f"{name}.bin").write_bytes(binary_batch())
    task = build("cifar10", TaskOptions(0, data=tmp_path, width=2, clients=10))
    train, test = cifar10.load(*cifar10.find(TaskOptions(0, data=tmp_path)))
    assert train[0].shape == (20, 3, 32, 32)
    assert torch.equal(test[0], torch.from_numpy(IMAGES))
    assert task.name == "cifar10"
    assert len(task.clients) == 10
    (tmp_path / "test_batch.bin").unlink()
    with pytest.raises(FileNotFoundError, match=r"data_batch_1\.bin"):
        build("cifar10", TaskOptions(0, data=tmp_path))


def test_pickled_batches_are_not_read(tmp_path):
    """Nothing bounds what a pickle asks for: 1 MB took 2 GB. The word says which file to fetch instead."""
    for name in BATCHES:
        (tmp_path / name).write_bytes(pickle.dumps({b"data": IMAGES.reshape(4, 3072), b"labels": LABELS}))
    with pytest.raises(FileNotFoundError, match=r"cifar-10-binary\.tar\.gz .*pickled batches are not read"):
        build("cifar10", TaskOptions(0, data=tmp_path))


def mosaic(path, size=3200, mode="RGB", form="PNG"):
    picture = np.zeros((size, size, 3), np.uint8)
    picture[32:64, 64:96, 1] = 200  # the image in row 1, column 2: number 102
    Image.fromarray(picture).convert(mode).save(path, form, compress_level=1)


def test_mosaics_are_cut_row_by_row(tmp_path):
    mosaic(tmp_path / "m.png")
    images = cifar10_files.read_mosaic(tmp_path / "m.png")
    assert images.shape == (10_000, 3, 32, 32)
    assert (images[102, 1] == 200).all()
    assert images.sum(dtype=np.int64) == 200 * 1024


def test_hostile_mosaics_are_refused(tmp_path):
    path = tmp_path / "m.webp"
    mosaic(path, size=64)
    with pytest.raises(DataError, match=r"is \(64, 64\) RGB, needed \(3200, 3200\) RGB"):
        cifar10_files.read_mosaic(path)
    mosaic(path, mode="L")
    with pytest.raises(DataError, match=r"\(3200, 3200\) L"):
        cifar10_files.read_mosaic(path)
    mosaic(path)
    path.write_bytes(path.read_bytes()[:-2000])
    with pytest.raises(DataError, match=r"m\.webp"):
        cifar10_files.read_mosaic(path)
    path.write_bytes(b"not a picture")
    with pytest.raises(DataError, match=r"m\.webp is not a mosaic"):
        cifar10_files.read_mosaic(path)


def npz(path, **arrays):
    np.savez(path, **arrays)
    return path


class Runs:
    """Unpickled by pickle.load, this makes a file."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return os.mkdir, (str(self.path),)


def test_npz_arrays_are_read_without_pickle(tmp_path):
    path = npz(
        tmp_path / "a.npz", y=np.arange(5, dtype=np.uint8), x=np.array([Runs(tmp_path / "proof")], object)
    )
    assert files.read_npz(path, "y", ()).tolist() == list(range(5))
    with pytest.raises(DataError, match="'x' is object"):
        files.read_npz(path, "x", ())
    with pytest.raises(DataError, match=r"no array 'z', only y\.npy, x\.npy"):
        files.read_npz(path, "z", ())
    with pytest.raises(DataError, match=r"shape \(5,\), needed uint8"):
        files.read_npz(path, "y", (32, 32, 3))
    assert not (tmp_path / "proof").exists()


def test_hostile_npz_files_are_refused(tmp_path):
    path = npz(tmp_path / "a.npz", y=np.arange(200, dtype=np.uint8))
    good = path.read_bytes()
    claim = good.replace(b"(200,)", b"(900,)")
    flipped = bytearray(good)
    flipped[good.index(bytes(range(50, 60)))] ^= 1
    for data in (good[: len(good) // 2], claim, bytes(flipped), b"PK", b""):
        path.write_bytes(data)
        with pytest.raises(DataError, match=r"a\.npz"):
            files.read_npz(path, "y", ())
    header = io.BytesIO()
    np.lib.format.write_array_header_1_0(header, {"descr": "|u1", "fortran_order": False, "shape": (10**15,)})
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("y.npy", header.getvalue())
    with pytest.raises(DataError, match="claims 1000000000000000 bytes"):
        files.read_npz(path, "y", ())


@needs_small
def test_the_real_small_cifar10():
    task = build("cifar10-small", TaskOptions(0, data=SHARED, width=4))
    assert (len(task.clients), task.name) == (1000, "cifar10-small")
    train, test = cifar10.load(CIFAR, cifar10_files.SMALL)
    assert train[0].shape == (5000, 3, 32, 32)
    assert torch.bincount(test[1]).tolist() == [100] * 10
    assert set(task.evaluate(task.theta0())) == {"accuracy", "loss"}


@needs_mosaics
def test_a_real_mosaic_has_the_published_colours():
    images, labels = cifar10_files.MOSAICS.load(CIFAR, "test")
    assert images.shape == (10_000, 3, 32, 32)
    assert np.bincount(labels).tolist() == [1000] * 10
    colours = cifar10.normalise(torch.from_numpy(images[:2000]))
    assert colours.mean((0, 2, 3)).abs().max() < 0.05
    assert (colours.std((0, 2, 3)) - 1).abs().max() < 0.05


# ---- CIFAR-10: augmentation and model


def augmented_naively(image, word):
    """One picture, one step after the other."""
    padded = np.pad(image, ((0, 0), (4, 4), (4, 4)), mode="reflect")
    down, right = (word & 0x7FFF) * 9 >> 15, (word >> 15 & 0x7FFF) * 9 >> 15
    crop = padded[:, down : down + 32, right : right + 32]
    return crop[:, :, ::-1] if word >> 31 else crop


def test_augmentation_is_a_reflected_crop_and_a_mirror():
    index = np.array([17, 3, 40_000, 5, 6, 7, 8, 9])
    images = np.random.default_rng(0).integers(0, 256, (len(index), 3, 32, 32), np.uint8)
    out = cifar10.augment(torch.from_numpy(images), torch.from_numpy(index), key=9)
    words = keyed.words(9, keyed.Purpose.AUGMENT, 40_001)
    for picture, image, i in zip(out, images, index, strict=True):
        assert np.array_equal(picture, augmented_naively(image, int(words[i])))


def test_the_same_key_and_index_give_the_same_picture_in_any_batch():
    images = torch.from_numpy(IMAGES)
    index = torch.tensor([4, 90, 2, 7])
    whole = cifar10.augment(images, index, 5)
    for n in range(4):
        assert torch.equal(cifar10.augment(images[n : n + 1], index[n : n + 1], 5)[0], whole[n])
    assert not torch.equal(cifar10.augment(images, index, 6), whole)


def test_crops_and_mirrors_are_uniform():
    ramp = torch.arange(32, dtype=torch.uint8).expand(1, 32, 32)
    both = torch.cat([ramp, ramp.mT]).expand(4000, 2, 32, 32)
    out = cifar10.augment(both, torch.arange(4000), 1).int()
    mirrored = out[:, 0, 0, 10] > out[:, 0, 0, 11]
    assert 0.45 < mirrored.float().mean() < 0.55
    counts = torch.bincount(out[:, 1, 10, 0] - 6, minlength=9)  # row 10 of the crop was row 6 .. 14
    assert len(counts) == 9
    assert (counts / 4000 - 1 / 9).abs().max() < 0.03


def test_resnet9_gradient_is_the_sum_over_clients_under_augmentation():
    images = torch.from_numpy(IMAGES)
    clients = [np.array([0, 1]), np.array([2, 3])]
    targets = torch.tensor(LABELS)
    task = TorchTask(
        resnet9(0, 4),
        train=(images, targets),
        test=(images, targets),
        clients=clients,
        augment=cifar10.augment,
        prepare=cifar10.normalise,
    )
    theta = task.theta0()
    apart = sum(task.gradient(theta, batch_of([c], key=8))[1].clone() / 2 for c in clients)
    together = task.gradient(theta, batch_of(clients, key=8))[1]
    assert torch.allclose(together, apart, atol=1e-5 * float(apart.abs().max()))
    assert float(together.norm()) > 0


def test_resnet9_starts_near_the_loss_of_guessing_and_scales_its_residuals():
    x = cifar10.normalise(torch.from_numpy(IMAGES))
    model = resnet9(1, 16)
    with torch.no_grad():
        loss = float(cross_entropy(model(x), torch.tensor(LABELS)).mean())
    assert abs(loss - np.log(10)) < 1.0
    ratio = float(model.residual3.last.weight.detach().std() / model.residual3.first.weight.detach().std())
    assert ratio == pytest.approx(RESIDUAL_SCALE, rel=0.05)


@pytest.mark.parametrize("name", TASKS)
def test_every_name_in_the_table_builds_or_says_what_it_lacks(name, tmp_path):
    options = TaskOptions(0, data=tmp_path, width=4)
    if name in ("digits", "quadratic"):
        assert build(name, options).name == name
    else:
        with pytest.raises(FileNotFoundError, match="To get it:"):
            build(name, options)


# Gradients of many clients at once.


class ByHand(torch.nn.Module):
    """Asks for a number, which vmap refuses."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(64, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        outputs = self.layer(x)
        return outputs if outputs.sum().item() else outputs + 1


def test_a_loss_that_mixes_examples_never_mixes_clients():
    """A plain stack of layers goes through its quick products only where clients can share a batch."""

    def contrast(outputs, targets):
        return torch.nn.functional.cross_entropy(outputs - outputs.mean(0), targets, reduction="none")

    x, y = torch.randn(40, 64), torch.arange(40) % 10
    task = TorchTask(stack(), contrast, train=(x, y), test=(x, y), clients=iid(40, 8))
    theta, batches = task.theta0(), [Batch(c, torch.full((5,), 0.2), key=0) for c in task.clients]
    together = [v.clone() for _, v in task.gradients(theta, batches)]
    walked = [end.clone() for _, end in task.walk(theta, [[batch] for batch in batches], 1.0, 0.0)]
    for batch, v, end in zip(batches, together, walked, strict=True):
        expected = task.gradient(theta, batch)[1]
        torch.testing.assert_close(v, expected, rtol=1e-4, atol=1e-6)
        torch.testing.assert_close(theta - end, expected, rtol=1e-4, atol=1e-5)


def stack() -> torch.nn.Module:
    layers = [torch.nn.Linear(64, 32), torch.nn.Tanh(), torch.nn.Linear(32, 20, bias=False), torch.nn.GELU()]
    return torch.nn.Sequential(torch.nn.Sequential(*layers), torch.nn.Linear(20, 10))


@pytest.mark.parametrize(
    "module",
    [
        lambda: torch.nn.Linear(64, 10),
        stack,
        lambda: nn.Sequential(stack(), nn.Softmax(1)),
        ByHand,
    ],
    ids=["one layer", "factors", "vmap", "loop"],
)
def test_gradients_of_many_batches_are_those_of_each(module, monkeypatch):
    x, y = torch.randn(200, 64), torch.randint(0, 10, (200,))
    task = TorchTask(module(), train=(x, y), test=(x, y), clients=iid(200, 10))
    theta = task.theta0()
    sizes = [3] * 70 + [2] * 5 + [4] + [3] * 2  # more than one chunk, several sizes, one alone
    starts = np.cumsum([0, *sizes]) % 190
    batches = [Batch(np.arange(s, s + n), torch.rand(n), key=0) for s, n in zip(starts, sizes, strict=False)]
    assert task._stacked == (module is stack or type(task.module) is nn.Linear)
    many = [(loss, gradient.clone()) for loss, gradient in task.gradients(theta, batches)]
    assert len(many) == len(batches)
    monkeypatch.setattr("narrowcast.tasks.stacks.CACHE_AT_ONCE", 7 * 4 * theta.numel())
    rows = [(losses, rows.clone()) for losses, rows in task.gradient_rows(theta, batches)]
    assert [loss for losses, _ in rows for loss in losses] == [loss for loss, _ in many]
    assert torch.equal(torch.cat([each for _, each in rows]), torch.stack([v for _, v in many]))
    for batch, (loss, gradient) in zip(batches, many, strict=True):
        one, expected = task.gradient(theta, batch)
        assert loss == pytest.approx(one, rel=1e-5)
        torch.testing.assert_close(gradient, expected, rtol=1e-4, atol=1e-6)
