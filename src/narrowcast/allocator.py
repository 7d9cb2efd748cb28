"""glibc's allocator, told to keep what it has: a round frees and asks for the same vectors again and again.

By default anything above 128 KiB is given back to the system at once and comes back page by page, zeroed: a
fifth of a small round's time (docs/performance.md). Vectors of 32 MiB and more are still given back.
"""

from __future__ import annotations

import ctypes

M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3  # of mallopt(3)
KEPT = 32 << 20  # bytes: glibc takes no more for the second
FREE = 512 << 20  # at the end of the heap, before any is given back


def keep_memory() -> bool:
    """Whether this system's allocator took it."""
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError):  # another C library
        return False
    return bool(mallopt(M_MMAP_THRESHOLD, KEPT) and mallopt(M_TRIM_THRESHOLD, FREE))
