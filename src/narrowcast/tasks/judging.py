"""What a module's outputs are judged by: a loss for each example, and metrics of a whole test set."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor, nn

Loss = Callable[[Tensor, Tensor], Tensor]  # (outputs, targets) -> (B,) losses, one an example
Metrics = Callable[[Tensor, Tensor], dict[str, float]]  # (outputs, targets) of the whole test set


def accuracy(outputs: Tensor, targets: Tensor) -> dict[str, float]:
    return {"accuracy": float((outputs.argmax(1) == targets).float().mean())}


def cross_entropy(outputs: Tensor, targets: Tensor) -> Tensor:
    """(B, C) logits and (B,) classes -> (B,) losses."""
    return nn.functional.cross_entropy(outputs, targets, reduction="none")


def check_outputs(outputs: Any, y: Tensor, metrics: Metrics) -> None:
    """What only an evaluation would find out, after the first epoch."""
    if not isinstance(outputs, Tensor):
        raise ValueError(
            f"the module must return one tensor, got {type(outputs).__name__}: wrap it in one that does"
        )
    classes = outputs.ndim >= 2 and outputs.shape[1] >= 2 and not y.is_floating_point()
    if metrics is accuracy and not (classes and y.shape == outputs[:, 0].shape):
        raise ValueError(
            "accuracy takes outputs (B, C) of at least two classes and targets (B,) that are integers, "
            f"got {tuple(outputs.shape)} and {tuple(y.shape)} {y.dtype}: give metrics= and metric="
        )


def one_an_example(losses: Tensor, y: Tensor) -> Tensor:
    """The losses, if they are that."""
    if losses.shape != (len(y),):
        raise ValueError(
            f"the loss must return one number an example, shape ({len(y)},), got "
            f'{tuple(losses.shape)}: pass reduction="none" to torch\'s losses'
        )
    return losses
