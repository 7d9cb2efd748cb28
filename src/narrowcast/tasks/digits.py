"""scikit-learn's digits: 1 797 images of 8 x 8 that come with the package, so nothing is fetched."""

from __future__ import annotations

import gzip
from functools import cache
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from narrowcast.extras import require
from narrowcast.numerics import keyed
from narrowcast.numerics.keyed import Purpose
from narrowcast.tasks.assemble import assemble
from narrowcast.tasks.nets import mlp
from narrowcast.tasks.options import TaskOptions
from narrowcast.tasks.start import Start
from narrowcast.tasks.torch_task import Examples, TorchTask
from narrowcast.tasks.trainable import restrict

WIDTH = 512
TRAIN_TENTHS = 8


@cache
def load() -> tuple[Examples, Examples]:
    """(train, test), 1 437 and 360 images as (n, 64) floats, scaled by the mean and deviation of train.

    The split has a key of its own: with the run's key, rates tuned on one seed's validation set would have
    been tuned on another seed's test set.
    """
    images, labels = _images_and_labels()
    order = keyed.permuted(keyed.derive(0, Purpose.DATA), len(labels))
    train, test = np.split(order, [len(labels) * TRAIN_TENTHS // 10])
    mean, deviation = images[train].mean(), images[train].std()
    inputs = torch.from_numpy(((images - mean) / deviation).astype(np.float32))
    targets = torch.from_numpy(labels)
    return (inputs[train], targets[train]), (inputs[test], targets[test])


def _images_and_labels() -> tuple[NDArray[np.float64], NDArray[np.int64]]:
    """scikit-learn's `load_digits`, read from its file: importing it for that is a third of a short run."""
    require("sklearn", "demo", "the task digits")
    spec = find_spec("sklearn")
    assert spec is not None
    assert spec.origin is not None
    file = Path(spec.origin).parent / "datasets" / "data" / "digits.csv.gz"
    if file.exists():
        with gzip.open(file, "rt") as lines:
            table = np.loadtxt(lines, delimiter=",")
        return table[:, :-1], table[:, -1].astype(np.int64)
    from sklearn.datasets import load_digits  # of a version that keeps its files elsewhere

    data = load_digits()
    return np.asarray(data.data), np.asarray(data.target, np.int64)


def start(options: TaskOptions) -> Start:
    """MLP 64-w-w-10 (w = 512)."""
    width = options.width or WIDTH
    return Start(restrict(mlp(options.key, 64, width, width, 10), options))


def build(options: TaskOptions) -> TorchTask:
    """The same on five images of one class a client: 287 clients."""
    return assemble(options, start(options).module, *load(), name="digits")
