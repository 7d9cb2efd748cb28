"""SGD steps of several clients side by side: linear layers whose weights have a client axis in front.

After its first local step a client has weights of its own. A loop over clients pays torch's overhead for
each of them, and torch.func.vmap pays more than it saves (docs/performance.md). A plain stack of linear
layers is a few batched matrix products; taking the step on the way back adds each weight's gradient to the
weight in the very product that makes it, so that no gradient is ever written to memory.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from itertools import islice
from typing import TypeVar

import torch
from torch import Tensor, nn

from narrowcast.numerics import pool
from narrowcast.numerics.flat import Layout

ELEMENTWISE = (nn.ReLU, nn.Tanh, nn.Sigmoid, nn.GELU, nn.SiLU, nn.ELU, nn.LeakyReLU, nn.Softplus, nn.Identity)
Back = Callable[[Tensor], Tensor | None]  # gradient at a layer's outputs -> at its inputs, if anyone asks
Linear = Callable[[nn.Linear, Tensor, bool], tuple[Tensor, Back]]  # (layer, inputs, is it the first?)
Objective = Callable[[Tensor], Tensor]  # (C, B, outputs) -> (C,) losses


def plain_layers(module: nn.Module) -> list[nn.Module]:
    """The layers of a stack of linear and elementwise ones, in order; none if the module is anything else."""
    layers = _flattened(module)
    held = [p for layer in layers for p in layer.parameters()]
    plain = all(type(layer) is nn.Linear or type(layer) in ELEMENTWISE for layer in layers)
    hooked = any(m._forward_hooks or m._forward_pre_hooks or m._backward_hooks for m in module.modules())
    tied = len(held) != len(list(module.parameters()))
    fit = plain and held and not hooked and not tied and all(p.requires_grad for p in held)
    return layers if fit else []


def _flattened(module: nn.Module) -> list[nn.Module]:
    if type(module) is not nn.Sequential:
        return [module]
    return [layer for child in module for layer in _flattened(child)]


@torch.no_grad()
def sgd_step(
    layers: list[nn.Module], layout: Layout, here: Tensor, x: Tensor, objective: Objective, rate: float
) -> Tensor:
    """Row c of here (C, D) takes a step on x[c] (B, inputs), in place; the losses before it, (C,)."""
    weights = iter(_by_layer(here, layout))

    def linear(layer: nn.Linear, x: Tensor, first: bool) -> tuple[Tensor, Back]:
        weight, *biases = islice(weights, len(list(layer.parameters())))

        def back(g: Tensor) -> Tensor | None:
            before = None if first else torch.bmm(g, weight)
            weight.baddbmm_(g.mT, x, alpha=-rate)
            for bias in biases:
                bias.sub_(g.sum(1), alpha=rate)
            return before

        y = torch.bmm(x, weight.mT)
        for bias in biases:
            y += bias[:, None]
        return y, back

    return _there_and_back(layers, x, objective, linear)


class Factors:
    """The gradients of C clients on x (C, B, inputs), all at the layers' own weights, before they are made.

    All rows go through the one set of weights together. A client's gradient of a weight is g^T x, of its own
    inputs x (B, inputs) and the gradient g (B, outputs) at its outputs: D numbers from few, made where and
    when they are asked for. `losses` (C,).
    """

    @torch.no_grad()
    def __init__(self, layers: list[nn.Module], layout: Layout, x: Tensor, objective: Objective) -> None:
        self._layout, self._factors = layout, list[tuple[Tensor, Tensor | None]]()

        def linear(layer: nn.Linear, x: Tensor, first: bool) -> tuple[Tensor, Back]:
            place = len(self._factors)
            self._factors += [(x, None)] * len(list(layer.parameters()))

            def back(g: Tensor) -> Tensor | None:
                for i, _ in enumerate(layer.parameters(), place):
                    self._factors[i] = g, x if i == place else None
                return None if first else g @ layer.weight

            return layer(x), back

        self.losses = _there_and_back(layers, x, objective, linear)

    def fill(self, out: Tensor, first: int) -> None:
        """Row i of out (R, D) becomes the gradient of client first + i."""
        part = slice(first, first + len(out))
        for place, (g, x) in zip(_by_layer(out, self._layout), self._factors, strict=True):
            if x is None:  # a bias
                torch.sum(g[part], 1, out=place)
            else:
                place.baddbmm_(g[part].mT, x[part], beta=0)


def _by_layer(rows: Tensor, layout: Layout) -> list[Tensor]:
    """(C, D) as views (C, *shape), one a parameter."""
    parts = torch.split(rows, [math.prod(shape) for shape in layout.shapes], dim=1)
    return [part.view(len(rows), *shape) for part, shape in zip(parts, layout.shapes, strict=True)]


def _there_and_back(layers: list[nn.Module], x: Tensor, objective: Objective, linear: Linear) -> Tensor:
    """x (C, B, inputs) through the layers, and the gradient of the losses (C,), which are returned, back."""
    way_back: list[Back] = []
    for layer in layers:
        if isinstance(layer, nn.Linear):
            x, back = linear(layer, x, not any(way_back))
        else:
            x, back = _elementwise(layer, x)
        way_back.append(back)
    with torch.enable_grad():
        outputs = x.requires_grad_()
        losses = objective(outputs)
        g: Tensor | None = torch.autograd.grad(losses.sum(), outputs)[0]
    for back in reversed(way_back):
        if g is not None:
            g = back(g)
    return losses.detach()


def _elementwise(layer: nn.Module, x: Tensor) -> tuple[Tensor, Back]:
    with torch.enable_grad():
        start = x.detach().requires_grad_()
        y = layer(start)
    return y.detach(), lambda g: torch.autograd.grad(y, start, g)[0]


Part = TypeVar("Part")


def in_parts(
    parts: list[Part], walk: Callable[[Part], tuple[Tensor, Tensor]]
) -> Iterator[tuple[float, Tensor]]:
    """(loss, end) of each client of each part, in order: a worker takes a part at once.

    Within a part torch computes with one thread, so that nothing depends on the number of workers.
    """
    done: dict[int, tuple[Tensor, Tensor]] = {}

    def work(start: int, stop: int) -> None:
        torch.set_num_threads(1)
        for i in range(start, stop):
            done[i] = walk(parts[i])

    threads = torch.get_num_threads()
    try:
        pool.run(work, len(parts))
    finally:
        torch.set_num_threads(threads)
    for i in range(len(parts)):
        losses, ends = done.pop(i)
        yield from zip(losses.tolist(), ends, strict=True)
