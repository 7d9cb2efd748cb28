"""Fashion-MNIST: 60 000 + 10 000 grey images of 28 x 28 in ten classes, read from its IDX files."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import torch
from torch import Tensor

from narrowcast.tasks.assemble import assemble, standardised
from narrowcast.tasks.files import check_labels, read_idx
from narrowcast.tasks.nets import CONV_WIDTH, SIDE, convnet, mlp
from narrowcast.tasks.options import TaskOptions, find_data
from narrowcast.tasks.start import Start
from narrowcast.tasks.torch_task import Examples, TorchTask
from narrowcast.tasks.trainable import restrict

WIDTH = 128
MEAN, DEVIATION = 0.2860, 0.3530  # of the training images, scaled to [0, 1]
SYSTEM = Path("/usr/share/datasets/fashion-mnist")


def _file(folder: Path, name: str) -> Path:
    """The file, gzip or plain."""
    packed = folder / f"{name}.gz"
    return packed if packed.is_file() else folder / name


def paths_of(folder: Path, part: str) -> tuple[Path, Path]:
    return _file(folder, f"{part}-images-idx3-ubyte"), _file(folder, f"{part}-labels-idx1-ubyte")


def find(options: TaskOptions) -> Path:
    return find_data(
        options,
        lambda folder: all(p.is_file() for part in ("train", "t10k") for p in paths_of(folder, part)),
        folders=("fashion-mnist",),
        system=(SYSTEM,),
        needed="Fashion-MNIST's train- and t10k-images-idx3-ubyte and -labels-idx1-ubyte, plain or .gz",
        how="`narrowcast data fashion-mnist`, or `apt-get install dataset-fashion-mnist`, which puts them in "
        f"{SYSTEM}",
    )


@cache
def load(folder: Path) -> tuple[Examples, Examples]:
    """(train, test): images as (n, 784) bytes, a quarter of their size as floats."""
    return _read(*paths_of(folder, "train")), _read(*paths_of(folder, "t10k"))


def _read(images: Path, labels: Path) -> Examples:
    x = read_idx(images, (28, 28))
    y = check_labels(read_idx(labels, ()), len(x), 10, labels)
    return torch.from_numpy(x.reshape(-1, 784)), torch.from_numpy(y).long()


def normalise(images: Tensor) -> Tensor:
    """Bytes -> floats of mean 0 and deviation 1 over the training set."""
    return standardised(images, MEAN, DEVIATION)


def pictures(images: Tensor) -> Tensor:
    """(B, 784) bytes -> (B, 1, 28, 28) of such floats."""
    return normalise(images).view(-1, 1, SIDE, SIDE)


def start(options: TaskOptions) -> Start:
    """MLP 784-w-w-10 (w = 128: 118 282 parameters)."""
    width = options.width or WIDTH
    return Start(restrict(mlp(options.key, 784, width, width, 10), options))


def start_conv(options: TaskOptions) -> Start:
    """Two convolutions and a linear layer (w = 16: 24 186 parameters)."""
    return Start(restrict(convnet(options.key, options.width or CONV_WIDTH), options))


def build(options: TaskOptions) -> TorchTask:
    """The MLP on five images of one class a client: 12 000 clients."""
    model = start(options).module
    return assemble(options, model, *load(find(options)), prepare=normalise, name="fashion-mnist")


def build_conv(options: TaskOptions) -> TorchTask:
    """The convolutions on the same data, clients and all."""
    model = start_conv(options).module
    return assemble(options, model, *load(find(options)), prepare=pictures, name="fashion-mnist-conv")
