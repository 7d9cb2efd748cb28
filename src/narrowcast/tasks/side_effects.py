"""What a module does beside computing: statistics it keeps, numbers it draws, examples it looks at together.

Nothing but theta is sent, saved and digested. A buffer that training changes would be in no message and in no
file, so a module with such a buffer is refused. Known layers are told by their type when the task is made,
which needs no data: a server refuses what its nodes would. All else is found by trial, in the first step.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import NamedTuple, TypeVar

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm, _NormBase
from torch.nn.modules.dropout import _DropoutNd

from narrowcast.numerics.purposes import Key
from narrowcast.rounds.task import IndexArray

WAY_OUT = (
    "Nothing but parameters is sent. For batch norm in a trained model call nc.freeze_batch_norm(model), "
    "which keeps its running statistics as they are; to train from scratch use nn.GroupNorm"
)
AT_ONCE = 4  # examples of a trial
CLOSE = 1e-4  # two losses of one example, relative to them
Module = TypeVar("Module", bound=nn.Module)


def freeze_batch_norm(module: Module) -> Module:
    """Let batch norm use the running statistics it has, and keep them, in training too; the same module.

    Its scales and shifts are trained as before. `module.train()` leaves these layers as they are, which
    `layer.eval()` does not outlive. Instance norm with running statistics is treated alike.

    >>> import torch, narrowcast as nc
    >>> trained = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.BatchNorm1d(8))
    >>> nc.freeze_batch_norm(trained) is trained, trained.train()[1].training
    (True, False)
    """
    for name, layer in module.named_modules():
        if not isinstance(layer, _NormBase):
            continue
        if layer.running_mean is None and isinstance(layer, _BatchNorm):
            raise ValueError(
                f"{name or type(layer).__name__} has no running statistics to keep "
                "(track_running_stats=False): use nn.GroupNorm in its place"
            )
        if layer.running_mean is not None:
            layer.eval()
            layer.train = partial(_stay, layer)  # type: ignore[method-assign]
    return module


def _stay(layer: _NormBase, mode: bool = True) -> _NormBase:
    return layer


def refuse_statistics(module: nn.Module) -> None:
    """A ValueError for layers that training changes beside their parameters; puts the module in training."""
    module.train()
    for name, layer in module.named_modules():
        if isinstance(layer, _NormBase) and layer.training and layer.running_mean is not None:
            raise ValueError(
                f"{type(layer).__name__} {name or 'itself'} keeps running statistics that training changes "
                f"(layer.eval() does not outlive module.train()). {WAY_OUT}"
            )


def mixes_by_type(module: nn.Module) -> bool:
    """Whether batch norm takes its statistics from the batch: an example's loss depends on the others."""
    return any(
        isinstance(layer, _BatchNorm) and (layer.training or layer.running_mean is None)
        for layer in module.modules()
    )


def draws_by_type(module: nn.Module) -> bool:
    """Whether a layer drops at random."""
    return any(isinstance(layer, _DropoutNd) and layer.p > 0 for layer in module.modules())


@contextmanager
def unchanged_buffers(module: nn.Module) -> Iterator[None]:
    """A ValueError if what happens inside changes a buffer that is part of the module's state.

    Buffers that are not saved (`persistent=False`: caches, tables made on the way) may change as they like.
    """
    before = {name: value.clone() for name, value in _state(module).items()}
    yield
    after = _state(module)
    changed = [name for name, value in before.items() if name not in after or not _equal(after[name], value)]
    for name in changed:
        if name in after and after[name].shape == before[name].shape:
            after[name].copy_(before[name])
    if changed:
        raise ValueError(f"training changes {', '.join(changed[:3])}, which are no parameters. {WAY_OUT}")


def _state(module: nn.Module) -> dict[str, Tensor]:
    parameters = {name for name, _ in module.named_parameters(remove_duplicate=False)}
    return {
        name: v for name, v in module.state_dict().items() if name not in parameters and torch.is_tensor(v)
    }


def _equal(a: Tensor, b: Tensor) -> bool:
    return a.shape == b.shape and bool(((a == b) | ((a != a) & (b != b))).all())


@contextmanager
def drawing_from(key: Key, device: torch.device | None = None) -> Iterator[None]:
    """What torch draws meanwhile, here and on the device, comes from the key; afterwards its generators are
    where they were. torch.manual_seed would seed those of other devices too.

    All threads share the generators, so that one waits for the other; none of the pool's comes here.
    """
    generators = [torch.default_generator, *_generators(device)]
    with _drawing:
        before = [generator.get_state() for generator in generators]
        for generator in generators:
            generator.manual_seed(key)
        try:
            yield
        finally:
            for generator, state in zip(generators, before, strict=True):
                generator.set_state(state)


_drawing = threading.RLock()


def _forget_lock() -> None:
    """Of a forked process: the thread that held it is not there."""
    global _drawing
    _drawing = threading.RLock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_lock)


def _generators(device: torch.device | None) -> list[torch.Generator]:
    """The one of a device that draws by itself."""
    if device is not None and device.type == "cuda":
        torch.cuda.init()
        return [torch.cuda.default_generators[device.index or 0]]
    if device is not None and device.type == "mps":
        return [torch.mps._get_default_mps_generator()]
    return []


def _states(device: torch.device | None) -> list[Tensor]:
    return [generator.get_state() for generator in (torch.default_generator, *_generators(device))]


class Habits(NamedTuple):
    """What a module was seen to do in training."""

    draws: bool  # numbers of torch's generator: dropout, stochastic depth
    mixes: bool  # an example's loss depends on the others of its batch


@torch.no_grad()
def observed(
    module: nn.Module,
    losses: Callable[[IndexArray], Tensor],
    examples: int,
    device: torch.device | None = None,
    close: float = CLOSE,
) -> Habits:
    """By trial: the same example in two batches of one size; `losses` are (B,), of a module in training.
    They differ by up to `close` of themselves where the module does not mix."""
    size = min(AT_ONCE, (examples + 1) // 2)
    among, others = np.arange(size), np.r_[0, size : 2 * size - 1]
    with unchanged_buffers(module):
        with drawing_from(0, device):
            fresh = _states(device)
            here = losses(among)
            draws = not all(map(torch.equal, _states(device), fresh))
        with drawing_from(0, device):
            there = losses(others)
    same = size > 1 and torch.allclose(here[0], there[0], rtol=close, atol=1e-6)
    return Habits(draws or draws_by_type(module), not same or mixes_by_type(module))
