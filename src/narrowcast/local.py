"""What a client computes: one gradient, or the change after several local steps, as a vector v (D,).

v = (theta - theta_after) / rate after `steps` steps of plain SGD. One step gives the gradient itself, so the
server's rate means the same for both, and FedAvg is the server stepping with the local rate.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from narrowcast import random
from narrowcast.random import Key, Purpose
from narrowcast.tasks.base import Batch, Task
from narrowcast.tasks.partition import IndexArray

Group = list[tuple[int, Key]]  # clients, each with its key of the round


@dataclass(frozen=True)
class Local:
    """How a client trains: steps, examples a step (0: all it has), rate (used when steps > 1)."""

    steps: int = 1
    batch: int = 0
    rate: float = 0.0


def examples(task: Task, client: int, size: int, key: Key, step: int) -> IndexArray:
    """The client's examples of a step: all of them, or `size` drawn without replacement."""
    have = task.clients[client]
    if size <= 0 or size >= len(have):
        return have
    return have[random.permuted(random.derive(key, Purpose.LOCAL, step), len(have), 0, size)]


def summed_update(
    task: Task, theta: Tensor, group: Group, weights: list[float], local: Local, augment: Key
) -> tuple[float, Tensor]:
    """(sum_c weight_c loss_c, sum_c weight_c v_c): what a linear method compresses once for all of them.

    For single gradients this is one batch, whose objective is the weighted sum of the clients' mean losses.
    """
    if local.steps == 1:
        parts = [examples(task, c, local.batch, k, 0) for c, k in group]
        sizes = torch.tensor([len(p) for p in parts])
        weight = (torch.tensor(weights) / sizes).repeat_interleave(sizes)
        return task.gradient(theta, Batch(np.concatenate(parts), weight, _pictures(augment, 0)))
    total, losses = torch.zeros_like(theta), 0.0
    for w, (loss, v) in zip(weights, client_updates(task, theta, group, local, augment), strict=True):
        total.add_(v, alpha=w)
        losses += w * loss
    return losses, total


def client_updates(
    task: Task, theta: Tensor, group: Group, local: Local, augment: Key
) -> Iterator[tuple[float, Tensor]]:
    """(loss, v) of each client in turn; v is valid until the next one.

    Single gradients are taken in chunks by the task (`gradients`). Several steps run client by client in the
    memory of the task's model, where one client's weights stay in the cache; theta must lie elsewhere.
    """
    if local.steps == 1:
        yield from task.gradients(theta, [_batch(task, c, local, k, augment, 0) for c, k in group])
        return
    for client, key in group:
        here, losses = task.buffer().copy_(theta), 0.0
        for step in range(local.steps):
            loss, gradient = task.gradient(here, _batch(task, client, local, key, augment, step))
            here.sub_(gradient, alpha=local.rate)
            losses += loss
        yield losses / local.steps, (theta - here) / local.rate


def _batch(task: Task, client: int, local: Local, key: Key, augment: Key, step: int) -> Batch:
    """A client's examples of a step, equally weighted."""
    index = examples(task, client, local.batch, key, step)
    return Batch(index, torch.full((len(index),), 1.0 / len(index)), _pictures(augment, step))


def _pictures(augment: Key, step: int) -> Key:
    return random.derive(augment, Purpose.AUGMENT, step)
