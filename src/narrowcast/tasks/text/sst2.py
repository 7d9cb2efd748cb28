"""SST-2: is a sentence of a film review positive? The paper's second task, 50 or 500 clients, IID."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import torch

from narrowcast.tasks.files import DataError
from narrowcast.tasks.options import TaskOptions, choose, find_data, split
from narrowcast.tasks.start import Start
from narrowcast.tasks.text.files import existing, read_lines
from narrowcast.tasks.text.models import classifier
from narrowcast.tasks.text.ragged import Ragged
from narrowcast.tasks.text.task import Classifier

CLIENTS = 50
TOKENS = 128
MODEL = "google-bert/bert-base-uncased"  # the paper's, 109 million parameters

Sentences = tuple[list[str], list[int]]


def find(options: TaskOptions) -> Path:
    return find_data(
        options,
        lambda folder: all(existing(folder, f"{part}.tsv") for part in ("train", "dev")),
        folders=("sst2", "SST-2"),
        needed="GLUE's SST-2: train.tsv and dev.tsv, plain, .xz or .gz, with the columns sentence and label",
        how="fetch https://dl.fbaipublicfiles.com/glue/data/SST-2.zip and unpack it",
    )


@cache
def load(folder: Path) -> tuple[Sentences, Sentences]:
    """(train, dev). GLUE keeps the labels of its test set to itself, so dev is what a run is judged by."""
    train, dev = (_read(folder, f"{part}.tsv") for part in ("train", "dev"))
    return train, dev


def _read(folder: Path, name: str) -> Sentences:
    path = existing(folder, name)
    assert path is not None
    head, *lines = read_lines(path) or [""]
    if head.split("\t") != ["sentence", "label"]:
        raise DataError(f"{path} begins with {head[:60]!r}, SST-2 with the columns sentence and label")
    sentences, labels = [], []
    for number, line in enumerate(lines, 2):
        sentence, tab, label = line.rpartition("\t")
        if not tab or label not in ("0", "1") or not sentence.strip():
            raise DataError(f"{path}, line {number}: needed a sentence, a tab, and 0 or 1, got {line[:60]!r}")
        sentences.append(sentence)
        labels.append(int(label))
    if not sentences:
        raise DataError(f"{path} has no sentences")
    return sentences, labels


def start(options: TaskOptions) -> Start:
    """BERT with a fresh head of two classes."""
    return classifier(options, MODEL, classes=2)


def build(options: TaskOptions) -> Classifier:
    """The same; sentences dealt at random to 50 clients."""
    train, dev = load(find(options))
    chosen = choose(options, len(train[0]), len(dev[0]))
    module, tokens, fresh = start(options)
    most = options.tokens or TOKENS

    def texts(source: Sentences, index: list[int]) -> tuple[Ragged, torch.Tensor]:
        ids = tokens.classified([source[0][i] for i in index], most)
        return Ragged(ids), torch.tensor([source[1][i] for i in index])

    examples = texts(train, chosen.train.tolist())
    return Classifier(
        module,
        train=examples,
        test=texts(train if chosen.held_out else dev, chosen.test.tolist()),
        clients=split(options, examples[1].numpy(), own="iid", clients=CLIENTS),
        name="sst2",
        bf16=options.precision == "bf16",
        tokenizer=tokens.tokenizer,
        fresh=fresh,
    )
