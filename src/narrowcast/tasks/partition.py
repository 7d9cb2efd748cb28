"""Cutting a data set into clients: IID, by class (the paper's), Dirichlet, natural ids.

Labels and ids are anything that NumPy makes an array of, a column of a `datasets.Dataset` among it:
`by_class(dataset["label"], clients=60)`, `natural(dataset["speaker_id"])`, `iid(len(dataset), clients=60)`.

A partition is two arrays, whatever the number of clients: the examples in client order, and where each
client begins.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Mapping, Sequence
from itertools import accumulate
from operator import index
from typing import Any, overload

import numpy as np
from numpy.typing import ArrayLike, NDArray

from narrowcast.numerics import keyed
from narrowcast.numerics.keyed import Key, Purpose
from narrowcast.rounds.task import IndexArray

ALPHA_LIMIT = 1e9


class Partition(Sequence[IndexArray]):
    """Clients as slices of one order of the examples: `partition[c]` are the examples of client c.

    >>> import narrowcast as nc
    >>> clients = nc.Partition(order=[4, 0, 1, 3, 2], sizes=[2, 3])
    >>> len(clients), clients[1].tolist()
    (2, [1, 3, 2])
    """

    def __init__(self, order: ArrayLike, sizes: ArrayLike) -> None:
        self.order = np.asarray(order, np.int64)
        self.offsets = np.concatenate([[0], np.cumsum(np.asarray(sizes, np.int64))])
        if self.offsets[-1] != len(self.order) or (np.diff(self.offsets) < 1).any():
            raise ValueError(
                f"sizes {np.diff(self.offsets)[:5]}... sum to {self.offsets[-1]} for {len(self.order)} "
                "examples: every client needs at least one example, and every example one client"
            )
        if len(np.unique(self.order)) != len(self.order):
            raise ValueError(
                f"the order {self.order[:5]}... names an example twice: every example has one client"
            )

    def __len__(self) -> int:
        return len(self.offsets) - 1

    @overload
    def __getitem__(self, client: int) -> IndexArray: ...
    @overload
    def __getitem__(self, client: slice) -> Sequence[IndexArray]: ...
    def __getitem__(self, client: int | slice) -> IndexArray | Sequence[IndexArray]:
        if isinstance(client, slice):
            return [self[c] for c in range(*client.indices(len(self)))]
        count = self.offsets.size - 1  # this is asked hundreds of times a round
        if not -count <= client < count:
            raise IndexError(f"client {client} of {count}")
        first, last = self.offsets[client % count : client % count + 2].tolist()
        return self.order[first:last]

    def __iter__(self) -> Iterator[IndexArray]:
        return (self[c] for c in range(len(self)))

    def of(self, kept: IndexArray) -> Partition:
        """The same clients where only the examples `kept`, in rising order, are left; some may be gone."""
        stays = np.isin(self.order, kept)
        sizes = np.diff(np.concatenate([[0], np.cumsum(stays)])[self.offsets])
        return Partition(np.searchsorted(kept, self.order[stays]), sizes[sizes > 0])

    def within(self, examples: int) -> bool:
        """Whether every client's examples are of 0 .. examples - 1, without a look at each client."""
        return not len(self.order) or bool(self.order.min() >= 0 and self.order.max() < examples)


def _even(total: int, parts: int) -> IndexArray:
    """`parts` sizes that sum to `total` and differ by at most one."""
    return np.diff(np.arange(parts + 1) * total // parts)


def _check(examples: int, clients: int) -> None:
    if not 1 <= clients <= examples:
        raise ValueError(
            f"{examples} examples cannot be cut into {clients} clients: need 1 <= clients <= examples"
        )


def _labels(labels: ArrayLike) -> NDArray[Any]:
    """One label an example, (n,), none of them NaN or None, which are no classes.

    What is no array yet is asked for all of it at once: a column of a `datasets.Dataset` reads its file then,
    and ten times slower where NumPy asks for one example after the other.
    """
    y = np.asarray(labels[:] if isinstance(labels, Sequence) else labels)
    if y.ndim != 1 or (y != y).any() or (y.dtype == object and None in y.tolist()):
        raise ValueError(
            f"need one label an example, an array (n,) without NaN or None, got shape {y.shape}: {y.flat[:5]}"
        )
    return y


def iid(examples: int, clients: int, key: Key = 0) -> Partition:
    """Examples dealt at random, equally many to each client.

    >>> import narrowcast as nc
    >>> [len(client) for client in nc.iid(10, clients=3)]
    [3, 3, 4]
    """
    examples, clients = index(examples), index(clients)
    _check(examples, clients)
    order = keyed.permuted(keyed.derive(key, Purpose.PARTITION), examples)
    return Partition(order, _even(examples, clients))


def by_class(labels: ArrayLike, clients: int, key: Key = 0) -> Partition:
    """Every client has examples of one class only; clients per class in proportion to the class.

    >>> import numpy as np, narrowcast as nc
    >>> labels = np.array([0, 1, 0, 1, 0, 1])
    >>> [set(labels[client].tolist()) for client in nc.by_class(labels, clients=4)]
    [{0}, {0}, {1}, {1}]
    """
    y = _labels(labels)
    _check(len(y), clients)
    shuffled = keyed.permuted(keyed.derive(key, Purpose.PARTITION), len(y))
    order = shuffled[np.argsort(y[shuffled], kind="stable")]
    counts = np.unique(y, return_counts=True)[1]
    if clients < len(counts):
        raise ValueError(
            f"{clients} single-class clients cannot hold {len(counts)} classes: need one a class"
        )
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
    """Each client draws its class proportions from Dirichlet(alpha): small alpha, few classes a client.

    When a class has run out, the proportions of those that are left are scaled up.

    >>> import numpy as np, narrowcast as nc
    >>> labels = np.arange(1000) % 10
    >>> few, many = (nc.dirichlet(labels, clients=10, alpha=alpha) for alpha in (0.05, 100.0))
    >>> sum(len(set(labels[c])) for c in few) < sum(len(set(labels[c])) for c in many)
    True
    """
    y = _labels(labels)
    _check(len(y), clients)
    if not 0 < alpha <= ALPHA_LIMIT:
        raise ValueError(f"Dirichlet needs 0 < alpha <= {ALPHA_LIMIT:g}, got {alpha}: for the limit, use iid")
    key = keyed.derive(key, Purpose.PARTITION)
    shuffled = keyed.permuted(key, len(y))
    classes, codes = np.unique(y[shuffled], return_inverse=True)
    pools = [shuffled[codes == c].tolist() for c in range(len(classes))]
    uniform = iter(keyed.uniforms(key, Purpose.PARTITION, len(y)).tolist())
    sizes = _even(len(y), clients)
    order: list[int] = []
    for size in sizes:
        # Polya's urn: drawing from proportions that are Dirichlet(alpha) is drawing class c with probability
        # proportional to alpha + (draws of c so far), also among the classes that are left. It needs only
        # additions, so it has the same bits on every machine; gamma variates would not.
        urn = [alpha if pool else 0.0 for pool in pools]
        for _ in range(size):
            c = _draw(urn, next(uniform))
            order.append(pools[c].pop())
            urn[c] = urn[c] + 1.0 if pools[c] else 0.0
    return Partition(order, sizes)


def _draw(weights: list[float], u: float) -> int:
    """The c with probability weights[c] / sum, by a uniform u in [0, 1); never one of weight 0."""
    edges = list(accumulate(weights))
    c = bisect_right(edges, u * edges[-1])
    # u * sum can round up to the sum, and then lies beyond the last edge.
    return c if c < len(edges) else bisect_left(edges, edges[-1])


def natural(ids: ArrayLike) -> Partition:
    """One client for every distinct id (a writer, a persona, a speaker), in the order of the ids.

    >>> import narrowcast as nc
    >>> [client.tolist() for client in nc.natural(["bo", "al", "bo"])]
    [[1], [0, 2]]
    """
    ids = _labels(ids)
    if len(ids) == 0:
        raise ValueError("no examples to cut into clients")
    return Partition(np.argsort(ids, kind="stable"), np.unique(ids, return_counts=True)[1])


def check_clients(clients: Sequence[ArrayLike], examples: int) -> Sequence[IndexArray]:
    """The clients as arrays of int64: every one has an example, and all of them are of the training set."""
    if isinstance(clients, Partition) and clients.within(examples):  # its clients have an example each
        return clients
    if isinstance(clients, Mapping) or not len(clients):
        raise ValueError(
            f"clients are a list of arrays, the indices of each client's examples, got {clients!r:.60}"
        )
    return [_indices(number, given, examples) for number, given in enumerate(clients)]


def _indices(number: int, given: ArrayLike, examples: int) -> IndexArray:
    found = np.asarray(given)
    if found.ndim != 1 or (found.size and found.dtype.kind not in "iu"):
        raise ValueError(
            f"client {number} is {found.dtype} of shape {found.shape}: the indices of its examples are "
            "integers, shape (n,); of a mask they are np.flatnonzero(mask)"
        )
    if not found.size or found.min() < 0 or found.max() >= examples:
        raise ValueError(
            f"client {number} has {len(found)} examples with indices {found[:5]}...: each client needs "
            f"at least one, all of 0 .. {examples - 1} (the training set)"
        )
    return found.astype(np.int64, copy=False)
