"""Cohorts of a plain stack of linear layers: clients cut into parts, each part walked at once by a worker.

Which clients make a part depends on their numbers of examples alone, and within a part torch computes with
one thread, so no bit depends on the number of workers. Clients of a part have about equally many examples:
what one lacks is filled up with an example of its own that weighs nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import groupby

import numpy as np
import torch
from torch import Tensor, nn

from narrowcast.numerics.flat import Layout
from narrowcast.numerics.keyed import Key
from narrowcast.rounds.task import Batch
from narrowcast.tasks.factors import Factors, kept
from narrowcast.tasks.workers import EXAMPLES_AT_ONCE, in_workers

MOST_AT_ONCE = 50  # clients of a part (docs/performance.md)
CACHE_AT_ONCE = 5 << 20  # bytes of what is read and written in every step of a part
ROWS_AT_ONCE = 5 << 20  # bytes of the updates that are made before they are looked at and sent
MEMORY_AT_ONCE = 1 << 28  # bytes that the walks of several parts leave
UNLIKE = 1.5  # times as many examples as the least of a part

Walk = Sequence[Batch]  # of one client, one a step
Part = list[int]  # places of clients in a cohort
Examples = Callable[[Tensor, Key], tuple[Tensor, Tensor]]  # (index, key) -> (inputs (n, inputs), targets)
Losses = Callable[[Tensor, Tensor], Tensor]  # (outputs (n, outputs), targets) -> (n,)


class Stack:
    """A module of plain layers at its present weights, with the examples that clients have.

    `again` says whether the same index is the same example in every step (it is augmented in none).
    """

    def __init__(
        self, layers: list[nn.Module], layout: Layout, examples: Examples, losses: Losses, again: bool
    ) -> None:
        self.layers, self.layout, self.again = layers, layout, again
        self._examples, self._losses = examples, losses

    def rows(self, walks: Sequence[Walk], rate: float, prox: float) -> Iterator[tuple[list[float], Tensor]]:
        """(losses, an update a row) of the clients in their order, a few at a time."""
        start = 0
        while start < len(walks):
            part = walks[start : start + self._together(walks[start:])]
            yield from self._rows(part, rate, prox)
            start += len(part)

    def _rows(self, walks: Sequence[Walk], rate: float, prox: float) -> Iterator[tuple[list[float], Tensor]]:
        parts = self._parts(walks)
        made = in_workers(parts, lambda part, _: self._walk([walks[c] for c in part], rate, prox))
        place = {c: (found, i) for part, found in zip(parts, made, strict=True) for i, c in enumerate(part)}
        memory = torch.empty(
            max(1, min(len(walks), ROWS_AT_ONCE // (4 * self.layout.size))), self.layout.size
        )
        for first in range(0, len(walks), len(memory)):
            rows, losses = memory[: len(walks) - first], list[float]()
            while len(losses) < len(rows):  # runs of neighbours who are neighbours in their part too
                begin = len(losses)
                found, i = place[first + begin]
                end = begin + 1
                while end < len(rows) and place[first + end] == (found, i + end - begin):
                    end += 1
                found.fill(rows[begin:end], i)
                losses += found.losses[i : i + end - begin].tolist()
            yield losses, rows

    def sums(self, walks: Sequence[Walk], weights: Tensor, rate: float, prox: float) -> tuple[Tensor, Tensor]:
        """(weights @ losses (K,), weights @ updates (K, D)), weights (K, C)."""
        parts = self._parts(walks)

        def work(part: Part, _: int) -> tuple[Tensor, Tensor]:
            found, mine = self._walk([walks[c] for c in part], rate, prox), weights[:, part]
            total = torch.zeros(len(mine), self.layout.size)
            for w, out in zip(mine, total, strict=True):
                if len(some := w.nonzero()[:, 0]):
                    found.sum(out, slice(None) if len(some) == len(w) else some, w[some])
            return mine @ found.losses, total

        losses, total = torch.zeros(len(weights)), torch.zeros(len(weights), self.layout.size)
        for loss, v in in_workers(parts, work):
            losses += loss
            total += v
        return losses, total

    def gradients(self, batches: Sequence[Batch]) -> Iterator[tuple[float, Tensor]]:
        """Of batches of any sizes and one key: every example is a client, a batch the sum of some."""
        index = np.concatenate([batch.index for batch in batches])
        edges = np.cumsum([0] + [len(batch.index) for batch in batches]).tolist()
        count = -(-len(index) // EXAMPLES_AT_ONCE)
        parts = [(len(index) * i // count, len(index) * (i + 1) // count) for i in range(count)]

        def work(part: tuple[int, int], _: int) -> list[tuple[int, float, Tensor]]:
            first, last = part
            x, y = self._examples(torch.from_numpy(index[first:last]), batches[0].key)
            step = x[:, None], lambda outputs: self._losses(outputs.flatten(0, 1), y)
            found, sums = Factors(self.layers, self.layout, [step]), list[tuple[int, float, Tensor]]()
            for k, batch in enumerate(batches):
                begin, end = max(first, edges[k]), min(last, edges[k + 1])
                if begin < end:
                    mine, v = slice(begin - first, end - first), torch.empty(self.layout.size)
                    weight = batch.weight[begin - edges[k] : end - edges[k]]
                    found.sum(v, mine, weight)
                    sums.append((k, float(weight @ found.losses[mine]), v))
            return sums

        every = (one for sums in in_workers(parts, work) for one in sums)
        for _, mine in groupby(every, key=lambda one: one[0]):
            (_, loss, v), *rest = mine
            for _, more, part in rest:
                loss, v = loss + more, v.add_(part)
            yield loss, v

    def _walk(self, walks: list[Walk], rate: float, prox: float) -> Factors:
        """The steps of the clients of a part."""
        fixed = self.again and all(batch.index is walk[0].index for walk in walks for batch in walk)
        first = self._step([walk[0] for walk in walks])
        later = zip(*(walk[1:] for walk in walks), strict=True)
        steps = [first] + [first if fixed else self._step(batches) for batches in later]
        return Factors(self.layers, self.layout, steps, rate, prox)

    def _step(self, batches: Sequence[Batch]) -> tuple[Tensor, Callable[[Tensor], Tensor]]:
        """(inputs (C, B, ...), the clients' objectives) of a step, B the most examples that one has."""
        most = max(len(batch.index) for batch in batches)
        index = np.stack([np.resize(batch.index, most) for batch in batches])
        weight = torch.zeros(index.shape)
        for row, batch in zip(weight, batches, strict=True):
            row[: len(batch.weight)] = batch.weight
        x, y = self._examples(torch.from_numpy(index.reshape(-1)), batches[0].key)
        return x.view(*index.shape, -1), partial(self._objective, y, weight)

    def _objective(self, y: Tensor, weight: Tensor, outputs: Tensor) -> Tensor:
        """(C, B, ...) outputs -> (C,) weighted sums of the losses."""
        return (self._losses(outputs.flatten(0, 1), y).view_as(weight) * weight).sum(1)

    def _parts(self, walks: Sequence[Walk]) -> list[Part]:
        """By numbers of examples, as large as is quickest and of about one size."""
        sizes = [len(walk[0].index) for walk in walks]
        keys = [tuple(batch.key for batch in walk) for walk in walks]
        order = sorted(range(len(walks)), key=lambda c: (keys[c], sizes[c]))
        runs: list[Part] = []
        for c in order:
            if runs and keys[c] == keys[runs[-1][0]] and sizes[c] <= UNLIKE * sizes[runs[-1][0]]:
                runs[-1].append(c)
            else:
                runs.append([c])
        return [part for run in runs for part in self._cut(run, len(walks[run[0]]), sizes[run[-1]])]

    def _cut(self, run: Part, steps: int, examples: int) -> Iterator[Part]:
        _, hot = kept(self.layers, steps, examples, self.again)
        most = max(1, min(MOST_AT_ONCE, CACHE_AT_ONCE // max(1, 4 * hot)))
        count = -(-len(run) // most)
        return (run[len(run) * i // count : len(run) * (i + 1) // count] for i in range(count))

    def _together(self, walks: Sequence[Walk]) -> int:
        """How many clients' walks may be kept until they are asked for."""
        walk = max(walks, key=lambda walk: len(walk[0].index))
        each, _ = kept(self.layers, len(walk), len(walk[0].index), self.again)
        return max(1, MEMORY_AT_ONCE // (4 * each))
