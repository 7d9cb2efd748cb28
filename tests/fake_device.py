"""A device of our own for tests, `fake`: host memory under another name (fake_device.cpp).

It is registered for as long as the process lives, so tests that use it run in one of their own
(`device_worker.py`). What the compiler made is kept where torch keeps extensions.
"""

from __future__ import annotations

import shutil
import types
from pathlib import Path
from typing import Any

import torch

NAME = "fake"


def compiler() -> str | None:
    return shutil.which("c++") or shutil.which("g++") or shutil.which("clang++")


def register() -> None:
    """Torch knows the device from here on."""
    from torch.utils import cpp_extension

    torch.utils.rename_privateuse1_backend(NAME)
    cpp_extension.load(
        "narrowcast_fake_device",
        [str(Path(__file__).with_suffix(".cpp"))],
        extra_cflags=["-O0", "-w"],
        is_python_module=False,
    )
    module: Any = types.ModuleType(f"torch.{NAME}")
    module.is_available = module.is_initialized = lambda: True
    module.device_count = lambda: 1
    module.current_device = lambda: 0
    module.synchronize = lambda *device: None
    module._is_in_bad_fork = lambda: False
    module.manual_seed_all = lambda seed: None
    module.get_amp_supported_dtype = lambda: [torch.bfloat16]
    torch._register_device_module(NAME, module)
    torch.utils.generate_methods_for_privateuse1_backend(for_storage=False)


def crossed() -> int:
    """Bytes that the program has copied between the device and the host since it was last asked."""
    return int(torch.ops.fake.crossed())
