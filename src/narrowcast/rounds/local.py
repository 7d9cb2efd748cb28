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


def summed_updates(
    task: Task, theta: Tensor, groups: list[Group], weights: list[list[float]], local: Local, augment: Key
) -> Iterator[tuple[float, Tensor]]:
    """(sum_c weight_c loss_c, sum_c weight_c v_c) of each group: what a linear method compresses once for it.

    For single gradients a group is one batch, whose objective is the weighted sum of its clients' mean
    losses, unless they would not be what each of them computes by itself. A v is valid until the next.
    """
    if local.steps == 1 and task.separable:
        batches = [_joined(task, *group, local, augment) for group in zip(groups, weights, strict=True)]
        yield from task.gradients(theta, batches) if len(batches) > 1 else [task.gradient(theta, batches[0])]
        return
    if local.steps == 1:  # in the memory of the model, where theta may lie, no step is taken
        for group, mine in zip(groups, weights, strict=True):
            total, losses = torch.zeros_like(theta), 0.0
            for w, (loss, v) in zip(mine, client_updates(task, theta, group, local, augment), strict=True):
                total.add_(v, alpha=w)
                losses += w * loss
            yield losses, total
        return
    everyone = [member for group in groups for member in group]
    matrix = torch.zeros(len(groups), len(everyone))
    first = 0
    for row, mine in zip(matrix, weights, strict=True):
        row[first : first + len(mine)] = torch.tensor(mine)
        first += len(mine)
    walks = _walks(task, everyone, local, augment)
    yield from task.walk_sums(theta, walks, matrix, local.rate, local.prox)


def client_updates(
    task: Task, theta: Tensor, group: Group, local: Local, augment: Key
) -> Iterator[tuple[float, Tensor]]:
    """(loss, v) of each client in turn; v is valid until the next one."""
    for losses, vs in cohort_updates(task, theta, group, local, augment):
        yield from zip(losses, vs, strict=True)


def cohort_updates(
    task: Task, theta: Tensor, group: Group, local: Local, augment: Key
) -> Iterator[tuple[list[float], Tensor]]:
    """(losses, an update a row (C, D)), C >= 1: as many clients at once as is quickest, in their order.

    Single gradients and several steps are the task's to take, client by client or many at once
    (`gradient_rows`, `walk_rows`); theta must not lie in the memory of its model where there are several.
    """
    if local.probes is not None:
        for client, key in group:
            loss, v = _slopes(task, theta, client, key, local, local.probes, augment)
            yield [loss], v[None]
        return
    walks = _walks(task, group, local, augment)
    if local.steps == 1:
        yield from task.gradient_rows(theta, [walk[0] for walk in walks])
        return
    yield from task.walk_rows(theta, walks, local.rate, local.prox)


def _joined(task: Task, group: Group, weights: list[float], local: Local, augment: Key) -> Batch:
    """The examples of all clients of a group, each client's mean with its weight."""
    parts = [examples(task, c, local.batch, k, 0) for c, k in group]
    sizes = torch.tensor([len(p) for p in parts])
    weight = (torch.tensor(weights) / sizes).repeat_interleave(sizes)
    return Batch(np.concatenate(parts), weight, _pictures(augment, 0), _noise(group[0][1], 0))


def _walks(task: Task, group: Group, local: Local, augment: Key) -> list[list[Batch]]:
    """The steps of each client; one that takes all its examples in every step has them once."""
    pictures = [_pictures(augment, step) for step in range(local.steps)]
    means: dict[int, Tensor] = {}
    walks = []
    for client, key in group:
        index, walk = examples(task, client, local.batch, key, 0), list[Batch]()
        if len(index) not in means:
            means[len(index)] = torch.full((len(index),), 1.0 / len(index))
        for step, picture in enumerate(pictures):
            if step and 0 < local.batch == len(index):
                index = examples(task, client, local.batch, key, step)
            walk.append(Batch(index, means[len(index)], picture, _noise(key, step)))
        walks.append(walk)
    return walks


def _slopes(
    task: Task, theta: Tensor, client: int, key: Key, local: Local, directions: Directions, augment: Key
) -> tuple[float, Tensor]:
    """(loss, slopes (steps,)): z_s . gradient by central differences, walking on along z_s after each."""
    here, slopes, losses = task.buffer().copy_(theta), torch.zeros(local.steps), 0.0
    (walk,), epsilon = _walks(task, [(client, key)], local, augment), directions.epsilon
    for step, batch in enumerate(walk):
        directions.add(here, key, step, epsilon)
        above = task.loss(here, batch)
        directions.add(here, key, step, -2 * epsilon)
        below = task.loss(here, batch)
        slope = (above - below) / (2 * epsilon)
        directions.add(here, key, step, epsilon - (local.rate * slope if local.steps > 1 else 0.0))
        slopes[step], losses = slope, losses + (above + below) / 2
    return losses / local.steps, slopes


def _pictures(augment: Key, step: int) -> Key:
    return keyed.derive(augment, Purpose.AUGMENT, step)


def _noise(key: Key, step: int) -> Key:
    """What a client's model draws in a step comes from this; its examples, from (step, 0)."""
    return keyed.derive(key, Purpose.LOCAL, step, 1)
