"""Blocks of finished stages as a checkpoint holds them: one tensor of bytes, however many there are."""

from __future__ import annotations

from typing import Any

import torch

from narrowcast.wire import messages as wire
from narrowcast.wire.messages import Block


def to_state(log: tuple[Block, ...]) -> dict[str, Any]:
    data = b"".join(block.data for block in log)
    held = torch.frombuffer(bytearray(data), dtype=torch.uint8) if data else torch.empty(0, dtype=torch.uint8)
    return {"log": held, "blocks": [(block.format, len(block.data)) for block in log]}


def from_state(state: dict[str, Any]) -> tuple[Block, ...]:
    """The blocks of a state; one of the first version has the numbers themselves."""
    if "blocks" not in state:
        return tuple(wire.block(sigma) for sigma in state["log"])
    data, blocks, at = state["log"].numpy().tobytes(), [], 0
    for format, size in state["blocks"]:
        blocks.append(Block(format, data[at : at + size]))
        at += size
    return tuple(blocks)
