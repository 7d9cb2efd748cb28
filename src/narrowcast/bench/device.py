"""The rotation's passes and the digest on a device: ratios to a copy there, best of several."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from functools import partial

import torch

from narrowcast.bench.kernels import Measured
from narrowcast.numerics.devices import names, passes
from narrowcast.rounds import devices
from narrowcast.subspaces.rotation import Rotation
from narrowcast.wire.digests import digest

PASSES = ("project", "add_expanded", "digest")


def described(device: torch.device) -> str:
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else str(device)
    return f"{name}, torch {torch.__version__}, by {passes.means(device)}"


def on_device(device: torch.device, sizes: list[tuple[int, int]]) -> Iterator[Measured]:
    """Each (D, d), once the device was found to have a CPU's bits; the time is with what crosses."""
    devices.check(device)
    for D, d in sizes:
        base, out = torch.randn(D).to(device), torch.empty(D, device=device)
        A, x = Rotation(D, d, 1), torch.randn(d)
        row: Measured = {"D": D, "d": d, "copy_s": fastest(device, partial(out.copy_, base))}
        row["project_s"] = fastest(device, partial(A.project, base))
        row["add_expanded_s"] = fastest(device, partial(A.add_expanded, base, x, out))
        row["digest_s"] = fastest(device, partial(digest, base))
        yield row | {f"{name}_over_copy": row[f"{name}_s"] / row["copy_s"] for name in PASSES}


def fastest(device: torch.device, call: Callable[[], object], repeats: int = 10) -> float:
    """Seconds of the fastest call, from a device that waits to one that is done; the first may compile."""
    best = float("inf")
    for attempt in range(repeats + 1):
        names.synchronise(device)
        clock = time.perf_counter()
        call()
        names.synchronise(device)
        if attempt:
            best = min(best, time.perf_counter() - clock)
    return best
