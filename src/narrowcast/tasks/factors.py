"""SGD steps of many clients without their weights: a stack of linear layers, all clients at theta's own.

After s steps of rate r a client's weight is W_c = W - r sum_j g_j^T h_j, of the inputs h_j (B, inputs) that
the layer had in step j and the gradients g_j (B, outputs) at its outputs. So its products are W's, which are
one large product for all clients, less small ones with its own h and g:

    h W_c^T = h W^T - r (h H^T) E,    g W_c = g W - r (g E^T) H,    H, E: the earlier h_j and g_j, row by row

and its update after S steps, (W - W_c) / r, is the product E^T H of two matrices of S B rows, made where and
when it is asked for. The weighted sum over clients is one such product. A bias is a weight whose input is 1.
FedProx pulls back by m: every step shrinks what was there, E <- (1 - r m) E, before it adds its own.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence

import torch
from torch import Tensor, nn
from torch.nn.functional import linear

from narrowcast.numerics.flat import Layout

ELEMENTWISE = (nn.ReLU, nn.Tanh, nn.Sigmoid, nn.GELU, nn.SiLU, nn.ELU, nn.LeakyReLU, nn.Softplus, nn.Identity)
LONGER = 3  # times a layer's numbers: rows of factors times their width from which the product is quicker
Objective = Callable[[Tensor], Tensor]  # (C, B, outputs) -> (C,) losses
Back = Callable[[Tensor], Tensor | None]  # gradient at a layer's outputs -> at its inputs, if anyone asks
Index = slice | Tensor


def plain_layers(module: nn.Module) -> list[nn.Module]:
    """The layers of a stack of linear and elementwise ones, in order; none if the module is anything else."""
    layers = _flattened(module)
    held = [p for layer in layers for p in layer.parameters()]
    plain = all(type(layer) is nn.Linear or type(layer) in ELEMENTWISE for layer in layers)
    hooked = any(
        m._forward_hooks or m._forward_pre_hooks or m._backward_hooks or m._backward_pre_hooks
        for m in module.modules()
    )
    tied = len(held) != len(list(module.parameters()))
    fit = plain and held and not hooked and not tied and all(p.requires_grad for p in held)
    return layers if fit else []


def _flattened(module: nn.Module) -> list[nn.Module]:
    if type(module) is not nn.Sequential:
        return [module]
    return [layer for child in module for layer in _flattened(child)]


class Factors:
    """The updates of C clients, (theta - theta_c) / rate each, as the factors they are products of.

    `steps` are (x (C, B, inputs), objective) of each SGD step in turn; where x is one and the same tensor in
    all of them, its products with W are made once. `losses` (C,): a client's mean over its steps.
    """

    @torch.no_grad()
    def __init__(
        self,
        layers: Sequence[nn.Module],
        layout: Layout,
        steps: Sequence[tuple[Tensor, Objective]],
        rate: float = 0.0,
        prox: float = 0.0,
    ) -> None:
        self._layout, same = layout, all(x is steps[0][0] for x, _ in steps)
        shapes = list(_kinds(layers, len(steps), steps[0][0].shape[1], same))
        self._linears = [
            kind(layer, rate, 1.0 - rate * prox, len(steps), first=i == 0)
            for i, (layer, kind) in enumerate(shapes)
        ]
        self.losses = torch.stack([self._step(layers, x, objective) for x, objective in steps]).mean(0)

    def _step(self, layers: Sequence[nn.Module], x: Tensor, objective: Objective) -> Tensor:
        """There and back: x through the layers, and the gradient of the losses (C,), which are returned."""
        way_back: list[Back] = []
        own = iter(self._linears)
        for layer in layers:
            if isinstance(layer, nn.Linear):
                mine = next(own)
                x = mine.forward(x)
                way_back.append(mine.back)
            else:
                x, back = _elementwise(layer, x)
                way_back.append(back)
        with torch.enable_grad():
            outputs = x.requires_grad_()
            losses = objective(outputs)
            g: Tensor | None = torch.autograd.grad(losses.sum(), outputs)[0]
        for step_back in reversed(way_back):
            if g is not None:
                g = step_back(g)
        return losses.detach()

    @torch.no_grad()
    def fill(self, out: Tensor, first: int) -> None:
        """Row i of out (R, D) becomes the update of client first + i."""
        places = iter(by_layer(out, self._layout))
        for layer in self._linears:
            bias = layer.bias is not None
            layer.fill(slice(first, first + len(out)), next(places), next(places) if bias else None)

    @torch.no_grad()
    def sum(self, out: Tensor, clients: Index, weights: Tensor) -> None:
        """out (D,) becomes sum_i weights[i] (update of client clients[i])."""
        places = (place[0] for place in by_layer(out[None], self._layout))
        for layer in self._linears:
            bias = layer.bias is not None
            layer.sum(clients, weights, next(places), next(places) if bias else None)


def _kinds(
    layers: Sequence[nn.Module], steps: int, examples: int, same: bool
) -> Iterator[tuple[nn.Linear, type[_Layer]]]:
    """How each linear layer keeps its updates: as factors, unless multiplying by them takes longer."""
    for i, layer in enumerate(layer for layer in layers if isinstance(layer, nn.Linear)):
        wide, many = layer.in_features + layer.out_features, layer.in_features * layer.out_features
        factored = steps == 1 or steps * examples * wide <= LONGER * many
        yield layer, _Fixed if same and not i and steps > 1 else _Factored if factored else _Multiplied


class _Layer:
    """A linear layer of C clients: W is its own, theta's; a client's is W - rate U_c, for the update U_c."""

    def __init__(self, layer: nn.Linear, rate: float, shrink: float, steps: int, first: bool) -> None:
        self.weight, self.bias = layer.weight, layer.bias
        self.rate, self.shrink, self.steps, self.first = rate, shrink, steps, first
        self.done = 0
        self.h = torch.empty(0)

    def forward(self, h: Tensor) -> Tensor:
        """h W_c^T + b_c, (C, B, inputs) -> (C, B, outputs)."""
        self.h = h
        y = linear(h, self.weight, self.bias)
        if self.done:
            self.subtract_outputs(y)
        return y

    def back(self, g: Tensor) -> Tensor | None:
        """g W_c, (C, B, outputs) -> (C, B, inputs), if it is asked for; then the client's step."""
        before: Tensor | None = None
        if not self.first:
            before = g @ self.weight
            if self.done:
                self.subtract_inputs(before, g)
        self.step(g)
        self.done += 1
        return before

    def subtract_outputs(self, y: Tensor) -> None:
        """y -= rate (h U^T)."""
        raise NotImplementedError

    def subtract_inputs(self, before: Tensor, g: Tensor) -> None:
        """before -= rate (g U)."""
        raise NotImplementedError

    def step(self, g: Tensor) -> None:
        """U <- shrink U + g^T h."""
        raise NotImplementedError

    def fill(self, clients: slice, weight: Tensor, bias: Tensor | None) -> None:
        """U of these clients, (R, outputs, inputs) and (R, outputs)."""
        raise NotImplementedError

    def sum(self, clients: Index, weights: Tensor, weight: Tensor, bias: Tensor | None) -> None:
        """The weighted sum of these clients' U, (outputs, inputs) and (outputs,)."""
        raise NotImplementedError


class _Factored(_Layer):
    """U = E^T H, of the inputs H (C, S B, inputs) and gradients E (C, S B, outputs) of all steps so far."""

    H = E = torch.empty(0)

    def subtract_outputs(self, y: Tensor) -> None:
        H, E = self._earlier()
        y.baddbmm_(self._gram(self.h, H), E, alpha=-self.rate)

    def subtract_inputs(self, before: Tensor, g: Tensor) -> None:
        H, E = self._earlier()
        before.baddbmm_(torch.bmm(g, E.mT), H, alpha=-self.rate)

    def step(self, g: Tensor) -> None:
        if self.steps == 1:
            self.H, self.E = self.h, g
            return
        if not self.done:
            self.H, self.E = (g.new_empty(len(t), self.steps * t.shape[1], t.shape[2]) for t in (self.h, g))
        elif self.shrink != 1.0:
            self._earlier()[1].mul_(self.shrink)
        now = slice(self.done * g.shape[1], (self.done + 1) * g.shape[1])
        self.H[:, now], self.E[:, now] = self.h, g

    def fill(self, clients: slice, weight: Tensor, bias: Tensor | None) -> None:
        E = self.E[clients]
        weight.baddbmm_(E.mT, self.H[clients], beta=0)
        if bias is not None:
            torch.sum(E, 1, out=bias)

    def sum(self, clients: Index, weights: Tensor, weight: Tensor, bias: Tensor | None) -> None:
        E = (self.E[clients] * weights[:, None, None]).flatten(0, 1)
        torch.mm(E.T, self.H[clients].flatten(0, 1), out=weight)
        if bias is not None:
            torch.sum(E, 0, out=bias)

    def _gram(self, h: Tensor, H: Tensor) -> Tensor:
        """h H^T, and 1 for the bias: (C, B, rows of H)."""
        gram = torch.bmm(h, H.mT)
        return gram if self.bias is None else gram.add_(1.0)

    def _earlier(self) -> tuple[Tensor, Tensor]:
        rows = self.done * (self.H.shape[1] // self.steps)
        return self.H[:, :rows], self.E[:, :rows]


class _Fixed(_Factored):
    """The first layer, of inputs that are the same in all steps: its products with them are made once."""

    start = gram = torch.empty(0)

    def forward(self, h: Tensor) -> Tensor:
        if self.done:
            return torch.baddbmm(self.start, self.gram, self.E, alpha=-self.rate)
        self.H, self.start = h, linear(h, self.weight, self.bias)
        self.gram = self._gram(h, h)
        return self.start.clone()

    def step(self, g: Tensor) -> None:
        self.E = torch.add(g, self.E, alpha=self.shrink) if self.done else g


class _Multiplied(_Layer):
    """U itself, (C, outputs, inputs), and that of the bias: where it is smaller than its factors."""

    U = b = torch.empty(0)

    def subtract_outputs(self, y: Tensor) -> None:
        y.baddbmm_(self.h, self.U.mT, alpha=-self.rate)
        if self.bias is not None:
            y.sub_(self.b[:, None], alpha=self.rate)

    def subtract_inputs(self, before: Tensor, g: Tensor) -> None:
        before.baddbmm_(g, self.U, alpha=-self.rate)

    def step(self, g: Tensor) -> None:
        if self.done:
            self.U.baddbmm_(g.mT, self.h, beta=self.shrink)
            self.b = torch.add(g.sum(1), self.b, alpha=self.shrink)
        else:
            self.U, self.b = torch.bmm(g.mT, self.h), g.sum(1)

    def fill(self, clients: slice, weight: Tensor, bias: Tensor | None) -> None:
        weight.copy_(self.U[clients])
        if bias is not None:
            bias.copy_(self.b[clients])

    def sum(self, clients: Index, weights: Tensor, weight: Tensor, bias: Tensor | None) -> None:
        torch.mv(self.U[clients].flatten(1).T, weights, out=weight.view(-1))
        if bias is not None:
            torch.mv(self.b[clients].T, weights, out=bias)


def kept(layers: Sequence[nn.Module], steps: int, examples: int, same: bool) -> tuple[int, int]:
    """Numbers of a client's walk: (all that is kept of it, those of updates that are multiplied out)."""
    rows, numbers, hot = steps * examples, 0, 0
    for layer, kind in _kinds(layers, steps, examples, same):
        product, wide = layer.weight.numel(), layer.in_features + layer.out_features
        hot += product if kind is _Multiplied else 0
        numbers += product if kind is _Multiplied else wide * (examples if kind is _Fixed else rows)
    return numbers, hot


def by_layer(rows: Tensor, layout: Layout) -> list[Tensor]:
    """(C, D) as views (C, *shape), one a parameter."""
    parts = torch.split(rows, [math.prod(shape) for shape in layout.shapes], dim=1)
    return [part.view(len(rows), *shape) for part, shape in zip(parts, layout.shapes, strict=True)]


def _elementwise(layer: nn.Module, x: Tensor) -> tuple[Tensor, Callable[[Tensor], Tensor]]:
    with torch.enable_grad():
        start = x.detach().requires_grad_()
        y = layer(start.clone() if getattr(layer, "inplace", False) else start)
    return y.detach(), lambda g: torch.autograd.grad(y, start, g)[0]
