"""Twenty thousand hostile messages; `make fuzz` sends a million."""

import random
from pathlib import Path

import pytest

pytest.importorskip("flwr", reason="needs the extra narrowcast[flower]")
import fuzzing


def test_twenty_thousand_mutated_messages_are_used_properly_or_refused(tmp_path: Path) -> None:
    found = fuzzing.fuzz(20_000, 1, tmp_path)
    assert sum(map(sum, found.values())) == 20_000
    for name, (used, refused) in found.items():
        assert used > 0, f"{name}: no mutation left a message that can be used"
        assert refused > used, name


def test_a_hole_would_be_found(tmp_path: Path) -> None:
    """The corpus and its mutations reach bad UTF-8, a claim out of bounds and a structure of another type."""
    for hole in (UnicodeDecodeError, OverflowError, TypeError):
        for target in fuzzing.targets(tmp_path)[-5:]:
            dice = random.Random(3)
            with pytest.raises(AssertionError, match=hole.__name__):
                fuzzing._try(_leaky(target, hole), fuzzing.mutated(dice, target.corpus))


def _leaky(target: fuzzing.Target, hole: type[Exception]) -> fuzzing.Target:
    def read(data: bytes) -> None:
        raise hole("utf-8", b"", 0, 1, "planted") if hole is UnicodeDecodeError else hole("planted")

    return fuzzing.Target(target.name, target.corpus, read)
