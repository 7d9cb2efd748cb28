"""Each client's own gradient from one pass over the examples of all.

Where an example's loss depends on that example alone, one pass there and back gives every layer its inputs h
and the gradients g at its outputs, example by example, and a client's gradient is made of its own of both:
g^T h of a linear layer, the convolution of h with g of a convolution. So the way there and back is taken in
one large batch, and only the products with g are made client by client.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import group_norm

from narrowcast.numerics.flat import Layout

KINDS = (nn.Linear, nn.Conv2d, nn.GroupNorm)
TOLERANCE = 1e-3  # of the largest number: rounding is far below, a gradient that was missed above


def known_layers(module: nn.Module, layout: Layout) -> dict[str, nn.Module]:
    """The layers that hold the parameters, by name, if the gradient of each is known; else none."""
    found = {
        name: layer for name, layer in module.named_modules() if any(True for _ in layer.parameters(False))
    }
    held = {
        f"{name}.{p}" if name else p for name, m in found.items() for p, _ in m.named_parameters("", False)
    }
    hooked = any(m._forward_hooks or m._forward_pre_hooks or m._backward_hooks for m in module.modules())
    fit = all(_known(layer) for layer in found.values()) and held == set(layout.names) and not hooked
    return found if fit else {}


def _known(layer: nn.Module) -> bool:
    if type(layer) is nn.Conv2d:
        return layer.padding_mode == "zeros" and not isinstance(layer.padding, str)
    return type(layer) in KINDS


class SharedPass:
    """What one pass through a module leaves of every layer, and the gradients made of that."""

    def __init__(self, module: nn.Module, layers: dict[str, nn.Module], layout: Layout) -> None:
        self._module, self._layers, self._layout = module, layers, layout
        self._inputs = dict[str, Tensor]()  # h of each layer, all examples
        self._slopes = dict[str, Tensor]()  # g of each layer
        self._losses, self._size = list[float](), 0

    def take(self, theta: Tensor, x: Tensor, losses: Callable[[Tensor], Tensor], weight: Tensor) -> None:
        """There and back at theta: C clients of B examples; weight (C, B), `losses` (outputs) -> (C B,)."""
        frozen = self._layout.split(theta)
        hooks = [layer.register_forward_hook(self._tap(name)) for name, layer in self._layers.items()]
        try:
            with torch.enable_grad():
                outputs = torch.func.functional_call(self._module, frozen, (x,))
                found = (losses(outputs).view_as(weight) * weight).sum(1)
                found.sum().backward()  # type: ignore[no-untyped-call]
        finally:
            for hook in hooks:
                hook.remove()
        if self._slopes.keys() != self._layers.keys():
            raise RuntimeError("a layer was left out of the pass")
        self._losses, self._size = found.tolist(), weight.shape[1]

    def rows(self, at_once: int) -> Iterator[tuple[list[float], Tensor]]:
        """(losses, a gradient a row) of the clients in their order, so many at a time."""
        rows = torch.empty(min(at_once, len(self._losses)), self._layout.size)
        for first in range(0, len(self._losses), len(rows)):
            losses = self._losses[first : first + len(rows)]
            for client, row in enumerate(rows[: len(losses)], first):
                self.fill(row, client)
            yield losses, rows[: len(losses)]

    def alike(self, client: int, truth: Tensor) -> bool:
        """Whether that is its gradient but for rounding: a module may use parameters in ways of its own."""
        row = torch.empty_like(truth)
        self.fill(row, client)
        return float((row - truth).abs().max()) <= TOLERANCE * float(truth.abs().max())

    def _tap(self, name: str) -> Callable[[nn.Module, Any, Tensor], Tensor]:
        def tap(layer: nn.Module, given: Any, out: Tensor) -> Tensor:
            if name in self._inputs:
                raise RuntimeError(f"the layer {name} was used twice")
            (h,) = given
            self._inputs[name] = h.detach()
            if not out.requires_grad:  # the first layer; what follows may work in place, which no leaf allows
                out = out.requires_grad_().clone()
            out.register_hook(lambda g: self._slopes.__setitem__(name, g))  # type: ignore[no-untyped-call]
            return out

        return tap

    @torch.no_grad()
    def fill(self, row: Tensor, client: int) -> None:
        """row (D,) becomes its gradient."""
        places, examples = self._layout.split(row), slice(client * self._size, (client + 1) * self._size)
        for name, layer in self._layers.items():
            prefix = f"{name}." if name else ""
            bias = places.get(f"{prefix}bias")
            self._one(layer, self._inputs[name][examples], self._slopes[name][examples],
                      places[f"{prefix}weight"], bias)  # fmt: skip

    def _one(self, layer: nn.Module, h: Tensor, g: Tensor, weight: Tensor, bias: Tensor | None) -> None:
        if isinstance(layer, nn.Linear):
            h, g = h.reshape(-1, layer.in_features), g.reshape(-1, layer.out_features)
            torch.mm(g.T, h, out=weight)
            if bias is not None:
                torch.sum(g, 0, out=bias)
        elif isinstance(layer, nn.GroupNorm):
            over = [0, *range(2, h.ndim)]
            weight.copy_((group_norm(h, layer.num_groups, eps=layer.eps) * g).sum(over))
            if bias is not None:
                torch.sum(g, over, out=bias)
        elif isinstance(layer, nn.Conv2d):
            shape = None if bias is None else [layer.out_channels]
            how = layer.stride, layer.padding, layer.dilation, False, [0, 0], layer.groups
            asked = (False, True, bias is not None)  # the gradient at the inputs is there already
            _, w, b = torch.ops.aten.convolution_backward(g, h, layer.weight, shape, *how, asked)
            weight.copy_(w)
            if bias is not None:
                bias.copy_(b)


def holds(
    theta: Tensor, gradient: Callable[[Tensor], Tensor], shared: Callable[[Tensor], SharedPass]
) -> bool:
    """Whether a pass gives its first client the gradient, near theta: at theta itself much may be zero.

    Either may overwrite theta, if that lies in the module's memory: it is put back.
    """
    here, noise = theta.clone(), torch.randn(theta.shape, generator=torch.Generator().manual_seed(0))
    there = theta + noise.mul_(0.1 * float(theta.square().mean().sqrt()))
    try:
        truth = gradient(there)
        return shared(there).alike(0, truth)
    finally:
        theta.copy_(here)
