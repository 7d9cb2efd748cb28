"""Devices by name, what memory they have, and what of it was used."""

from __future__ import annotations

import re
from typing import Any

import torch
from torch import Tensor

from narrowcast import choices

AUTO, CPU = "auto", "cpu"
KNOWN = "auto, cpu, cuda, cuda:1, mps"


def check_name(name: str) -> str:
    """A word that may be a device's, whether this machine has it or not."""
    if not re.fullmatch(choices.DEVICE, name):
        raise ValueError(f"a device is one of {KNOWN}, got {name!r}")
    return name


def automatic() -> torch.device:
    """The GPU that torch uses first, by CUDA or ROCm; else the CPU. Others must be asked for by name."""
    return find("cuda") if torch.cuda.is_available() else torch.device(CPU)


def find(name: str) -> torch.device:
    """The device of this name; a ValueError where this machine, or this torch, has none."""
    if check_name(name) == AUTO:
        return automatic()
    try:
        device = torch.device(name)
        if device.type == CPU:
            return torch.device(CPU)
        module: Any = torch.get_device_module(device)
        count = module.device_count() if module.is_available() else 0
    except (RuntimeError, AssertionError) as error:
        raise ValueError(f"torch knows no device {name!r} ({str(error).splitlines()[0]}): {KNOWN}") from None
    if not count:
        raise ValueError(
            f"there is no device {name!r} here that torch {torch.__version__} could use: leave --device out, "
            "or install a torch that is built for it (docs/gpu.md)"
        )
    asked: int | None = device.index  # of which torch says that it is always there
    number = asked or 0 if asked is not None or device.type != "cuda" else module.current_device()
    if number >= count:
        raise ValueError(f"there is no device {name!r}: this machine has {count}, counted from 0")
    return torch.device(device.type, number)


def wide(x: Tensor) -> Tensor:
    """x in float64, for a sum that must not overflow or lose much; on Apple's, which have none, as it is."""
    return x if x.device.type == "mps" else x.double()


def memory_free(device: torch.device) -> int | None:
    """Bytes of the device that nobody holds; None where it does not say."""
    if device.type != "cuda":
        return None
    free, _ = torch.cuda.mem_get_info(device)
    return int(free)


def reset_peak_memory(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)


def peak_memory(device: torch.device) -> int:
    """Bytes that torch held there at their peak since the last reset; 0: the device does not say."""
    if device.type == "cuda":
        return int(torch.cuda.max_memory_allocated(device))
    if device.type == "mps":
        return int(torch.mps.current_allocated_memory())
    return 0


def synchronise(device: torch.device) -> None:
    """Wait for what was begun there."""
    if device.type != CPU:
        module: Any = torch.get_device_module(device)
        module.synchronize()
