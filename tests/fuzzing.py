"""Hostile bytes by the hundred thousand: true messages, mutated, at everything that reads bytes from outside.

    python tests/fuzzing.py 1000000 [SEED]

A target is whatever reads: every method's uploads at the server and downloads at the client, Flower's own
messages, the model file. Each mutated message must be used properly or refused with a WireError, in bounded
time and memory, and leave the state of whoever read it as it was. A failure prints the message.
"""

from __future__ import annotations

import random
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import msgspec

from fuzz_targets import Target, targets
from narrowcast.rounds import records
from narrowcast.wire.messages import WireError

SECONDS = 2.0  # of this process's time, for one message
MEMORY = 256 << 20  # beyond what a target took before
LONGEST = MEMORY >> 10  # of a message: repeats of repeats would else take the memory themselves
BYTES = [b"", b"\0", b"\xff" * 8, b"\xff\xfe", bytes(40), b"\x7f\x80\0\0", b"\xc1", b"\xdd\xff\xff\xff\xff"]
VALUES: list[Any] = [
    0, -1, 1, 127, 128, 255, 1 << 31, (1 << 32) - 1, 1 << 32, (1 << 64) - 1, -(1 << 63), 0.0, float("nan"),
    float("inf"), 1e308, None, True, "", "text", "\ud7ff" * 9, b"", bytes(4), bytes(8), b"\xff" * 400, [],
    [[]] * 40, {}, {"": 0}, {"dim": 1 << 40}, [0] * 3000,
]  # fmt: skip


def mutated(dice: random.Random, corpus: list[bytes]) -> bytes:
    """One of the corpus, changed once or a few times, as bytes or as a structure."""
    data = dice.choice(corpus)
    for _ in range(dice.choice((1, 1, 1, 2, 5))):
        data = dice.choice(_CHANGES)(dice, data, corpus)[:LONGEST]
    return data


def _flip(dice: random.Random, data: bytes, corpus: list[bytes]) -> bytes:
    place = dice.randrange(8 * len(data) + 8) % max(1, 8 * len(data))
    changed = bytearray(data)
    if changed:
        changed[place // 8] ^= 1 << place % 8
    return bytes(changed)


def _overwrite(dice: random.Random, data: bytes, corpus: list[bytes]) -> bytes:
    new, at = dice.choice(BYTES), dice.randrange(len(data) + 1)
    return data[:at] + new + data[at + len(new) :]


def _insert(dice: random.Random, data: bytes, corpus: list[bytes]) -> bytes:
    at = dice.randrange(len(data) + 1)
    return data[:at] + dice.choice(BYTES) + data[at:]


def _cut(dice: random.Random, data: bytes, corpus: list[bytes]) -> bytes:
    a, b = sorted(dice.randrange(len(data) + 1) for _ in range(2))
    return dice.choice((data[:a], data[a:], data[:a] + data[b:]))


def _splice(dice: random.Random, data: bytes, corpus: list[bytes]) -> bytes:
    other = dice.choice(corpus)
    return data[: dice.randrange(len(data) + 1)] + other[dice.randrange(len(other) + 1) :]


def _repeat(dice: random.Random, data: bytes, corpus: list[bytes]) -> bytes:
    a, b = sorted(dice.randrange(len(data) + 1) for _ in range(2))
    return data[:b] + data[a:b] * dice.choice((1, 3, 200)) + data[b:]


def _structure(dice: random.Random, data: bytes, corpus: list[bytes]) -> bytes:
    """Exchange one value somewhere in the message, which stays well formed."""
    try:
        return msgspec.msgpack.encode(_exchanged(dice, msgspec.msgpack.decode(data)))
    except (msgspec.MsgspecError, ValueError, TypeError, RecursionError, OverflowError):
        return _flip(dice, data, corpus)


def _exchanged(dice: random.Random, value: Any) -> Any:
    if isinstance(value, list) and value and dice.random() < 0.9:
        at = dice.randrange(len(value))
        return [*value[:at], _exchanged(dice, value[at]), *value[at + 1 :]]
    if isinstance(value, dict) and value and dice.random() < 0.9:
        key = dice.choice(list(value))
        return value | {key: _exchanged(dice, value[key])}
    if isinstance(value, bytes) and value and dice.random() < 0.6:
        return _CHANGES[dice.randrange(4)](dice, value, [value])
    return dice.choice(VALUES)


_CHANGES = [_flip, _overwrite, _insert, _cut, _splice, _repeat, _structure, _structure, _structure]


def fuzz(count: int, seed: int, folder: Path) -> dict[str, tuple[int, int]]:
    """`count` messages over all targets: {target: (used, refused)}; an AssertionError if one does harm."""
    found = {}
    all_targets = targets(folder)
    for number, target in enumerate(all_targets):
        dice, used, refused = random.Random(f"{seed} {target.name}"), 0, 0
        taken = [_try(target, data) for data in target.corpus]
        assert any(taken), f"{target.name}: refuses its own messages, so that mutated ones say nothing"
        records.reset_peak_memory()
        before = records.peak_memory()
        share = count * (number + 1) // len(all_targets) - count * number // len(all_targets)
        for _ in range(share):
            if _try(target, mutated(dice, target.corpus)):
                used += 1
            else:
                refused += 1
        assert target.same(), f"{target.name}: its state has changed"
        grown = records.peak_memory() - before
        assert grown < MEMORY, f"{target.name}: {grown >> 20} MB for messages of {LONGEST >> 10} kB at most"
        found[target.name] = used, refused
    return found


def _try(target: Target, data: bytes) -> bool:
    """Whether the message was used; False: refused."""
    started = time.process_time()
    try:
        target.read(data)
        used = True
    except WireError:
        used = False
    except Exception as error:
        raise AssertionError(f"{target.name}: {error!r} for the message {data.hex()}") from error
    took = time.process_time() - started
    assert took < SECONDS, f"{target.name}: {took:.1f} s for the message {data.hex()[:1000]}"
    return used


if __name__ == "__main__":
    wanted = int(sys.argv[1]) if len(sys.argv) > 1 else 1_000_000
    first = int(sys.argv[2]) if len(sys.argv) > 2 else int(time.time())
    with tempfile.TemporaryDirectory() as temporary:
        print(f"{wanted} messages, seed {first}", flush=True)
        for name, (used, refused) in fuzz(wanted, first, Path(temporary)).items():
            print(f"{name:40} {used:8} used {refused:8} refused")
