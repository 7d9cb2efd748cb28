"""Several workers on one cohort: each with one thread of torch, and what they do fixed by the cohort alone.

Workers of a module that is no plain stack each have a copy of it, with memory of its own: a forward pass may
keep things on its module, and local steps change its weights. Every client's update is computed as one worker
alone would, so no bit depends on their number.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from typing import Protocol, TypeVar

import torch
from torch import nn

from narrowcast.numerics import pool
from narrowcast.numerics.flat import FlatParameters

EXAMPLES_AT_ONCE = 256  # of a gradient that workers share
SMALL = 1_000_000  # parameters: below, workers are quicker than torch's own threads
Made = TypeVar("Made")
Given = TypeVar("Given")


class Modular(Protocol):
    """A task over a module."""

    module: nn.Module
    flat: FlatParameters


Kind = TypeVar("Kind", bound=Modular)


def casting(device: torch.device) -> bool:
    """Whether this thread computes under autocast there: a thread that it begins does not."""
    return bool(torch.is_autocast_enabled(device.type))


def in_workers(
    parts: Sequence[Given], work: Callable[[Given, int], Made], workers: int | None = None
) -> Iterator[Made]:
    """work(part, worker) of each part in order: as many at once as there are workers (default: threads).

    Each has one thread of torch, and autocasts where the caller does. What a worker returns may lie in its
    own memory: it is yielded before that worker goes on.
    """
    done: dict[int, Made] = {}
    casts, dtype = torch.is_autocast_enabled("cpu"), torch.get_autocast_dtype("cpu")

    def some(start: int, stop: int, first: int) -> None:
        torch.set_num_threads(1)
        with torch.autocast("cpu", dtype) if casts else nullcontext():
            for worker in range(start, stop):
                done[worker] = work(parts[first + worker], worker)

    threads, workers = torch.get_num_threads(), workers or pool.threads()
    for first in range(0, len(parts), workers):
        count = min(workers, len(parts) - first)
        try:
            pool.run(some, count, first)
        finally:
            torch.set_num_threads(threads)
        yield from (done.pop(i) for i in range(count))


def alone(work: Callable[[], Made]) -> Made:
    """work() as a worker does it, with one thread of torch."""
    return next(in_workers([None], lambda *_: work(), 1))


def copies(task: Kind, count: int) -> list[Kind]:
    """`count` more of the task, which share its data: modules, theta and gradients are their own.

    Fewer where its module cannot be copied.
    """
    made: list[Kind] = []
    while len(made) < count:
        other = copy.copy(task)
        try:
            other.module = copy.deepcopy(task.module)
        except Exception:  # whatever somebody's module raises where it holds a lock, a file, a graph
            break
        other.flat = FlatParameters(other.module)
        made.append(other)
    return made
