"""By which means a device's passes are made: Triton's kernels where it has them, else torch's operations."""

from __future__ import annotations

from functools import lru_cache
from importlib import metadata
from importlib.util import find_spec
from typing import Any

import torch

from narrowcast.numerics.devices import by_torch
from narrowcast.numerics.devices.tiling import Passes
from narrowcast.numerics.kernels.strip import LANES

OLDEST = (3, 7)  # of Triton: older ones do not compile the kernels


def on(device: torch.device, V: int = LANES) -> Passes:
    """For a matrix with tiles of V lanes, or for digests."""
    return _with_triton() if device.type == "cuda" and V == LANES and has_triton() else by_torch


def means(device: torch.device) -> str:
    """By what a device's passes are made, in words."""
    return "torch's operations" if on(device) is by_torch else f"Triton {metadata.version('triton')}"


@lru_cache(maxsize=1)
def has_triton() -> bool:
    """Whether Triton is here in a version that compiles the kernels (`pip install 'narrowcast[gpu]'`)."""
    if find_spec("triton") is None:
        return False
    version = metadata.version("triton").split(".")
    return tuple(int(part) for part in version[:2]) >= OLDEST


def _with_triton() -> Any:
    from narrowcast.numerics.devices import by_triton

    return by_triton
