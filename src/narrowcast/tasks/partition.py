"""Cutting a data set into clients: IID, by class (the paper's), Dirichlet, natural ids.

A partition is two arrays, whatever the number of clients: the examples in client order, and where each
client begins.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import overload

import numpy as np
from numpy.typing import ArrayLike, NDArray

from narrowcast import random
from narrowcast.random import Key, Purpose

IndexArray = NDArray[np.int64]


class Partition(Sequence[IndexArray]):
    """Clients as slices of one order of the examples: `partition[c]` are the examples of client c."""

    def __init__(self, order: ArrayLike, sizes: ArrayLike) -> None:
        self.order = np.asarray(order, np.int64)
        self.offsets = np.concatenate([[0], np.cumsum(np.asarray(sizes, np.int64))])
        if self.offsets[-1] != len(self.order) or (np.diff(self.offsets) < 1).any():
            raise ValueError("every client needs at least one example, and every example one client")

    def __len__(self) -> int:
        return len(self.offsets) - 1

    @overload
    def __getitem__(self, client: int) -> IndexArray: ...
    @overload
    def __getitem__(self, client: slice) -> Sequence[IndexArray]: ...
    def __getitem__(self, client: int | slice) -> IndexArray | Sequence[IndexArray]:
        if isinstance(client, slice):
            return [self[c] for c in range(*client.indices(len(self)))]
        if not -len(self) <= client < len(self):
            raise IndexError(f"client {client} of {len(self)}")
        client %= len(self)
        return self.order[self.offsets[client] : self.offsets[client + 1]]

    def __iter__(self) -> Iterator[IndexArray]:
        return (self[c] for c in range(len(self)))


def _even(total: int, parts: int) -> IndexArray:
    """`parts` sizes that sum to `total` and differ by at most one."""
    return np.diff(np.arange(parts + 1) * total // parts)


def _check(examples: int, clients: int) -> None:
    if not 1 <= clients <= examples:
        raise ValueError(f"{examples} examples cannot be cut into {clients} clients: need 1 <= clients <= examples")


def iid(examples: int, clients: int, key: Key = 0) -> Partition:
    """Examples dealt at random, equally many to each client."""
    _check(examples, clients)
    order = random.permuted(random.derive(key, Purpose.PARTITION), examples)
    return Partition(order, _even(examples, clients))


def by_class(labels: ArrayLike, clients: int, key: Key = 0) -> Partition:
    """Every client has examples of one class only; clients per class in proportion to the class."""
    y = np.asarray(labels)
    _check(len(y), clients)
    shuffled = random.permuted(random.derive(key, Purpose.PARTITION), len(y))
    order = shuffled[np.argsort(y[shuffled], kind="stable")]
    counts = np.unique(y, return_counts=True)[1]
    if clients < len(counts):
        raise ValueError(f"{clients} single-class clients cannot hold {len(counts)} classes: need one a class")
    # Largest remainders, at least one client a class.
    share = counts * clients / len(y)
    per_class = np.maximum(1, np.floor(share)).astype(np.int64)
    while per_class.sum() != clients:
        step = 1 if per_class.sum() < clients else -1
        gap = (share - per_class) * step
        gap[(per_class <= 1) & (step < 0)] = -np.inf
        per_class[np.argmax(gap)] += step
    return Partition(order, np.concatenate([_even(c, k) for c, k in zip(counts, per_class, strict=True)]))


def dirichlet(labels: ArrayLike, clients: int, alpha: float, key: Key = 0) -> Partition:
    """Each client draws its class proportions from Dirichlet(alpha): small alpha, few classes a client."""
    y = np.asarray(labels)
    _check(len(y), clients)
    if not alpha > 0:
        raise ValueError(f"Dirichlet needs alpha > 0, got {alpha}")
    stream = np.random.Generator(np.random.Philox(key=random.derive(key, Purpose.PARTITION)))
    classes = np.unique(y)
    pools = [stream.permutation(np.flatnonzero(y == c)).tolist() for c in classes]
    sizes = _even(len(y), clients)
    order: list[int] = []
    for size in sizes:
        p = stream.dirichlet(np.full(len(classes), alpha))
        for _ in range(size):
            left = np.array([len(pool) > 0 for pool in pools])
            q = np.where(left, p + 1e-12, 0.0)
            order.append(pools[int(stream.choice(len(classes), p=q / q.sum()))].pop())
    return Partition(order, sizes)


def natural(ids: ArrayLike) -> Partition:
    """One client for every distinct id (a writer, a persona, a speaker), in the order of the ids."""
    ids = np.asarray(ids)
    if len(ids) == 0:
        raise ValueError("no examples to cut into clients")
    return Partition(np.argsort(ids, kind="stable"), np.unique(ids, return_counts=True)[1])
