"""CIFAR-10 with ResNet-9: the paper's first task, 10 000 clients of five images of one class."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path

import torch
from torch import Tensor

from narrowcast.numerics import keyed
from narrowcast.numerics.keyed import Key, Purpose
from narrowcast.tasks.assemble import assemble, standardised
from narrowcast.tasks.cifar10_files import FULL as FULL
from narrowcast.tasks.cifar10_files import SMALL as SMALL
from narrowcast.tasks.cifar10_files import Form
from narrowcast.tasks.nets import FULL_WIDTH, resnet9
from narrowcast.tasks.options import TaskOptions, find_data
from narrowcast.tasks.start import Start
from narrowcast.tasks.torch_task import Examples, TorchTask
from narrowcast.tasks.trainable import restrict

MEAN = torch.tensor((0.4914, 0.4822, 0.4465)).view(3, 1, 1)
DEVIATION = torch.tensor((0.2471, 0.2435, 0.2616)).view(3, 1, 1)
PAD = 4
FOLDERS = ("cifar10", "cifar-10-batches-bin")
CHUNK = 50  # images at once: ResNet-9 keeps about 2 MB an image for its backward pass, and caches are small


def normalise(images: Tensor) -> Tensor:
    """(B, 3, 32, 32) bytes -> floats of mean 0 and deviation 1 over the training set.

    Channels lie innermost, which convolutions on a CPU take a fifth less time for.
    """
    mean, deviation = MEAN.to(images.device), DEVIATION.to(images.device)
    return standardised(images.contiguous(memory_format=torch.channels_last), mean, deviation)


def augment(images: Tensor, index: Tensor, key: Key) -> Tensor:
    """Crops of the images reflected beyond their edges by 4, half of them mirrored.

    Example i is cropped and mirrored by word i of the key's stream: the same key and index give the same
    picture, whatever else is in the batch.
    """
    words = keyed.words(key, Purpose.AUGMENT, int(index.max()) + 1)[index.numpy()]
    bits = torch.from_numpy(words.astype("int64")).to(images.device)
    mirrored = (bits >> 31 == 1)[:, None]
    down, right = ((b * (2 * PAD + 1) >> 15)[:, None] for b in (bits & 0x7FFF, bits >> 15 & 0x7FFF))
    side = torch.arange(images.shape[-1], device=images.device)
    rows = _reflect(down + side - PAD, len(side))
    columns = _reflect(right + torch.where(mirrored, side.flip(0), side) - PAD, len(side))
    pixels = (len(side) * rows[:, :, None] + columns[:, None, :]).view(len(images), 1, -1)
    return images.flatten(2).gather(2, pixels.expand(-1, images.shape[1], -1)).view_as(images)


def _reflect(position: Tensor, size: int) -> Tensor:
    """-1, -2, ... -> 1, 2, ...; size, size + 1, ... -> size - 2, size - 3, ..."""
    position = position.abs()
    return torch.where(position < size, position, 2 * (size - 1) - position)


@lru_cache(maxsize=2)
def load(folder: Path, form: Form) -> tuple[Examples, Examples]:
    """(train, test): images as bytes, 184 MB. Decoding the mosaics takes seconds: once a process."""
    train, test = (form.load(folder, part) for part in ("train", "test"))
    return (
        (torch.from_numpy(train[0]), torch.from_numpy(train[1]).long()),
        (torch.from_numpy(test[0]), torch.from_numpy(test[1]).long()),
    )


def find(options: TaskOptions, forms: Sequence[Form] = FULL) -> tuple[Path, Form]:
    """The folder that has the data in one of the forms, and the first such form."""
    folder = find_data(
        options,
        lambda place: any(form.present(place) for form in forms),
        folders=FOLDERS,
        needed="CIFAR-10 as one of: " + "; ".join(", ".join(form.files) for form in forms),
        how="`narrowcast data cifar10`, or unpack cifar-10-binary.tar.gz from "
        "https://www.cs.toronto.edu/~kriz/cifar.html (pickled batches are not read)",
    )
    return folder, next(form for form in forms if form.present(folder))


def start(options: TaskOptions) -> Start:
    """ResNet-9 of width 64 (6 570 880 parameters)."""
    return Start(restrict(resnet9(options.key, options.width or FULL_WIDTH), options))


def build(options: TaskOptions, forms: Sequence[Form] = FULL, name: str = "cifar10") -> TorchTask:
    """The same on five images of one class a client: 10 000 clients."""
    return assemble(
        options,
        start(options).module,
        *load(*find(options, forms)),
        augment=augment,
        prepare=normalise,
        name=name,
        chunk=CHUNK,
    )


def build_small(options: TaskOptions) -> TorchTask:
    """The same on 5 000 + 1 000 of the images, in one file: 1 000 clients."""
    return build(options, (SMALL,), "cifar10-small")
