"""DDP's side: gradients come in buckets, and leave them.

A spans all parameters in the model's order, whatever DDP puts in which bucket and however it re-orders them.
So a bucket's gradients are copied to their places in one vector of D numbers and its future is left open; the
last bucket projects, all-reduces, expands, and completes the futures of all.
"""

# No `from __future__ import annotations`: DDP compares the hook's annotations with the types themselves.

import torch
import torch.distributed as dist
import xxhash
from torch import Tensor
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook

from narrowcast.ddp import sums
from narrowcast.ddp.state import IntrinsicState, Waiting
from narrowcast.rounds import devices


def intrinsic_hook(
    state: IntrinsicState,
    bucket: dist.GradBucket,  # type: ignore[name-defined]  # torch does not export it to mypy
) -> torch.futures.Future[torch.Tensor]:
    """For `register_comm_hook`. DDP calls it for every bucket of a step, in their order."""
    device = bucket.buffer().device
    if not state.agreed:
        agree(state, device)
    if state.step < state.warmup:
        state.step += bucket.is_last()
        state.reduced += bucket.buffer().nbytes
        return allreduce_hook(state.group, bucket)
    if bucket.index() == 0:
        state.waiting = []  # a backward pass that failed half-way may have left some
    waiting = collect(state, bucket)
    state.waiting.append(waiting)
    if bucket.is_last():
        finish(state, device)
    return waiting.future


def agree(state: IntrinsicState, device: torch.device) -> None:
    """Once, and after a load: with other settings or at another step A differs, and sums mean nothing."""
    mine = xxhash.xxh3_64_intdigest(repr((state.settings(), state.step)).encode()) >> 1
    both = torch.tensor([mine, -mine], device=device)
    dist.all_reduce(both, dist.ReduceOp.MAX, state.group)
    if both[0] != -both[1]:
        raise RuntimeError(
            f"the workers' IntrinsicStates differ; this one has {state.settings()} and is at step "
            f"{state.step}: give all of them the same arguments, and load checkpoints of the same step"
        )
    if state.bits != sums.PLAIN_BITS:
        sums.packing(state.bits, dist.get_world_size(state.group))  # or an error: too few bits for so many
    devices.ready(state.method, device)
    state.agreed = True


def collect(state: IntrinsicState, bucket: dist.GradBucket) -> Waiting:  # type: ignore[name-defined]
    """Copy a bucket's gradients, of whatever type and strides, to their places in the flat vector."""
    buffer = bucket.buffer()
    if buffer.layout != torch.strided:
        raise ValueError(f"a bucket has {buffer.layout} gradients: build the embedding with sparse=False")
    if state.flat is None:
        state.flat = torch.empty(state.D, device=buffer.device)
    places, gradients = state.layout.split(state.flat), {}
    for p, part in zip(bucket.parameters(), bucket.gradients(), strict=True):
        name, gradient = state.names.get(p), as_laid_out(part, p)
        if name is None or places[name].shape != gradient.shape:
            raise ValueError(
                f"a bucket has a parameter of shape {tuple(gradient.shape)} that the state was not made for: "
                "an IntrinsicState belongs to one model, and is made once the right parameters require "
                "gradients. After copying or unpickling it call attach(model)"
            )
        places[name].copy_(gradient)
        gradients[name] = gradient
    devices: list[int | str | torch.device] = [device] if (device := buffer.device).type != "cpu" else []
    return Waiting(buffer, gradients, torch.futures.Future(devices=devices))


def as_laid_out(part: Tensor, p: Tensor) -> Tensor:
    """A parameter's part of a bucket in the order of its elements.

    `gradients()` views every part as contiguous, but DDP fills it with the parameter's own strides where
    those only permute contiguous memory: channels_last, or a transposed weight.
    """
    by_stride = sorted(range(p.ndim), key=lambda i: -p.stride()[i])
    if p.is_contiguous() or not p.permute(by_stride).is_contiguous():
        return part
    return part.as_strided(p.shape, p.stride(), part.storage_offset())


class Group:
    """The workers of a process group, by its all-reduces, and the bytes that were given to them."""

    def __init__(self, group: dist.ProcessGroup, device: torch.device) -> None:
        self.group, self.device = group, device  # where the gradients are: NCCL takes no other
        self.count, self.rank, self.bytes = dist.get_world_size(group), dist.get_rank(group), 0

    def add(self, x: Tensor) -> Tensor:
        return self._reduced(x, dist.ReduceOp.SUM)

    def most(self, *x: float) -> list[float]:
        found: list[float] = self._reduced(torch.tensor(x), dist.ReduceOp.MAX).tolist()
        return found

    def _reduced(self, x: Tensor, how: dist.ReduceOp.RedOpType) -> Tensor:
        both = x.to(self.device, copy=True)
        dist.all_reduce(both, how, self.group)
        self.bytes += both.nbytes
        return both.cpu()


def finish(state: IntrinsicState, device: torch.device) -> None:
    """All gradients are there: reduce them, put them back, and complete the futures of all buckets."""
    lost = set(state.layout.names).difference(*(waiting.gradients for waiting in state.waiting))
    if lost or state.flat is None:
        raise ValueError(
            f"DDP has no gradients of {', '.join(sorted(lost)[:5])}, which the IntrinsicState was made for: "
            "if they were frozen since, make a new one"
        )

    workers = Group(state.group, device)
    state.reduce(state.flat, workers)
    state.reduced += workers.bytes
    places = state.layout.split(state.flat)
    for waiting in state.waiting:
        for name, gradient in waiting.gradients.items():
            gradient.copy_(places[name])
        waiting.future.set_result(waiting.buffer)
    state.waiting = []
    state.step += 1
