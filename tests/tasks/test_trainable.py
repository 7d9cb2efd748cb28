"""Fewer trained parameters: which they are, where they start, and that every method can be laid over them."""

import ast
import copy
import hashlib
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn
from typer.testing import CliRunner

import narrowcast
from narrowcast import extras
from narrowcast.cli.app import app
from narrowcast.numerics import pool
from narrowcast.rounds import records
from narrowcast.rounds.task import Batch
from narrowcast.runs import run_folder, runner
from narrowcast.runs.config import RunConfig
from narrowcast.tasks import build
from narrowcast.tasks.nets import convnet, mlp, resnet9
from narrowcast.tasks.options import TaskOptions
from narrowcast.tasks.partition import iid
from narrowcast.tasks.torch_task import TorchTask
from narrowcast.tasks.trainable import restrict

FEW = ("biases", "lora")


def options(trainable, **more):
    return TaskOptions(7, trainable=trainable, **more)


def trained(module):
    return {name: p for name, p in module.named_parameters() if p.requires_grad}


def size(module):
    return sum(p.numel() for p in trained(module).values())


def digest(theta):
    return hashlib.sha256(theta.numpy().astype("<f4").tobytes()).hexdigest()[:16]


def task_of(module, shape, **more):
    g = torch.Generator().manual_seed(0)
    x, y = torch.randn(60, *shape, generator=g), torch.randint(0, 10, (60,), generator=g)
    return TorchTask(module, train=(x, y), test=(x, y), clients=iid(60, 12), **more)


def somewhere(task):
    """theta0 and a little noise: at theta0 itself B = 0 hides A."""
    g = torch.Generator().manual_seed(1)
    return task.theta0() + 0.1 * torch.randn(task.layout.size, generator=g)


MODELS = {"mlp": (lambda: mlp(7, 64, 16, 16, 10), (64,)), "conv": (lambda: convnet(7, 4), (1, 28, 28))}
each_model = pytest.mark.parametrize("model", MODELS)


# ---- which parameters


def test_all_is_the_module_as_it_stands():
    module = mlp(7, 64, 16, 16, 10)
    assert restrict(module, options("all")) is module
    assert size(module) == 64 * 16 + 16 + 16 * 16 + 16 + 16 * 10 + 10


def test_biases_are_every_bias_and_the_head():
    assert size(restrict(mlp(7, 64, 16, 16, 10), options("biases"))) == 16 + 16 + 10 + 160
    assert size(restrict(convnet(7, 4), options("biases"))) == 4 + 8 + 10 + 392 * 10
    names = set(trained(restrict(resnet9(7, 2), options("biases"))))
    assert {n for n in names if not n.endswith(".bias")} == {"linear.weight"}
    assert len(names) == 1 + 8


@pytest.mark.parametrize("rank", [1, 4, 9])
def test_lora_has_r_times_inputs_plus_outputs_a_layer(rank):
    few = options("lora", lora_rank=rank)
    assert size(restrict(mlp(7, 64, 16, 16, 10), few)) == rank * ((64 + 16) + (16 + 16) + (16 + 10))
    assert size(restrict(convnet(7, 4), few)) == rank * ((16 + 4) + (4 * 16 + 8) + (392 + 10))
    module = restrict(resnet9(7, 2), few)
    assert all(".lora_" in name for name in trained(module))
    assert len(trained(module)) == 2 * 9


def test_what_the_caller_froze_stays_frozen():
    module = mlp(7, 8, 4, 10)
    module[0].bias.requires_grad_(False)
    assert set(trained(restrict(module, options("biases")))) == {"2.weight", "2.bias"}


def test_layers_are_told_apart_by_their_whole_names():
    """The layer "0" is one, and "1.0", whose name ends like it, is none."""
    module = nn.Sequential(nn.Linear(8, 6), nn.Sequential(nn.ReLU(), nn.Linear(6, 10)))
    names = trained(restrict(module, options("lora")))
    assert {name.partition(".lora_")[0] for name in names} == {"0", "1.1"}


@pytest.mark.parametrize("trainable", FEW)
def test_modules_without_layers_are_refused(trainable):
    with pytest.raises(ValueError, match="LayerNorm has no linear or convolution layer"):
        restrict(nn.LayerNorm(4), options(trainable))
    with pytest.raises(ValueError, match="quadratic has no layers"):
        build("quadratic", options(trainable, width=20))


def test_lora_refuses_a_bare_layer():
    with pytest.raises(ValueError, match=r"a Linear itself: put it into an nn\.Sequential"):
        restrict(nn.Linear(3, 2), options("lora"))


@pytest.mark.parametrize(
    ("bad", "message"),
    [
        ({"trainable": "some"}, "'some': choose one of all, biases, lora"),
        ({"lora_rank": 0}, "at least 1, got 0"),
        ({"lora_alpha": float("inf")}, "alpha > 0, got inf"),
        ({"lora_alpha": 0.0}, r"got 0\.0"),
    ],
)
def test_options_refuse_nonsense(bad, message):
    with pytest.raises(ValueError, match=message):
        TaskOptions(**{"key": 0, **bad})


# ---- where they start


def test_theta0_is_the_same_on_every_machine():
    assert digest(build("digits", options("biases")).theta0()) == "151eaecbb8964e16"
    assert digest(build("digits", options("lora")).theta0()) == "0f2d5966647b66eb"


def test_adapters_start_from_the_key_and_not_from_torch():
    torch.manual_seed(1)
    one = build("digits", options("lora", width=16)).theta0()
    torch.manual_seed(2)
    assert torch.equal(build("digits", options("lora", width=16)).theta0(), one)
    other = build("digits", TaskOptions(8, trainable="lora", width=16)).theta0()
    assert not torch.equal(other, one)


def test_a_has_pefts_variance_and_streams_of_its_own():
    module = restrict(mlp(7, 400, 300, 10), options("lora", lora_rank=20))
    A, B = module[0].lora_A["default"].weight.detach(), module[0].lora_B["default"].weight
    assert A.var() * 400 == pytest.approx(1 / 3, rel=0.05)
    assert not B.any()
    W = mlp(7, 400, 300, 10)[0].weight.detach()[:20]
    assert abs(float(torch.corrcoef(torch.stack([A.flatten(), W.flatten()]))[0, 1])) < 0.05


@each_model
def test_lora_starts_as_the_model_it_adapts(model):
    make, shape = MODELS[model]
    x = torch.randn(5, *shape, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        assert torch.equal(restrict(make(), options("lora"))(x), make()(x))


# ---- what they do


@each_model
def test_lora_is_w_plus_alpha_over_r_b_a(model):
    make, shape = MODELS[model]
    task = task_of(restrict(make(), options("lora", lora_rank=3, lora_alpha=6.0)), shape)
    theta = somewhere(task)
    state, plain = task.state_dict(theta), make().double()
    for name, layer in plain.named_children():
        if isinstance(layer, nn.Linear | nn.Conv2d):
            A, B = (state[f"{name}.lora_{which}.default.weight"].double() for which in "AB")
            low_rank = B.flatten(1) @ A.flatten(1)
            layer.weight.data.add_(6.0 / 3 * low_rank.view_as(layer.weight))
    x = task._train[0]
    with torch.no_grad():
        torch.testing.assert_close(task.module(x).double(), plain(x.double()), rtol=1e-4, atol=1e-4)
        assert not torch.allclose(task.module(x), make()(x), atol=1e-2)


@each_model
def test_gradients_of_biases_are_those_of_the_whole_model(model):
    make, shape = MODELS[model]
    few, whole = task_of(restrict(make(), options("biases")), shape), task_of(make(), shape)
    batch = Batch(np.arange(20), torch.full((20,), 0.05), key=0)
    mine = few.layout.split(few.gradient(few.theta0(), batch)[1])
    theirs = whole.layout.split(whole.gradient(whole.theta0(), batch)[1])
    for name, gradient in mine.items():
        torch.testing.assert_close(gradient, theirs[name])
        assert gradient.any()


@each_model
@pytest.mark.parametrize("trainable", FEW)
def test_gradients_of_many_clients_are_those_of_each(model, trainable):
    make, shape = MODELS[model]
    task = task_of(restrict(make(), options(trainable)), shape)
    theta = somewhere(task)
    batches = [Batch(c, torch.full((5,), 0.2), key=0) for c in task.clients]
    many = [(loss, gradient.clone()) for loss, gradient in task.gradients(theta, batches)]
    assert task._vmap  # together, without falling back to one by one
    assert len(many) == 12
    for batch, (loss, gradient) in zip(batches, many, strict=True):
        one, expected = task.gradient(theta, batch)
        assert loss == pytest.approx(one, rel=1e-5)
        torch.testing.assert_close(gradient, expected, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("trainable", FEW)
def test_gradient_against_finite_differences(trainable):
    """In float64 and so near that no ReLU switches on the way: at 1e-2 one does, and costs 3 %."""
    task = build("digits", options(trainable, width=16))
    theta, batch = somewhere(task), Batch(np.arange(30), torch.full((30,), 1 / 30), key=0)
    direction = torch.randn(task.layout.size, generator=torch.Generator().manual_seed(2))
    slope, h = float(task.gradient(theta, batch)[1] @ direction), 1e-6
    module, (x, y) = copy.deepcopy(task.module).double(), (part[:30] for part in task._train)

    def loss(step):
        there = task.layout.split(theta.double() + step * direction.double())
        outputs = torch.func.functional_call(module, there, (x.double(),))
        return float(nn.functional.cross_entropy(outputs, y))

    assert (loss(h) - loss(-h)) / (2 * h) == pytest.approx(slope, rel=1e-4)


@pytest.mark.parametrize("trainable", FEW)
def test_frozen_weights_take_no_part_in_the_backward_pass(trainable):
    task = build("digits", options(trainable, width=16))
    batch = Batch(np.arange(30), torch.full((30,), 1 / 30), key=0)
    before = {n: p.clone() for n, p in task.module.named_parameters() if not p.requires_grad}
    theta = task.theta0()
    for _ in range(3):
        theta -= 0.1 * task.gradient(theta, batch)[1]
    after = dict(task.module.named_parameters())
    assert before
    assert all(after[n].grad is None and torch.equal(after[n], p) for n, p in before.items())


@pytest.mark.parametrize("trainable", FEW)
def test_digits_learns(trainable):
    task = build("digits", TaskOptions(0, width=64, validation=True, trainable=trainable))
    theta, examples = task.theta0(), len(task._train[1])
    batch = Batch(np.arange(examples), torch.full((examples,), 1 / examples), key=0)
    for _ in range(60):
        theta -= 0.2 * task.gradient(theta, batch)[1]
    assert task.evaluate(theta)["accuracy"] > 0.85


def test_a_chunk_bounds_the_examples_that_are_taken_together(monkeypatch):
    """Adapters are small and the activations behind them are not: memory goes with the examples."""
    module, shape = MODELS["conv"]
    task, together = task_of(module(), shape, chunk=10), []
    taken = task._together
    monkeypatch.setattr(
        task, "_together", lambda theta, some: together.append(len(some)) or taken(theta, some)
    )
    batches = [Batch(c, torch.full((5,), 0.2), key=0) for c in task.clients]
    with pool.using(1):  # here, and not in processes of their own
        assert len(list(task.gradients(task.theta0(), batches))) == 12
    assert together == [2] * 6


# ---- through the command


def command(*args):
    return CliRunner().invoke(app, [str(a) for a in args], env={"COLUMNS": "120"})


SHORT = ["--lr", "1", "--width", "16", "--rounds", "4", "--cohort", "40"]
OWN = {"static": ["--dim", "64"], "topk": ["--k", "20"]}


@pytest.mark.parametrize(
    ("trainable", "method", "parameters"),
    [("lora", "static", 552), ("lora", "topk", 552), ("lora", "uncompressed", 552), ("biases", "topk", 202)],
)
def test_any_method_can_be_laid_over_them(tmp_path, method, trainable, parameters):
    out, weights = tmp_path / "run", tmp_path / "weights.pt"
    run = [
        "run",
        "digits",
        "--method",
        method,
        "--trainable",
        trainable,
        *SHORT,
        *OWN.get(method, []),
        "--out",
        out,
    ]
    done = command(*run)
    assert done.exit_code == 0, done.output
    facts, rows = run_folder.load_facts(out), records.read(out / "records.jsonl")
    assert facts.parameters == parameters
    assert facts.label.endswith("biases" if trainable == "biases" else "lora r=4")
    if method == "uncompressed":
        assert 4 * parameters * 40 <= rows[0].up <= (4 * parameters + 100) * 40
    assert command("export", out, "--to", weights).exit_code == 0
    task, theta = runner.rebuild(out)
    task.module.load_state_dict(torch.load(weights, weights_only=True))
    assert torch.equal(task.buffer(), theta)
    assert not torch.equal(theta, task.theta0())
    assert task.evaluate(theta)["accuracy"] == rows[-1].metrics["accuracy"]


def test_labels_say_what_is_trained():
    config = {"task": "digits", "method": "uncompressed", "rounds": 1}
    assert RunConfig(**config).label == "uncompressed"
    assert RunConfig(**config, trainable="lora", lora_rank=2).label == "uncompressed lora r=2"


# ---- without PEFT


def test_without_peft_the_error_names_the_command(monkeypatch, tmp_path):
    monkeypatch.setattr(extras, "find_spec", lambda name: None if name == "peft" else name)
    with pytest.raises(extras.Missing, match=r"'lora' needs peft: pip install 'narrowcast\[lora\]'"):
        build("digits", options("lora", width=16))
    done = command("run", "digits", "--trainable", "lora", *SHORT, "--out", tmp_path / "run")
    assert done.exit_code == 2
    assert "pip install 'narrowcast[lora]'" in done.output
    assert not (tmp_path / "run").exists()
    assert build("digits", options("biases", width=16)).layout.size == 202


def test_nothing_imports_peft_before_it_is_asked_for():
    """Read from the source: in this process it is imported already, and a new one takes seconds."""
    for path in Path(narrowcast.__file__).parent.rglob("*.py"):
        for node in ast.parse(path.read_text(encoding="utf-8")).body:
            names = [a.name for a in node.names] if isinstance(node, ast.Import) else []
            names += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            if path.name != "huggingface.py":  # the door to Trainer: whoever imports it has transformers
                assert not {"peft", "transformers"} & {name.partition(".")[0] for name in names}, path
