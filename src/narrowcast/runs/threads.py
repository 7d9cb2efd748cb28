"""The threads of a run: torch's and the kernels', set while it goes and put back after it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch

from narrowcast.numerics import pool

_torchs = pool.Meanwhile(torch.get_num_threads, torch.set_num_threads)


@contextmanager
def using_threads(count: int) -> Iterator[None]:
    """Compute with so many threads, in torch and in our kernels."""
    with pool.using(count), _torchs.be(count):
        yield
