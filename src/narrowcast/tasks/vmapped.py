"""Each client's own gradient by torch.func.vmap: any module it can trace, at the memory of C gradients."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

from narrowcast.numerics.flat import Layout


def by_vmap(
    module: nn.Module,
    layout: Layout,
    loss: Callable[[Tensor, Tensor], Tensor],
    theta: Tensor,
    x: Tensor,
    y: Tensor,
    weight: Tensor,
) -> tuple[list[float], Tensor]:
    """(losses, a gradient a row (C, D)) at theta; x and y have C B examples, weight is (C, B)."""

    def objective(theta: Tensor, x: Tensor, y: Tensor, weight: Tensor) -> Tensor:
        return loss(torch.func.functional_call(module, layout.split(theta), (x,)), y) @ weight

    each = torch.func.vmap(torch.func.grad_and_value(objective), in_dims=(None, 0, 0, 0))
    count = len(weight)
    gradients, losses = each(
        theta, x.reshape(count, -1, *x.shape[1:]), y.reshape(count, -1, *y.shape[1:]), weight
    )
    return losses.tolist(), gradients
