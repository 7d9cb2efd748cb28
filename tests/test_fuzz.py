"""Twenty thousand hostile messages; `make fuzz` sends a million."""

import random
from pathlib import Path

import msgspec
import pytest

pytest.importorskip("flwr", reason="needs the extra narrowcast[flower]")
import fuzzing
from narrowcast.flower.messages import Answer
from narrowcast.wire.messages import WireError


def test_twenty_thousand_mutated_messages_are_used_properly_or_refused(tmp_path: Path) -> None:
    found = fuzzing.fuzz(20_000, 1, tmp_path)
    assert sum(map(sum, found.values())) == 20_000
    downloads = {name for name in found if name.startswith("download")}
    assert sum(found[name][0] for name in downloads) > 0
    for name, (used, refused) in found.items():
        # A download is used if it leads to the digest it names: few mutations leave that.
        assert used > 0 or name in downloads, f"{name}: no mutation left a message that can be used"
        assert refused > used, name


def test_the_hole_that_there_was_would_be_found(tmp_path: Path) -> None:
    """Bad UTF-8 in a node's answer once ended a run: a reader that catches msgspec's own errors alone."""

    def read(data: bytes) -> None:
        try:
            msgspec.msgpack.decode(data, type=Answer)
        except msgspec.DecodeError as error:
            raise WireError(str(error)) from None

    honest = next(target for target in fuzzing.targets(tmp_path) if target.name == "Flower's Answer")
    leaky, dice = fuzzing.Target(honest.name, honest.corpus, read), random.Random(1)
    tries = (fuzzing._try(leaky, fuzzing.mutated(dice, leaky.corpus)) for _ in range(20_000))
    with pytest.raises(AssertionError, match="UnicodeDecodeError"):
        list(tries)
