"""What a client computes: one gradient, or the change after several local steps, as a vector v (D,).

v = (theta - theta_after) / rate after `steps` steps of plain SGD. One step gives the gradient itself, so the
server's rate means the same for both, and FedAvg is the server stepping with the local rate.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from narrowcast import random
from narrowcast.random import Key, Purpose
from narrowcast.tasks.base import Batch, Task
from narrowcast.tasks.partition import IndexArray


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
    task: Task,
    theta: Tensor,
    clients: IndexArray,
    weights: list[float],
    local: Local,
    keys: list[Key],
    augment: Key,
) -> tuple[float, Tensor]:
    """(sum_c weight_c loss_c, sum_c weight_c v_c): what a linear method compresses once for all of them.

    For single gradients this is one batch, whose objective is the weighted sum of the clients' mean losses.
    """
    if local.steps == 1:
        parts = [examples(task, int(c), local.batch, k, 0) for c, k in zip(clients, keys, strict=True)]
        sizes = torch.tensor([len(p) for p in parts])
        weight = (torch.tensor(weights) / sizes).repeat_interleave(sizes)
        return task.gradient(theta, Batch(np.concatenate(parts), weight, _pictures(augment, 0)))
    # Several steps run in the memory of the task's model: theta must lie elsewhere.
    total, losses = torch.zeros_like(theta), 0.0
    for c, w, k in zip(clients, weights, keys, strict=True):
        loss, change = _several_steps(task, theta, int(c), local, k, augment)
        total += change * (w / local.rate)
        losses += w * loss
    return losses, total


def _several_steps(
    task: Task, theta: Tensor, client: int, local: Local, key: Key, augment: Key
) -> tuple[float, Tensor]:
    """(mean loss, theta - theta_after) of plain SGD from theta."""
    here, losses = task.buffer().copy_(theta), 0.0
    for step in range(local.steps):
        index = examples(task, client, local.batch, key, step)
        batch = Batch(index, torch.full((len(index),), 1.0 / len(index)), _pictures(augment, step))
        loss, gradient = task.gradient(here, batch)
        here.sub_(gradient, alpha=local.rate)
        losses += loss
    return losses / local.steps, theta - here


def _pictures(augment: Key, step: int) -> Key:
    return random.derive(augment, Purpose.AUGMENT, step)
