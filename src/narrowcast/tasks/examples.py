"""Examples in whatever form people have them: tensors, numpy arrays, a Dataset, a DataLoader."""

from __future__ import annotations

from itertools import islice
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader, IterableDataset, TensorDataset, default_collate

from narrowcast.numerics.flat import all_finite

Examples = tuple[Tensor, Tensor]  # (inputs, targets)
CHUNK = 1024
FORMS = "give (inputs, targets) as tensors or arrays, or a Dataset or DataLoader of such pairs"


def as_examples(given: Any, part: str) -> Examples:
    """(inputs, targets) of one shape each, in the order of the data set; a ValueError says what to do.

    Of a DataLoader the data set and the collate function count; which examples a step takes, the run says.
    """
    examples = _gathered(given, part)
    _check(examples, part)
    return examples


def _gathered(given: Any, part: str) -> Examples:
    if isinstance(given, TensorDataset):
        given = given.tensors
    if isinstance(given, tuple | list) and len(given) == 2:
        return _tensor(given[0], f"{part}'s inputs"), _tensor(given[1], f"{part}'s targets")
    collate = given.collate_fn if isinstance(given, DataLoader) else default_collate
    items = given.dataset if isinstance(given, DataLoader) else given
    if isinstance(items, IterableDataset):
        raise ValueError(
            f"{part} is an IterableDataset, whose examples have no numbers: make a list of them first"
        )
    if not (hasattr(items, "__getitem__") and hasattr(items, "__len__")) or isinstance(
        items, Tensor | np.ndarray
    ):
        raise ValueError(f"{part} is a {type(given).__name__}: {FORMS}")
    return _collected(items, collate, part)


def _collected(items: Any, collate: Any, part: str) -> Examples:
    """All items of a data set, collated in chunks."""
    if not len(items):
        raise ValueError(f"{part} has no examples: a task needs at least one")
    inputs, targets = list[Tensor](), list[Tensor]()
    numbers = iter(range(len(items)))
    while some := [items[i] for i in islice(numbers, CHUNK)]:
        try:
            pair = collate(some)
        except (RuntimeError, TypeError) as error:
            raise ValueError(
                f"{part}'s examples cannot be put together ({str(error).splitlines()[0]}): inputs of one "
                "shape are needed; pad them, or inherit from narrowcast.Task"
            ) from error
        if not (isinstance(pair, tuple | list) and len(pair) == 2):
            raise ValueError(
                f"{part}'s examples are no pairs of input and target, but {type(some[0]).__name__}: {FORMS}"
            )
        inputs.append(_tensor(pair[0], f"{part}'s inputs"))
        targets.append(_tensor(pair[1], f"{part}'s targets"))
    return torch.cat(inputs), torch.cat(targets)


def _tensor(values: Any, what: str) -> Tensor:
    """Tensors as they are; of arrays, float64 becomes float32."""
    if isinstance(values, Tensor):
        return values
    try:
        array = np.asarray(values)
        if array.dtype == np.float64:
            array = array.astype(np.float32)
        return torch.from_numpy(np.ascontiguousarray(array))
    except (TypeError, ValueError) as error:
        raise ValueError(f"{what} are no numbers ({str(error).splitlines()[0]}): {FORMS}") from None


def _check(examples: Examples, part: str) -> None:
    inputs, targets = examples
    if len(inputs) != len(targets) or not len(targets):
        raise ValueError(
            f"{part} has {len(inputs)} inputs and {len(targets)} targets: each input needs one target, and a "
            "task at least one example"
        )
    for values, what in ((inputs, "inputs"), (targets, "targets")):
        if values.is_floating_point() and not all_finite(values):
            raise ValueError(
                f"{part}'s {what} have NaN or infinite values: clean or drop those examples first"
            )
