"""One worker of tests/ddp: it runs a part and saves what it saw.

Two of these find each other by a file in FOLDER, so no port is taken. Comparing is left to the test.
"""

# No `from __future__ import annotations`: DDP compares a hook's annotations with the types themselves.

import os
import signal
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel as DDP

from narrowcast.ddp import IntrinsicState, intrinsic_hook
from narrowcast.numerics import pool
from narrowcast.tasks.nets import mlp

WORKERS, EXAMPLES, INPUTS, CLASSES = 2, 12, 10, 4
SIZES, DIM, KEY, RATE, STEPS = (INPUTS, 32, 32, CLASSES), 64, 7, 2.0, 7
MANY_BUCKETS = {"bucket_cap_mb": 0.001}
SCHEDULES: dict[str, dict[str, Any]] = {
    "static": {"refresh": 0},
    "time-varying": {"refresh": 3},
    "k-subspace": {"refresh": 0, "subspaces": 3},
    "k-subspace-time-varying": {"refresh": 4, "subspaces": 3},
}
RESUMED: dict[str, Any] = {"warmup": 2, "refresh": 2, "error_feedback": True, "bits": 5}
KILLED_AT = 4
NARROW = 4  # bits


def data() -> tuple[Tensor, Tensor]:
    """Examples of all workers: rank r has those from r EXAMPLES on."""
    generator = torch.Generator().manual_seed(3)
    x = torch.randn(WORKERS * EXAMPLES, INPUTS, generator=generator)
    return x, torch.randint(CLASSES, (len(x),), generator=generator)


def mine() -> tuple[Tensor, Tensor]:
    first = dist.get_rank() * EXAMPLES
    x, y = data()
    return x[first : first + EXAMPLES], y[first : first + EXAMPLES]


def flat(tensors: Any) -> Tensor:
    return torch.cat([t.detach().reshape(-1) for t in tensors]).clone()


def own_gradient(model: nn.Module, loss: Callable[[nn.Module], Tensor]) -> Tensor:
    """This worker's gradient, without DDP."""
    return flat(torch.autograd.grad(loss(model), list(model.parameters()), materialize_grads=True)).float()


def everyone(t: Tensor) -> Tensor:
    """(workers, ...) of all workers."""
    rows = [torch.empty_like(t) for _ in range(WORKERS)]
    dist.all_gather(rows, t)
    return torch.stack(rows)


def plain_loss(model: nn.Module) -> Tensor:
    x, y = mine()
    return cross_entropy(model(x), y)


def naive(state: IntrinsicState, gradients: Tensor) -> Tensor:
    """(d/D) A A^T mean_w g_w by the dense A of the step to come, (workers, D) -> (D,)."""
    A = state.subspace().dense().double()
    return (state.method.dim / state.D * A @ (A.T @ gradients.double().mean(0))).float()


def train(
    options: dict[str, Any], ddp: dict[str, Any], steps: int = STEPS, momentum: float = 0.0
) -> tuple[Tensor, list[list[str]]]:
    """(theta after the steps, the names in every bucket that was seen)."""
    model = mlp(1, *SIZES)
    state = IntrinsicState(model, key=KEY, **{"dim": DIM} | options)
    wrapped, buckets = DDP(model, **ddp), []

    def hook(state, bucket):
        buckets.append([state.names[p] for p in bucket.parameters()])
        return intrinsic_hook(state, bucket)

    wrapped.register_comm_hook(state, hook)
    optimiser = torch.optim.SGD(model.parameters(), RATE, momentum=momentum)
    for _ in range(steps):
        optimiser.zero_grad()
        plain_loss(wrapped).backward()
        optimiser.step()
    assert state.step == steps
    return flat(model.parameters()), buckets


def schedules() -> dict[str, Any]:
    found: dict[str, Any] = {name: train(options, {})[0] for name, options in SCHEDULES.items()}
    found["momentum"], _ = train({"refresh": 0}, {}, momentum=0.9)
    D = sum(p.numel() for p in mlp(1, *SIZES).parameters())
    found["whole"], _ = train({"dim": D}, {})
    found["warm"], _ = train({"warmup": STEPS}, {})
    return found


def buckets() -> dict[str, Any]:
    ways: dict[str, dict[str, Any]] = {
        "one": {},
        "many": MANY_BUCKETS,
        "views": {**MANY_BUCKETS, "gradient_as_bucket_view": True},
        "static graph": {**MANY_BUCKETS, "static_graph": True},
        "unused": {**MANY_BUCKETS, "find_unused_parameters": True},
        "group": {**MANY_BUCKETS, "process_group": dist.new_group([0, 1])},
    }
    found = {}
    for name, way in ways.items():
        group = {"process_group": way["process_group"]} if "process_group" in way else {}
        found[name] = train({"refresh": 2, "error_feedback": True, **group}, way)
    for name in ("one", "many"):
        found[f"{name}, narrow"] = train(
            {"refresh": 3, "error_feedback": "rounding", "bits": 2.37}, ways[name]
        )
    return found


class Branches(nn.Module):
    """One layer for all, one for worker 0 alone, one for nobody."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.first, self.nobody = (mlp(k, INPUTS, INPUTS) for k in range(3))
        self.head = mlp(3, INPUTS, CLASSES)
        self.frozen = nn.Parameter(torch.zeros(5), requires_grad=False)

    def forward(self, x: Tensor) -> Tensor:
        x = self.body(x)
        return self.head(x + self.first(x) if dist.get_rank() == 0 else x)


def unused() -> dict[str, Any]:
    model = Branches()
    state = IntrinsicState(model, 32)
    wrapped = DDP(model, find_unused_parameters=True, **MANY_BUCKETS)
    wrapped.register_comm_hook(state, intrinsic_hook)
    rows = []
    for _ in range(2):
        model.zero_grad()
        parameters = [p for p in model.parameters() if p.requires_grad]
        own = flat(torch.autograd.grad(plain_loss(model), parameters, materialize_grads=True))
        want = naive(state, everyone(own))
        plain_loss(wrapped).backward()
        got = {n: p.grad for n, p in model.named_parameters() if p.requires_grad}
        rows.append((state.layout.split(want), got))
    return {"rows": rows, "D": state.D}


def one_step(model: nn.Module, loss: Callable[[nn.Module], Tensor], **options: Any) -> dict[str, Any]:
    """(want, got) of one step whose loss is taken by `loss`, also on the bare module."""
    state = IntrinsicState(model, DIM, **options)
    wrapped = DDP(model, **MANY_BUCKETS)
    wrapped.register_comm_hook(state, intrinsic_hook)
    want = naive(state, everyone(own_gradient(model, loss)))
    model.zero_grad()
    loss(wrapped).backward()
    gradients = [p.grad for p in model.parameters()]
    return {"want": want, "got": flat(gradients), "types": [g.dtype for g in gradients], "step": state.step}


def accumulated(model: nn.Module) -> Tensor:
    """Three micro-batches: under DDP the first two are accumulated without synchronising."""
    x, y = mine()
    parts = list(zip(x.chunk(3), y.chunk(3), strict=True))
    if not isinstance(model, DDP):
        return torch.stack([cross_entropy(model(a), b) / 3 for a, b in parts]).sum()
    for a, b in parts[:2]:
        with model.no_sync():
            (cross_entropy(model(a), b) / 3).backward()
    return cross_entropy(model(parts[2][0]), parts[2][1]) / 3


def autocast(model: nn.Module) -> Tensor:
    with torch.autocast("cpu", torch.bfloat16):
        return plain_loss(model)


def half(model: nn.Module) -> Tensor:
    x, y = mine()
    return cross_entropy(model(x.bfloat16()).float(), y)


def channels_last(model: nn.Module) -> Tensor:
    x, y = mine()
    return cross_entropy(model(x[:, :9].reshape(-1, 1, 3, 3)), y)


def kinds_of_steps() -> dict[str, Any]:
    convolutions = nn.Sequential(nn.Conv2d(1, 16, 2), nn.ReLU(), nn.Conv2d(16, CLASSES, 2), nn.Flatten()).to(
        memory_format=torch.channels_last
    )
    return {
        "accumulated": one_step(mlp(1, *SIZES), accumulated),
        "autocast": one_step(mlp(1, *SIZES), autocast),
        "bf16": one_step(mlp(1, *SIZES).bfloat16(), half),
        "channels last": one_step(convolutions, channels_last),
    }


def error_feedback() -> dict[str, Any]:
    """Per step: the own gradient, the error before and after, what was sent, what everybody got."""
    model = mlp(1, *SIZES)
    state = IntrinsicState(model, DIM, key=KEY, error_feedback=True)
    wrapped = DDP(model, **MANY_BUCKETS)
    wrapped.register_comm_hook(state, intrinsic_hook)
    rows = []
    for _ in range(5):
        own, before, A = own_gradient(model, plain_loss), state.error.clone(), state.subspace()
        model.zero_grad()
        plain_loss(wrapped).backward()
        sent = A.expand(A.project(own + before) * (DIM / state.D))
        rows.append([own, before, state.error.clone(), sent, flat(p.grad for p in model.parameters())])
        with torch.no_grad():
            for p in model.parameters():
                p -= 0.1 * p.grad
    return {"rows": rows}


def narrow() -> dict[str, Any]:
    """Per step: everyone's gradient, A (D, d), what everybody got; and the bytes that were reduced."""
    model = mlp(1, *SIZES)
    state = IntrinsicState(model, DIM, key=KEY, bits=NARROW, warmup=1)
    wrapped = DDP(model, **MANY_BUCKETS)
    wrapped.register_comm_hook(state, intrinsic_hook)
    plain_loss(wrapped).backward()
    rows, sent = [], [state.reduced]
    for _ in range(3):
        gradients, A = everyone(own_gradient(model, plain_loss)), state.subspace().dense()
        before = state.reduced
        model.zero_grad()
        plain_loss(wrapped).backward()
        rows.append((gradients, A, flat(p.grad for p in model.parameters())))
        sent.append(state.reduced - before)
        with torch.no_grad():
            for p in model.parameters():
                p -= p.grad
    return {"rows": rows, "sent": sent, "D": state.D}


def overflow() -> dict[str, Any]:
    return {"plain": spoilt(32), "narrow": spoilt(NARROW)}


def spoilt(bits: float) -> list[Any]:
    """Step 1 of worker 1 overflows: (the scaler's scale, whether theta changed, error) of every step."""
    model = mlp(1, *SIZES)
    state = IntrinsicState(model, DIM, error_feedback=True, bits=bits)
    wrapped = DDP(model, **MANY_BUCKETS)
    wrapped.register_comm_hook(state, intrinsic_hook)
    optimiser = torch.optim.SGD(model.parameters(), 0.1)
    scaler = torch.amp.GradScaler("cpu", init_scale=4.0)
    rows = []
    for step in range(3):
        optimiser.zero_grad()
        before = flat(model.parameters())
        factor = float("inf") if step == 1 and dist.get_rank() == 1 else 1.0
        scaler.scale(plain_loss(wrapped) * factor).backward()
        scaler.step(optimiser)
        scaler.update()
        after = flat(model.parameters())
        rows.append((scaler.get_scale(), not torch.equal(before, after), state.error.clone(), after))
    return rows


def two_models() -> dict[str, Any]:
    """One backward pass through two models: their buckets come mixed."""
    models = [mlp(k, *SIZES) for k in (1, 2)]
    states = [IntrinsicState(m, dim) for m, dim in zip(models, (DIM, 32), strict=True)]
    wrapped = [DDP(m, **MANY_BUCKETS) for m in models]
    for w, s in zip(wrapped, states, strict=True):
        w.register_comm_hook(s, intrinsic_hook)
    want = [naive(s, everyone(own_gradient(m, plain_loss))) for m, s in zip(models, states, strict=True)]
    sum(plain_loss(w) for w in wrapped).backward()
    return {"want": want, "got": [flat(p.grad for p in m.parameters()) for m in models]}


def uneven() -> dict[str, Any]:
    return {"plain": joined(32), "narrow": joined(NARROW)}


def joined(bits: float) -> dict[str, Any]:
    """Worker 1 has two batches more than worker 0, under DDP's `join`."""
    model = mlp(1, *SIZES)
    state = IntrinsicState(model, DIM, bits=bits)
    wrapped = DDP(model, **MANY_BUCKETS)
    wrapped.register_comm_hook(state, intrinsic_hook)
    optimiser = torch.optim.SGD(model.parameters(), RATE)
    with wrapped.join():
        for _ in range(3 + 2 * dist.get_rank()):
            optimiser.zero_grad()
            plain_loss(wrapped).backward()
            optimiser.step()
    return {"theta": flat(model.parameters()), "step": state.step}


def refused() -> dict[str, Any]:
    """What the hook says: workers with different keys; a state of another model; a frozen parameter."""

    def said(make: Callable[[nn.Module], tuple[IntrinsicState, nn.Module]]) -> str:
        state, model = make(mlp(1, *SIZES))
        wrapped = DDP(model)
        wrapped.register_comm_hook(state, intrinsic_hook)
        try:
            plain_loss(wrapped).backward()
        except Exception as error:
            return f"{type(error).__name__}: {error}"
        return "nothing"

    def frozen(model: nn.Module) -> tuple[IntrinsicState, nn.Module]:
        state = IntrinsicState(model, DIM)
        next(iter(model.parameters())).requires_grad_(False)
        return state, model

    return {
        "keys": said(lambda model: (IntrinsicState(model, DIM, key=dist.get_rank()), model)),
        "other": said(lambda model: (IntrinsicState(mlp(1, *SIZES), DIM), model)),
        "frozen": said(frozen),
        "bits": said(lambda model: (IntrinsicState(model, DIM, bits=2), model)),
    }


def resumable(folder: Path, start: int, save: bool, kill: bool) -> Tensor:
    """Steps `start` to STEPS with momentum, from the checkpoint if start > 0; a checkpoint a step."""
    model = mlp(1 if start == 0 else 99, *SIZES)
    state = IntrinsicState(model, DIM, key=KEY, **RESUMED)
    optimiser = torch.optim.SGD(model.parameters(), 0.5, momentum=0.9)
    file = folder / f"checkpoint-{dist.get_rank()}.pt"
    if start:
        saved = torch.load(file, weights_only=True)
        model.load_state_dict(saved["model"])
        optimiser.load_state_dict(saved["optimiser"])
        state.load_state_dict(saved["hook"])
        assert state.step == start
    wrapped = DDP(model, **MANY_BUCKETS)

    def hook(state, bucket):
        if kill and state.step == KILLED_AT and bucket.is_last():
            dist.barrier()
            os.kill(os.getpid(), signal.SIGKILL)
        return intrinsic_hook(state, bucket)

    wrapped.register_comm_hook(state, hook)
    for _ in range(start, STEPS):
        optimiser.zero_grad()
        plain_loss(wrapped).backward()
        optimiser.step()
        if save:
            parts = {"model": model, "optimiser": optimiser, "hook": state}
            torch.save({name: part.state_dict() for name, part in parts.items()}, file)
    return flat(model.parameters())


def main(part: str, rank: int, folder: Path) -> None:
    warnings.filterwarnings("error", category=DeprecationWarning, module="narrowcast")
    torch.set_num_threads(1)
    pool.set_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder / part}", rank=rank, world_size=WORKERS)
    if part == "all":
        parts = (
            schedules, buckets, unused, kinds_of_steps, error_feedback, narrow, overflow, two_models, uneven,
            refused,
        )  # fmt: skip
        found = {p.__name__: p() for p in parts}
        found["undisturbed"] = resumable(folder, 0, save=False, kill=False)
        torch.save(found, folder / f"all-{rank}.pt")
        resumable(folder, 0, save=True, kill=True)
    torch.save(resumable(folder, KILLED_AT, save=False, kill=False), folder / f"resumed-{rank}.pt")
    dist.destroy_process_group()
    # A process that had a DDP keeps Gloo's threads after this (they are in /proc/self/task): torch joins them
    # with the group's last reference. One that is late, on a busy machine, would drop a tensor and so ask for
    # the GIL while the interpreter ends: "terminate called without an active exception". So it ends here.
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)
