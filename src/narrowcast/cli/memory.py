"""glibc's allocator, told to keep what it has: a round frees and asks for the same vectors again and again.

By default anything above 128 KiB is given back to the system at once and comes back page by page, zeroed: a
fifth of a small round's time (docs/performance.md), and of a vector as long as a large model several times
what it takes to copy it. Here nothing is mapped apart, and nothing is given back before `give_back`.
Threads begun later share the one heap: those of their own are small, and what is larger would be mapped
again.
"""

from __future__ import annotations

import ctypes
import gc
from collections.abc import Callable

M_TRIM_THRESHOLD, M_MMAP_MAX, M_ARENA_MAX = -1, -4, -8  # of mallopt(3)
NEVER = -1  # is the free end of the heap given back


def keep_memory() -> bool:
    """Whether this system's allocator took it."""
    mallopt = _of_libc("mallopt")
    wishes = ((M_MMAP_MAX, 0), (M_TRIM_THRESHOLD, NEVER), (M_ARENA_MAX, 1))
    return mallopt is not None and all(mallopt(*wish) for wish in wishes)


def give_back() -> None:
    """What is free, to the system: a run has ended, and another may need less."""
    gc.collect()
    trim = _of_libc("malloc_trim")
    if trim is not None:
        trim(0)


def _of_libc(name: str) -> Callable[..., int] | None:
    try:
        return getattr(ctypes.CDLL(None), name)  # type: ignore[no-any-return]
    except (OSError, AttributeError):  # another C library
        return None
