"""Settings that are one of a few words, and the words."""

from __future__ import annotations

from collections.abc import Collection

from narrowcast import choices
from narrowcast.methods.table import METHODS, OPTIMISERS
from narrowcast.subspaces.table import KINDS
from narrowcast.tasks.table import CUSTOM, TASKS
from narrowcast.wire.table import FORMATS

CHOICES: dict[str, Collection[str]] = {
    "task": [*TASKS, CUSTOM],
    "method": METHODS,
    "subspace": KINDS,
    "optimiser": OPTIMISERS,
    "convention": choices.CONVENTIONS,
    "uplink": FORMATS,
    "downlink": choices.DOWNLINKS,
    "sampling": choices.SAMPLING,
    "weighting": choices.WEIGHTING,
    "engine": choices.ENGINES,
    "partition": choices.PARTITIONS,
    "trainable": choices.TRAINABLE,
    "precision": choices.PRECISIONS,
}
