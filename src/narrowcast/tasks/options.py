"""What the caller may choose about a built-in task, and what the tasks share in obeying it."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from narrowcast import choices
from narrowcast.numerics import keyed
from narrowcast.numerics.keyed import MASK64, Key, Purpose
from narrowcast.rounds.task import IndexArray
from narrowcast.tasks import partition
from narrowcast.tasks.partition import Partition
from narrowcast.tasks.places import DATA_VARIABLE, data_roots

if TYPE_CHECKING:  # the options themselves need no torch
    from narrowcast.tasks.torch_task import Examples

EXAMPLES_PER_CLIENT = 5  # the paper's: 50 000 images, 10 000 clients
HELD_OUT = 10  # one in ten examples of the training set


@dataclass(frozen=True)
class TaskOptions:
    """None leaves a choice to the task. Everything random about the task follows from `key`.

    `validation` holds a keyed tenth of the training set out and evaluates on it instead of the test set, so
    that rates can be tuned without reading the test set. `examples` and `test_examples` keep so many of each
    set, the same tests for every key. `trainable` and `freeze` choose what is trained and sent at all: see
    trainable.restrict. The rest is for the tasks over text: see tasks/text.
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
    freeze: str | None = None
    examples: int | None = None
    test_examples: int | None = None
    model: str | None = None
    tokens: int | None = None
    precision: str = "f32"
    checkpointing: bool = False
    own: Mapping[str, Any] = field(default_factory=dict, hash=False)  # of a task that others have brought

    def __post_init__(self) -> None:
        if not 0 <= self.key <= MASK64:
            raise ValueError(f"a task's key is an int of 64 bits, got {self.key}: pass 0 <= key < 2^64")
        if self.clients is not None and self.clients < 1:
            raise ValueError(f"a task needs at least one client, got clients={self.clients}")
        if self.partition is not None:
            choices.check("partition", self.partition, choices.PARTITIONS)
        if not (math.isfinite(self.alpha) and self.alpha > 0):
            raise ValueError(f"Dirichlet needs a finite alpha > 0, got {self.alpha}")
        if self.width is not None and self.width < 1:
            raise ValueError(f"a model's width is at least 1, got {self.width}")
        choices.check("trainable", self.trainable, choices.TRAINABLE)
        if self.lora_rank < 1:
            raise ValueError(f"LoRA's rank is at least 1, got {self.lora_rank}")
        if not (math.isfinite(self.lora_alpha) and self.lora_alpha > 0):
            raise ValueError(f"LoRA needs a finite alpha > 0, got {self.lora_alpha}")
        for name, number in (("examples", self.examples), ("test_examples", self.test_examples)):
            if number is not None and number < 1:
                raise ValueError(f"a task needs at least one example, got {name}={number}")
        if self.tokens is not None and self.tokens < 8:
            raise ValueError(f"a sequence of fewer than 8 tokens holds nothing, got tokens={self.tokens}")
        choices.check("precision", self.precision, choices.PRECISIONS)

    def chosen(self) -> list[str]:
        """The choices that were made: those that are not left at their defaults. The key is none."""
        made = {
            f.name: getattr(self, f.name) != f.default for f in fields(self) if f.name not in ("key", "own")
        }
        return [name for name, chosen in made.items() if chosen]


def split(
    options: TaskOptions,
    labels: ArrayLike,
    ids: ArrayLike | None = None,
    own: str = "class",
    clients: int | None = None,
) -> Partition:
    """The examples cut into clients as the options say.

    `own` and `clients` are the task's defaults (None: five examples each), `ids` the natural owners.
    """
    examples = len(np.asarray(labels))
    clients = options.clients or clients or max(1, examples // EXAMPLES_PER_CLIENT)
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
    """One client an owner; with `clients`, so many of them by the key."""
    if ids is None:
        raise ValueError(
            "this task's examples have no natural owners (writers, speakers): choose partition 'class', "
            "'iid' or 'dirichlet'"
        )
    cut = partition.natural(ids)
    if options.clients is None or options.clients == len(cut):
        return cut
    if options.clients > len(cut):
        raise ValueError(
            f"the data has {len(cut)} natural clients, fewer than {options.clients}: ask for no more"
        )
    kept = np.sort(keyed.permuted(keyed.derive(options.key, Purpose.DATA, 1), len(cut))[: options.clients])
    return Partition(np.concatenate([cut[c] for c in kept]), [len(cut[c]) for c in kept])


class Chosen(NamedTuple):
    """Which examples a run trains on, and which it is judged by."""

    train: IndexArray  # of the training set
    test: IndexArray  # of the test set, or of the training set where some of it is held out
    held_out: bool


def choose(options: TaskOptions, train: int, test: int) -> Chosen:
    """By the options, of so many: a keyed tenth of the training set held out, and no more than asked for."""
    keep, judge = np.arange(train), np.arange(test)
    if options.validation:
        held = train // HELD_OUT
        if held < 1:
            raise ValueError(f"a tenth of {train} examples is none: validation needs at least {HELD_OUT}")
        order = keyed.permuted(keyed.derive(options.key, Purpose.DATA), train)
        judge, keep = np.sort(order[:held]), np.sort(order[held:])
    return Chosen(
        _some(keep, options.examples, options.key), _some(judge, options.test_examples, 0), options.validation
    )


def _some(index: IndexArray, count: int | None, key: Key) -> IndexArray:
    """`count` of them by the key, in order; all where there are no more."""
    if count is None or count >= len(index):
        return index
    return index[np.sort(keyed.permuted(keyed.derive(key, Purpose.DATA, 2), len(index))[:count])]


def hold_out(options: TaskOptions, train: Examples, test: Examples) -> tuple[Examples, Examples]:
    """(train, test) as they are, or what the options choose of them."""
    if not (options.validation or options.examples or options.test_examples):
        return train, test
    chosen = choose(options, len(train[1]), len(test[1]))
    judge = train if chosen.held_out else test
    return (train[0][chosen.train], train[1][chosen.train]), (judge[0][chosen.test], judge[1][chosen.test])


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

    DIR is `options.data`, else the environment variable NARROWCAST_DATA, else where `narrowcast data` puts
    what it fetches. A DIR that was asked for by option is the only place searched: other data than the
    asked for would go unnoticed.
    """
    roots = [options.data] if options.data is not None else data_roots()
    places = [place for root in roots for place in (root, *(root / folder for folder in folders))]
    if options.data is None:
        places += system
    for place in places:
        if present(place):
            return place
    tried = ", ".join(map(str, places))
    raise FileNotFoundError(
        f"needed: {needed}. Searched: {tried}. To get it: {how}; then pass its folder as --data DIR or set "
        f"{DATA_VARIABLE}"
    )
