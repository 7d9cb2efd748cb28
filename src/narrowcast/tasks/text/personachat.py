"""PersonaChat: what would somebody with this persona answer? The paper's third task, a client a persona."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

import numpy as np

from narrowcast.tasks.files import DataError
from narrowcast.tasks.options import TaskOptions, choose, find_data, split
from narrowcast.tasks.start import Start
from narrowcast.tasks.text import dialogues
from narrowcast.tasks.text.models import language_model
from narrowcast.tasks.text.ragged import Ragged
from narrowcast.tasks.text.task import LanguageModel
from narrowcast.tasks.text.tokens import Tokens

MODEL = "openai-community/gpt2"  # the paper's, 124 million parameters
TOKENS = 128
HISTORY = 3  # utterances before the reply that the model sees


@dataclass(frozen=True)
class Reply:
    """One example: the reply is scored, the rest is given."""

    persona: tuple[str, ...]
    history: tuple[str, ...]
    reply: str


def find(options: TaskOptions) -> Path:
    return find_data(
        options,
        dialogues.present,
        folders=("personachat",),
        needed=f"PersonaChat as one of: {dialogues.JSON}; {', '.join(dialogues.TEXT)}; {dialogues.LINES}; "
        "plain or .xz or .gz",
        how=f"fetch https://s3.amazonaws.com/datasets.huggingface.co/personachat/{dialogues.JSON}",
    )


@cache
def load(folder: Path) -> tuple[list[Reply], list[Reply]]:
    """(train, valid): every utterance by the holder of a persona."""
    parts: dict[str, list[Reply]] = {"train": [], "valid": []}
    for d in dialogues.load(folder):
        for i in range(d.owner, len(d.utterances), 2):
            if d.utterances[i].strip():
                parts[d.split].append(
                    Reply(d.persona, d.utterances[max(0, i - HISTORY) : i], d.utterances[i])
                )
    if not all(parts.values()):
        raise DataError(f"{folder} has no dialogues to train on, or none to be judged by")
    return parts["train"], parts["valid"]


def owners(replies: list[Reply]) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    """The number of each reply's persona, in the order in which they first come.

    A persona is its sentences in any order: PersonaChat shuffles them from dialogue to dialogue.
    """
    numbers: dict[tuple[str, ...], int] = {}
    return np.array([numbers.setdefault(tuple(sorted(r.persona)), len(numbers)) for r in replies], np.int64)


def encode(replies: list[Reply], tokens: Tokens, most: int) -> tuple[Ragged, list[int]]:
    """Persona, history, reply and a line's end as at most `most` tokens: a long history loses its start."""
    heads = tokens.encode([f"Persona: {' '.join(r.persona)}\n" for r in replies])
    pasts = tokens.encode(
        ["".join(f"{_who(r, i)}: {u}\n" for i, u in enumerate(r.history)) + "A:" for r in replies]
    )
    tails = tokens.encode([f" {r.reply}\n" for r in replies])
    sequences, scored = [], []
    for head, past, tail in zip(heads, pasts, tails, strict=True):
        tail = tail[: most // 2]
        room = most - len(tokens.begin) - len(tail)
        head = head[: room // 2]
        sequences.append([*tokens.begin, *head, *past[len(head) - room :], *tail])
        scored.append(len(tail))
    return Ragged(sequences), scored


def _who(reply: Reply, i: int) -> str:
    """A holds the persona and speaks next, so the last of the history is B's."""
    return "B" if (len(reply.history) - i) % 2 else "A"


def start(options: TaskOptions) -> Start:
    """A causal language model."""
    return language_model(options, MODEL)


def build(options: TaskOptions) -> LanguageModel:
    """The same; one client a persona, or `clients` of them."""
    train, valid = load(find(options))
    train, valid = held_out(options, train, valid)
    clients = split(options, np.zeros(len(train)), owners(train), own="natural")
    mine = np.sort(clients.order)  # not all, where clients were chosen
    chosen = choose(replace(options, validation=False), len(mine), len(valid))
    used = mine[chosen.train]
    module, tokens, fresh = start(options)
    most = options.tokens or TOKENS
    return LanguageModel(
        module,
        train=encode([train[i] for i in used], tokens, most),
        test=encode([valid[i] for i in chosen.test], tokens, most),
        clients=clients.of(used),
        name="personachat",
        bf16=options.precision == "bf16",
        tokenizer=tokens.tokenizer,
        fresh=fresh,
    )


def held_out(options: TaskOptions, train: list[Reply], valid: list[Reply]) -> tuple[list[Reply], list[Reply]]:
    """For validation a keyed tenth of the personas, whole: their other replies would give an answer away."""
    if not options.validation:
        return train, valid
    who = owners(train)
    personas = replace(options, examples=None, test_examples=None)
    apart = set(choose(personas, int(who.max()) + 1, 0).test.tolist())
    parts: tuple[list[Reply], list[Reply]] = ([], [])
    for reply, owner in zip(train, who.tolist(), strict=True):
        parts[owner in apart].append(reply)
    return parts
