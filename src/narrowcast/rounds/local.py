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

from narrowcast.methods.base import Directions
from narrowcast.numerics import keyed
from narrowcast.numerics.keyed import Key, Purpose
from narrowcast.rounds.task import Batch, IndexArray, Task

Group = list[tuple[int, Key]]  # clients, each with its key of the round


@dataclass(frozen=True)
class Local:
    """How a client trains: steps, examples a step (0: all it has), rate (used when steps > 1).

    `prox` is FedProx's mu: every local gradient gets mu (theta_local - theta). With `probes` the client
    takes no gradient at all: v is the slopes of its loss along them, one a step.
    """

    steps: int = 1
    batch: int = 0
    rate: float = 0.0
    prox: float = 0.0
    probes: Directions | None = None


def examples(task: Task, client: int, size: int, key: Key, step: int) -> IndexArray:
    """The client's examples of a step: all of them, or `size` drawn without replacement."""
    have = task.clients[client]
    if size <= 0 or size >= len(have):
        return have
    return have[keyed.permuted(keyed.derive(key, Purpose.LOCAL, step), len(have), 0, size)]


def summed_update(
    task: Task, theta: Tensor, group: Group, weights: list[float], local: Local, augment: Key
) -> tuple[float, Tensor]:
    """(sum_c weight_c loss_c, sum_c weight_c v_c): what a linear method compresses once for all of them.

    For single gradients this is one batch, whose objective is the weighted sum of the clients' mean losses,
    unless they would not be what each of them computes by itself.
    """
    if local.steps == 1 and task.separable:
        parts = [examples(task, c, local.batch, k, 0) for c, k in group]
        sizes = torch.tensor([len(p) for p in parts])
        weight = (torch.tensor(weights) / sizes).repeat_interleave(sizes)
        key, noise = _pictures(augment, 0), _noise(group[0][1], 0)
        return task.gradient(theta, Batch(np.concatenate(parts), weight, key, noise))
    total, losses = torch.zeros_like(theta), 0.0
    for w, (loss, v) in zip(weights, client_updates(task, theta, group, local, augment), strict=True):
        total.add_(v, alpha=w)
        losses += w * loss
    return losses, total


def client_updates(
    task: Task, theta: Tensor, group: Group, local: Local, augment: Key
) -> Iterator[tuple[float, Tensor]]:
    """(loss, v) of each client in turn; v is valid until the next one.

    Single gradients and several steps are the task's to take, client by client or many at once (`gradients`,
    `walk`); theta must not lie in the memory of its model where there are several.
    """
    if local.probes is not None:
        for client, key in group:
            yield _slopes(task, theta, client, key, local, local.probes, augment)
        return
    if local.steps == 1:
        yield from task.gradients(theta, [_batch(task, c, local, k, augment, 0) for c, k in group])
        return
    walks = ([_batch(task, c, local, k, augment, step) for step in range(local.steps)] for c, k in group)
    for loss, end in task.walk(theta, walks, local.rate, local.prox):
        yield loss, (theta - end).div_(local.rate)


def cohort_updates(
    task: Task, theta: Tensor, group: Group, local: Local, augment: Key
) -> Iterator[tuple[list[float], Tensor]]:
    """`client_updates`, as many at once as is quickest: (losses, an update a row (C, D)), C >= 1."""
    if local.steps == 1 and local.probes is None:
        yield from task.gradient_rows(theta, [_batch(task, c, local, k, augment, 0) for c, k in group])
        return
    for loss, v in client_updates(task, theta, group, local, augment):
        yield [loss], v[None]


def _slopes(
    task: Task, theta: Tensor, client: int, key: Key, local: Local, directions: Directions, augment: Key
) -> tuple[float, Tensor]:
    """(loss, slopes (steps,)): z_s . gradient by central differences, walking on along z_s after each."""
    here, slopes, losses = task.buffer().copy_(theta), torch.zeros(local.steps), 0.0
    for step in range(local.steps):
        batch, epsilon = _batch(task, client, local, key, augment, step), directions.epsilon
        directions.add(here, key, step, epsilon)
        above = task.loss(here, batch)
        directions.add(here, key, step, -2 * epsilon)
        below = task.loss(here, batch)
        slope = (above - below) / (2 * epsilon)
        directions.add(here, key, step, epsilon - (local.rate * slope if local.steps > 1 else 0.0))
        slopes[step], losses = slope, losses + (above + below) / 2
    return losses / local.steps, slopes


def _batch(task: Task, client: int, local: Local, key: Key, augment: Key, step: int) -> Batch:
    """A client's examples of a step, equally weighted."""
    index = examples(task, client, local.batch, key, step)
    weight = torch.full((len(index),), 1.0 / len(index))
    return Batch(index, weight, _pictures(augment, step), _noise(key, step))


def _pictures(augment: Key, step: int) -> Key:
    return keyed.derive(augment, Purpose.AUGMENT, step)


def _noise(key: Key, step: int) -> Key:
    """What a client's model draws in a step comes from this; its examples, from (step, 0)."""
    return keyed.derive(key, Purpose.LOCAL, step, 1)
