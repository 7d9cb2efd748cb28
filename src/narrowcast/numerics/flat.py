"""A module's trainable parameters and gradients, each as one contiguous vector, without copies.

The parameters become views of `theta` and their gradients views of `grad`: writing theta changes the model,
and a backward pass fills grad. `state_dict` and `load_state_dict` go on working, since they copy in place.
What takes parameters out of that memory is undone when theta is next loaded, and theta's values count:
load_state_dict(assign=True), module.double().float(), a second FlatParameters of the same module.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise

import msgspec
import numpy as np
import torch
from torch import Tensor, nn

from narrowcast.numerics import pool
from narrowcast.numerics.kernels import magnitudes


class Layout(msgspec.Struct, frozen=True):
    """Names and shapes of the trainable parameters, in the order in which they lie in theta.

    >>> import torch, narrowcast as nc
    >>> layout = nc.Layout(("weight", "bias"), ((2, 3), (2,)))
    >>> layout.size, {name: tuple(part.shape) for name, part in layout.split(torch.zeros(8)).items()}
    (8, {'weight': (2, 3), 'bias': (2,)})
    """

    names: tuple[str, ...]
    shapes: tuple[tuple[int, ...], ...]

    @property
    def size(self) -> int:
        """D."""
        return sum(math.prod(shape) for shape in self.shapes)

    def split(self, theta: Tensor) -> dict[str, Tensor]:
        """The vector as named tensors: views, not copies."""
        parts = torch.split(theta, [math.prod(shape) for shape in self.shapes])
        return {n: p.view(s) for n, p, s in zip(self.names, parts, self.shapes, strict=True)}


def to_bytes(vector: Tensor) -> bytes:
    """A float32 vector as its bytes."""
    return vector.detach().contiguous().cpu().numpy().tobytes()


def from_bytes(data: bytes) -> Tensor:
    """The float32 vector of these bytes, in memory of its own."""
    return torch.from_numpy(np.frombuffer(data, np.float32).copy())


def same_bits(a: Tensor, b: Tensor) -> bool:
    """Whether digests of the two are equal: -0.0 is not 0.0."""
    return torch.equal(a.view(torch.int32), b.view(torch.int32))


def all_finite(numbers: Tensor) -> bool:
    """Whether there is no NaN and no infinity."""
    return math.isfinite(largest(numbers))


def largest(numbers: Tensor) -> float:
    """max_i |x_i|, infinite where there is a NaN: finite if and only if all numbers are.

    One pass, and nothing to keep: torch.isfinite makes masks, and takes far longer on a large model.
    """
    if not numbers.numel():
        return 0.0
    if numbers.dtype == torch.float32 and numbers.device.type == "cpu" and numbers.is_contiguous():
        words = numbers.detach().numpy().reshape(-1).view(np.uint32)
        tops = np.zeros(-(-words.size // magnitudes.BLOCK), np.uint32)
        pool.run(magnitudes.largest, len(tops), tops, words, grain=8)
        return magnitude(int(tops.max()))
    low, high = map(float, torch.aminmax(numbers))
    return max(-low, high) if math.isfinite(low) and math.isfinite(high) else math.inf


def magnitude(word: int) -> float:
    """The number that `kernels.magnitudes` means by this word."""
    found = float(np.uint32(word >> 1).view(np.float32))
    return found if math.isfinite(found) else math.inf


class FlatParameters:
    """theta and grad of a module, (D,) each. Tied weights count once, frozen parameters are left alone.

    >>> import torch, narrowcast as nc
    >>> module = torch.nn.Linear(3, 2)
    >>> flat = nc.FlatParameters(module)
    >>> flat.load(torch.ones(8))
    >>> module.bias.tolist()
    [1.0, 1.0]
    """

    def __init__(self, module: nn.Module) -> None:
        named = [(n, p) for n, p in module.named_parameters() if p.requires_grad]
        if not any(isinstance(p, nn.parameter.UninitializedParameter) or p.numel() for _, p in named):
            raise ValueError(
                f"{type(module).__name__} has no trainable parameters: nothing could be sent. "
                "Set requires_grad on those to train"
            )
        _refuse_unfit(named)
        self.module = module
        self.layout = Layout(tuple(n for n, _ in named), tuple(tuple(p.shape) for _, p in named))
        self.theta = torch.cat([p.detach().reshape(-1) for _, p in named])
        self.grad = torch.zeros_like(self.theta)
        self._tied = tied(module)
        self._attach([p for _, p in named])

    def __getstate__(self) -> nn.Module:
        """A copy is made of the module's copy, whose parameters are no views any more."""
        return self.module

    def __setstate__(self, module: nn.Module) -> None:
        FlatParameters.__init__(self, module)

    def _attach(self, parameters: list[nn.Parameter]) -> None:
        self._parameters, self._grads = parameters, list(self.layout.split(self.grad).values())
        for p, view in zip(parameters, self.layout.split(self.theta).values(), strict=True):
            p.data = view
        mine = {id(p) for p in parameters}
        self._places = [
            (owner._parameters, leaf, p.data_ptr())
            for owner in self.module.modules()
            for leaf, p in owner._parameters.items()
            if p is not None and id(p) in mine
        ]
        self.attach_grad()

    def attach(self) -> None:
        """Make the module's parameters views of theta again, at its values, wherever they lie now."""
        now = dict(self.module.named_parameters(remove_duplicate=False))
        for name, shape in zip(self.layout.names, self.layout.shapes, strict=True):
            p = now.get(name)
            if p is None or (p.shape, p.dtype, p.device) != (shape, self.theta.dtype, self.theta.device):
                found = "gone" if p is None else f"{tuple(p.shape)} {p.dtype} on {p.device}"
                raise ValueError(
                    f"parameter {name} was {shape} {self.theta.dtype} on {self.theta.device} and is {found}: "
                    "a module that has changed needs a new task (task.to moves one to a device)"
                )
        tie(self.module, self._tied)
        self._attach([now[name] for name in self.layout.names])

    @property
    def hooked(self) -> bool:
        """Whether a gradient passes through a hook of its parameter, which no copy of the module has."""
        return any(p._backward_hooks or p._post_accumulate_grad_hooks for p in self._parameters)

    def attach_grad(self) -> None:
        """Make .grad of every parameter a view of `grad` again (`zero_grad` detaches it by default)."""
        for p, view in zip(self._parameters, self._grads, strict=True):
            p.grad = view

    def load(self, theta: Tensor) -> None:
        """Set the parameters to theta (D,); nothing to do when it is this very vector."""
        if theta.shape != self.theta.shape:
            raise ValueError(
                f"the module has {self.theta.numel()} parameters, theta has shape {tuple(theta.shape)}"
            )
        if theta.data_ptr() != self.theta.data_ptr() or theta.device != self.theta.device:
            self.theta.copy_(theta)
        for held, leaf, place in self._places:
            if leaf not in held or (p := held[leaf]) is None or p.data_ptr() != place:
                self.attach()
                break
        torch.clear_autocast_cache()  # it would go on with casts of the weights that were here before


def tied(module: nn.Module) -> list[list[str]]:
    """The names of each parameter that has several."""
    names: dict[int, list[str]] = {}
    for name, p in module.named_parameters(remove_duplicate=False):
        names.setdefault(id(p), []).append(name)
    return [some for some in names.values() if len(some) > 1]


def tie(module: nn.Module, names: Sequence[Sequence[str]]) -> None:
    """Parameters of these names are one again, the first."""
    for first, *aliases in names:
        for owner, _, leaf in (alias.rpartition(".") for alias in aliases):
            setattr(module.get_submodule(owner), leaf, module.get_parameter(first))


def _refuse_unfit(named: list[tuple[str, nn.Parameter]]) -> None:
    for name, p in named:
        if isinstance(p, nn.parameter.UninitializedParameter):
            raise ValueError(
                f"parameter {name} has no shape yet: run one forward pass of the lazy module first"
            )
        if p.dtype != torch.float32 or p.device.type == "meta" or p.layout != torch.strided:
            raise ValueError(
                f"parameter {name} is {p.dtype} on {p.device} ({p.layout}): narrowcast trains dense float32 "
                "parameters. Call module.float(), or freeze it with requires_grad_(False)"
            )
        if p.device != named[0][1].device:
            raise ValueError(
                f"parameter {name} is on {p.device}, {named[0][0]} on {named[0][1].device}: call "
                "module.to(device), for all must be on one"
            )
    spans = sorted((p.untyped_storage().data_ptr(), *_span(p), n) for n, p in named if p.numel())
    for (s0, _, end, a), (s1, start, _, b) in pairwise(spans):
        if s0 == s1 and start < end:
            raise ValueError(
                f"parameters {a} and {b} overlap in memory without being the same parameter: tie them by "
                "assigning one nn.Parameter to both modules, or clone one"
            )


def _span(p: Tensor) -> tuple[int, int]:
    """First and last-plus-one element of the storage that p touches."""
    first = int(p.storage_offset())
    return first, first + sum((n - 1) * s for n, s in zip(p.shape, p.stride(), strict=True)) + 1
