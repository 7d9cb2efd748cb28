"""The pictures under attack, and others of their kind: CIFAR-10, or pieces of scikit-learn's two photos."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from narrowcast.numerics import Key, Purpose, keyed
from narrowcast.tasks import TaskOptions, cifar10
from narrowcast_studies.attacks.models import CLASSES, SIDE

SOURCES = ("auto", "cifar10", "photos")
LOW = (0 - cifar10.MEAN) / cifar10.DEVIATION  # (3, 1, 1): a black pixel, normalised
HIGH = (1 - cifar10.MEAN) / cifar10.DEVIATION
CANDIDATES = 100  # among which a reconstruction is looked up


@dataclass(frozen=True)
class Images:
    """Targets, and 99 decoys that no client has."""

    source: str
    x: Tensor  # (n, 3, 32, 32), normalised
    y: Tensor  # (n,)
    decoys: Tensor  # (99, 3, 32, 32)
    decoy_labels: Tensor  # (99,)


def pixels(x: Tensor) -> Tensor:
    """Normalised -> 0 .. 1."""
    return (x * cifar10.DEVIATION + cifar10.MEAN).clamp(0, 1)


def load(source: str, data: Path | None, count: int, key: Key) -> Images:
    """`count` pictures and the decoys, drawn by the key; `auto`: CIFAR-10 where it is found, else photos."""
    if source not in SOURCES:
        raise ValueError(f"unknown images {source!r}: choose one of {', '.join(SOURCES)}")
    if source != "photos":
        try:
            folder, form = cifar10.find(TaskOptions(key, data=data), (cifar10.SMALL, *cifar10.FULL))
        except FileNotFoundError:
            if source == "cifar10" or data is not None:
                raise
        else:
            images, labels = cifar10.load(folder, form)[1]
            # Cases that are kept go by this name: other pictures have another.
            name = "CIFAR-10, test set" if form is cifar10.SMALL else "CIFAR-10, the whole test set"
            return _draw(name, images, labels, count, key)
    return _draw("crops of scikit-learn's photos", *photos(), count, key)


def photos() -> tuple[Tensor, Tensor]:
    """(bytes, labels): every whole 32 x 32 piece of two photos; their labels are counted round, not seen."""
    from sklearn.datasets import load_sample_image

    pieces = []
    for name in ("china.jpg", "flower.jpg"):
        photo = np.asarray(load_sample_image(name))
        rows, columns = photo.shape[0] // SIDE, photo.shape[1] // SIDE
        whole = photo[: rows * SIDE, : columns * SIDE].reshape(rows, SIDE, columns, SIDE, 3)
        pieces.append(whole.transpose(0, 2, 4, 1, 3).reshape(-1, 3, SIDE, SIDE))
    images = torch.from_numpy(np.concatenate(pieces))
    return images, torch.arange(len(images)) % CLASSES


def _draw(source: str, images: Tensor, labels: Tensor, count: int, key: Key) -> Images:
    most = len(images) - (CANDIDATES - 1)
    if not 1 <= count <= most:
        raise ValueError(f"from 1 to {most} images of {source} can be attacked, got {count}")
    order = torch.from_numpy(keyed.permuted(keyed.derive(key, Purpose.DATA), len(images)))
    others, chosen = order[: CANDIDATES - 1], order[CANDIDATES - 1 :][:count]
    x = cifar10.normalise(images[torch.cat([chosen, others])])
    y = labels[torch.cat([chosen, others])]
    return Images(source, x[:count], y[:count], x[count:], y[count:])
