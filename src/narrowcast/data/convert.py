"""Packages that hold the data in a form of their own, turned into the form that the tasks read."""

from __future__ import annotations

import io
from collections.abc import Callable
from contextlib import redirect_stderr
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from narrowcast import extras
from narrowcast.tasks.files import Bytes, DataError, reading

IMAGES = 10_000  # in a batch of CIFAR-10
CLASSES = 10
PIXELS = 32 * 32


class Converter(NamedTuple):
    """convert(from, to), what it needs installed, and what to say while it runs."""

    convert: Callable[[Path, Path], None]
    needs: tuple[str, ...]
    says: str


def require(converter: Converter, name: str) -> None:
    """Before anything is fetched: everything that will be needed is there."""
    if missing := [name for name in converter.needs if find_spec(name) is None]:
        raise RuntimeError(f"{name} needs {', '.join(missing)}: pip install 'narrowcast[text]'")


def as_it_is(raw: Path, to: Path) -> None:
    raw.rename(to)


def cifar10(raw: Path, to: Path) -> None:
    """Rows of 1 024 pixels of three colours and lists of labels -> CIFAR-10's own binary batches."""
    labels = {part: _labels(raw / f"{part}_lables.json", n) for part, n in (("train", 5), ("test", 1))}
    to.mkdir()
    for i in range(5):
        mine = labels["train"][i * IMAGES : (i + 1) * IMAGES]
        _batch(raw / f"data_batch_{i + 1}.png", mine, to / f"data_batch_{i + 1}.bin")
    _batch(raw / "test_batch.png", labels["test"], to / "test_batch.bin")


def _labels(path: Path, batches: int) -> Bytes:
    """So many batches of them, every class equally often."""
    import msgspec

    with reading(path, "a list of labels"):
        labels = np.array(msgspec.json.decode(path.read_bytes(), type=list[int]), np.uint8)
    counts = np.bincount(labels, minlength=CLASSES)
    if not (counts == batches * IMAGES // CLASSES).all() or len(counts) != CLASSES:
        raise DataError(
            f"{path.name} has {counts.tolist()} labels of each class, CIFAR-10 {batches * IMAGES // CLASSES} "
            f"of each of {CLASSES}"
        )
    return labels


def _batch(picture: Path, labels: Bytes, to: Path) -> None:
    """Records of a label and 3 x 1 024 pixels, colour by colour."""
    extras.require("PIL", "images", "a picture of images")
    from PIL import Image

    with reading(picture, "a picture of images"), Image.open(picture, formats=("PNG",)) as image:
        if image.size != (PIXELS, IMAGES) or image.mode != "RGB":  # known before anything is decoded
            raise DataError(f"{picture.name} is {image.size} {image.mode}, needed {(PIXELS, IMAGES)} RGB")
        pixels: Bytes = np.asarray(image)
    records = np.empty((IMAGES, 1 + 3 * PIXELS), np.uint8)
    records[:, 0] = labels
    records[:, 1:] = pixels.transpose(0, 2, 1).reshape(IMAGES, -1)
    to.write_bytes(records.tobytes())


def smollm2(raw: Path, to: Path) -> None:
    """A GGUF file's model in full float32, as `--model` reads it.

    The model is built anew from its configuration: one that was read from GGUF remembers its quantisation,
    and steps through it are five times slower.
    """
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    from narrowcast.tasks.text.models import save

    (file,) = raw.glob("*.gguf")
    where: dict[str, Any] = {"gguf_file": file.name, "local_files_only": True}
    with redirect_stderr(io.StringIO()):  # bars of the libraries', across what the command says
        read: Any = AutoModelForCausalLM.from_pretrained(raw, dtype=torch.float32, **where)
        read.config.__dict__.pop("quantization_config", None)
        model = type(read)(read.config)
        model.load_state_dict(read.state_dict())
        save(model, AutoTokenizer.from_pretrained(raw, **where), to)


CONVERTERS: dict[str, Converter] = {
    "": Converter(as_it_is, (), ""),
    "cifar10": Converter(cifar10, (), "turning pictures into CIFAR-10's binary files"),
    "smollm2": Converter(
        smollm2,
        ("transformers", "accelerate", "gguf"),
        "unpacking its 4-bit weights to float32, once: about a minute",
    ),
}
