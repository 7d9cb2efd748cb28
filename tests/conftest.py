"""Every test starts with one torch thread (two processes share the cores) and the kernels' own default."""

import gc
import os
from collections.abc import Iterator

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # before NumPy is imported: its threads wait by spinning

import pytest
import torch
from hypothesis import settings

from doors import doors as doors
from narrowcast import registry
from narrowcast.numerics import pool

# Tests are of what is here: a method of somebody's own that is installed too is none of theirs.
_installed = registry.entry_points
registry.entry_points = lambda: _installed().select(group="narrowcast.commands")  # type: ignore[attr-defined]


@pytest.fixture(autouse=True)
def threads() -> Iterator[None]:
    torch.set_num_threads(1)
    yield
    pool.set_threads(None)


def pytest_collection_finish() -> None:
    """What imports left behind stays: collecting garbage need not look at it."""
    gc.collect()
    gc.freeze()


# A busy machine is no failure, and the first example may compile a kernel.
settings.register_profile("patient", deadline=None)
settings.load_profile("patient")
