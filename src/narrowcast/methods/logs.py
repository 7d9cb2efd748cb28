"""The log of finished stages: their Sigmas as they are sent, as many as anybody may still be sent.

A client that lacks more than the model's size of them, or more than a message can have, is sent base instead,
so the oldest are let go: after any number of stages the log takes no more than the model.
"""

from __future__ import annotations

import bisect
import math
from dataclasses import dataclass
from typing import Any

import torch

from narrowcast.wire import messages as wire
from narrowcast.wire.messages import Block

SLACK = 64  # bytes: more than what is around the blocks of a message


@dataclass(frozen=True)
class Log:
    blocks: tuple[Block, ...] = ()  # Sigma of each finished stage, but for the first `folded`
    starts: tuple[int, ...] = (
        0,
    )  # the version at which each of these began; the last is the present stage's
    folded: int = 0  # stages that base alone has

    @property
    def stage(self) -> int:
        """The present one."""
        return self.folded + len(self.blocks)

    def lacking(self, have: int | None, version: int) -> int:
        """How many finished stages a client lacks; whoever claims an impossible version lacks them all.

        More than there are blocks means that they do not lead to the present: it needs base.
        """
        if have is None or not 0 <= have <= version:
            return len(self.blocks) + (self.folded > 0)
        return len(self.starts) - bisect.bisect_right(self.starts, have)

    def has(self, count: int) -> bool:
        """Whether the last stages' blocks are here, and a message can have them beside the present Sigma."""
        return count <= min(len(self.blocks), wire.MAX_BLOCKS - 1)

    def last(self, count: int) -> tuple[Block, ...]:
        """The blocks of the last stages."""
        return self.blocks[max(0, len(self.blocks) - count) :]

    def followed_by(self, block: Block, version: int, D: int) -> Log:
        """The present stage of a model of D parameters ends with this Sigma; the next begins here."""
        blocks, after = (*self.blocks, block), 0
        most = 4 * D + SLACK if wire.fits(4 * D) else math.inf  # else nobody can be sent base
        for i in reversed(range(len(blocks))):
            if after > most:
                blocks = blocks[i + 1 :]
                break
            after += len(blocks[i].data)
        blocks = blocks[max(0, len(blocks) + 1 - wire.MAX_BLOCKS) :]  # one is left for the present Sigma
        starts = (*self.starts, version)[-len(blocks) - 1 :]
        return Log(blocks, starts, self.stage + 1 - len(blocks))

    def state(self) -> dict[str, Any]:
        """What a checkpoint keeps: all bytes in one tensor."""
        data = b"".join(block.data for block in self.blocks)
        held = (
            torch.frombuffer(bytearray(data), dtype=torch.uint8)
            if data
            else torch.empty(0, dtype=torch.uint8)
        )
        blocks = [(block.format, len(block.data)) for block in self.blocks]
        return {"log": held, "blocks": blocks, "starts": list(self.starts), "folded": self.folded}


def restored(state: dict[str, Any]) -> Log:
    """The log of a state; one of the first version has the numbers themselves."""
    starts = tuple(state["starts"])
    if "blocks" not in state:
        return Log(tuple(wire.block(sigma) for sigma in state["log"]), starts)
    data, blocks, at = state["log"].numpy().tobytes(), list[Block](), 0
    for format, size in state["blocks"]:
        blocks.append(Block(format, data[at : at + size]))
        at += size
    return Log(tuple(blocks), starts, state.get("folded", 0))
