"""What the caller may choose about a built-in task, and what the tasks share in obeying it."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import ArrayLike

from narrowcast import random
from narrowcast.random import MASK64, Key, Purpose
from narrowcast.tasks import partition
from narrowcast.tasks.partition import Partition

if TYPE_CHECKING:  # the options themselves need no torch
    from narrowcast.tasks.base import Examples

TRAINABLE = ("all", "biases", "lora")
PARTITIONS = ("class", "iid", "dirichlet", "natural")
DATA_VARIABLE = "NARROWCAST_DATA"
EXAMPLES_PER_CLIENT = 5  # the paper's: 50 000 images, 10 000 clients
HELD_OUT = 10  # one in ten examples of the training set


@dataclass(frozen=True)
class TaskOptions:
    """None leaves a choice to the task. Everything random about the task follows from `key`.

    `validation` holds a keyed tenth of the training set out and evaluates on it instead of the test set, so
    that rates can be tuned without reading the test set. `trainable` chooses what is trained and sent at all:
    see trainable.restrict.
    """

    key: Key
    clients: int | None = None
    partition: str | None = None
    alpha: float = 0.5
    width: int | None = None
    data: Path | None = None
    validation: bool = False
    trainable: str = "all"
    lora_rank: int = 4
    lora_alpha: float = 4.0

    def __post_init__(self) -> None:
        if not 0 <= self.key <= MASK64:
            raise ValueError(f"a task's key is an int of 64 bits, got {self.key}: pass 0 <= key < 2^64")
        if self.clients is not None and self.clients < 1:
            raise ValueError(f"a task needs at least one client, got clients={self.clients}")
        if self.partition is not None and self.partition not in PARTITIONS:
            raise ValueError(
                f"there is no partition {self.partition!r}: choose one of {', '.join(PARTITIONS)}"
            )
        if not (math.isfinite(self.alpha) and self.alpha > 0):
            raise ValueError(f"Dirichlet needs a finite alpha > 0, got {self.alpha}")
        if self.width is not None and self.width < 1:
            raise ValueError(f"a model's width is at least 1, got {self.width}")
        if self.trainable not in TRAINABLE:
            raise ValueError(f"cannot train {self.trainable!r}: choose one of {', '.join(TRAINABLE)}")
        if self.lora_rank < 1:
            raise ValueError(f"LoRA's rank is at least 1, got {self.lora_rank}")
        if not (math.isfinite(self.lora_alpha) and self.lora_alpha > 0):
            raise ValueError(f"LoRA needs a finite alpha > 0, got {self.lora_alpha}")


def split(
    options: TaskOptions, labels: ArrayLike, ids: ArrayLike | None = None, own: str = "class"
) -> Partition:
    """The examples cut into clients as the options say; `own` is the task's default, `ids` natural owners."""
    examples = len(np.asarray(labels))
    clients = max(1, examples // EXAMPLES_PER_CLIENT) if options.clients is None else options.clients
    match options.partition or own:
        case "class":
            return partition.by_class(labels, clients, options.key)
        case "iid":
            return partition.iid(examples, clients, options.key)
        case "dirichlet":
            return partition.dirichlet(labels, clients, options.alpha, options.key)
        case _:
            return _natural(options, ids)


def _natural(options: TaskOptions, ids: ArrayLike | None) -> Partition:
    if ids is None:
        raise ValueError(
            "this task's examples have no natural owners (writers, speakers): choose partition 'class', "
            "'iid' or 'dirichlet'"
        )
    cut = partition.natural(ids)
    if options.clients not in (None, len(cut)):
        raise ValueError(
            f"the data has {len(cut)} natural clients, not {options.clients}: leave clients unset"
        )
    return cut


def hold_out(options: TaskOptions, train: Examples, test: Examples) -> tuple[Examples, Examples]:
    """(train, test) as they are, or for validation (nine tenths of train, its keyed tenth)."""
    if not options.validation:
        return train, test
    examples = len(train[1])
    held = examples // HELD_OUT
    if held < 1:
        raise ValueError(f"a tenth of {examples} examples is none: validation needs at least {HELD_OUT}")
    order = random.permuted(random.derive(options.key, Purpose.DATA), examples)
    out, kept = np.sort(order[:held]), np.sort(order[held:])
    return (train[0][kept], train[1][kept]), (train[0][out], train[1][out])


def find_data(
    options: TaskOptions,
    present: Callable[[Path], bool],
    *,
    folders: Sequence[str],
    needed: str,
    how: str,
    system: Iterable[Path] = (),
) -> Path:
    """The first folder that has the data: DIR and DIR/<folders>, or `system` when no DIR was given.

    DIR is `options.data`, else the environment variable NARROWCAST_DATA. A DIR that was asked for by option
    is the only place searched: other data than the asked for would go unnoticed.
    """
    variable = os.environ.get(DATA_VARIABLE)
    root = options.data if options.data is not None else Path(variable) if variable else None
    places = [] if root is None else [root, *(root / folder for folder in folders)]
    if options.data is None:
        places += system
    for place in places:
        if present(place):
            return place
    tried = ", ".join(map(str, places)) or f"nowhere: neither --data nor {DATA_VARIABLE} is set"
    raise FileNotFoundError(
        f"needed: {needed}. Searched: {tried}. To get it: {how}; then pass its folder as --data DIR or set "
        f"{DATA_VARIABLE}"
    )
