"""Where a task's training starts: its model as it stands before the first round. No data is needed for it."""

from __future__ import annotations

from typing import Any, NamedTuple

from torch import nn


class Start(NamedTuple):
    module: nn.Module
    tokens: Any = None  # of a model over text: see text/tokens.py
    fresh: tuple[str, ...] = ()  # parameters that a pretrained model lacks: the key has drawn them
