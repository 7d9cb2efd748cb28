"""The kernels on this machine: ratios within one run, best of several.

The yardstick of a pass over memory is copying D floats with all threads. The yardstick of a method is
Fastfood as it is commonly written in torch: two transforms of full length as log2 steps of views, with a
stored permutation and stored normals.
"""

from __future__ import annotations

import math
import os
import platform
import subprocess
import sys
import tempfile
import time
import tracemalloc
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import numba
import numpy as np
import torch
from torch import Tensor

from narrowcast.numerics import pool
from narrowcast.numerics.hadamard import fwht_, fwht_plain
from narrowcast.numerics.process import machine_memory
from narrowcast.subspaces.fastfood import Fastfood
from narrowcast.subspaces.rotation import Rotation

RESNET9, GPT2 = 6_570_880, 124_443_648
Measured = dict[str, Any]  # one line of the tables, by the keys of the JSON


def best(call: Callable[[], Any], repeats: int = 5, seconds: float = 0.0) -> float:
    """The fastest of several calls, and of as many as fit in `seconds`."""
    call()
    fastest, began, done = float("inf"), time.perf_counter(), 0
    while done < repeats or time.perf_counter() - began < seconds:
        clock = time.perf_counter()
        call()
        fastest = min(fastest, time.perf_counter() - clock)
        done += 1
    return fastest


def best_by_turns(calls: Mapping[str, Callable[[], Any]], seconds: float) -> dict[str, float]:
    """The fastest of each call. They take turns, so that what else goes on meets all of them alike."""
    fastest, began, done = dict.fromkeys(calls, float("inf")), time.perf_counter(), 0
    while done < 6 or time.perf_counter() - began < seconds:
        for name, call in calls.items():
            clock = time.perf_counter()
            call()
            fastest[name] = min(fastest[name], time.perf_counter() - clock)
        done += 1
    return fastest


def machine() -> Measured:
    """What runs this, and its load at this moment: no names of hosts or folders."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    names = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    return {
        "cpu": names[0] if names else platform.processor() or platform.machine(),
        "system": f"{platform.system()} {platform.machine()}",
        "cores": os.cpu_count(),
        "threads": pool.threads(),
        "torch_threads": torch.get_num_threads(),
        "memory_gib": round(machine_memory() / 2**30, 1),
        "python": platform.python_version(),
        "torch": str(torch.__version__),
        "numba": numba.__version__,
        "numpy": np.__version__,
        "load": [round(x, 1) for x in os.getloadavg()],
    }


class CommonFastfood:
    """Fastfood as it is commonly written: what the kernels are compared with, never used otherwise."""

    def __init__(self, D: int, d: int) -> None:
        self.D, self.d, self.L = D, d, 1 << (D - 1).bit_length()
        self.B = torch.randint(0, 2, (self.L,)) * 2.0 - 1.0
        self.G = torch.randn(self.L)
        self.P = torch.randperm(self.L)

    def expand(self, x: Tensor) -> Tensor:
        padded = torch.nn.functional.pad(x, (0, self.L - self.d))
        z = fwht_plain(fwht_plain(padded)[self.P] * self.G)
        y: Tensor = (z * self.B)[: self.D] / math.sqrt(self.d * self.L)
        return y


def subspaces(sizes: list[tuple[int, int]], common: bool = True) -> Iterator[Measured]:
    """project and add_expanded of each (D, d) over a copy, and against the common Fastfood."""
    for D, d in sizes:
        g, base, out = torch.randn(D), torch.randn(D), torch.empty(D)
        x, y = torch.randn(d), torch.empty(d)
        A, F = Rotation(D, d, 1), Fastfood(D, d, 1)
        copies = _copies(g, out)
        calls: dict[str, Callable[[], Any]] = {
            **copies,
            "project": partial(A.project, g, y),
            "add_expanded": partial(A.add_expanded, base, x, out),
        }
        took = best_by_turns(calls, seconds=4)
        row: Measured = {"D": D, "d": d, "copy_s": min(took.pop(name) for name in copies)}
        row.update((f"{name}_s", seconds) for name, seconds in took.items())
        row["fastfood_project_s"] = best(partial(F.project, g, y), 2)
        row["fastfood_add_expanded_s"] = best(partial(F.add_expanded, base, x, out), 2)
        row["new_subspace_s"] = best(partial(Rotation, D, d, 2), 20)
        row["project_over_copy"] = row["project_s"] / row["copy_s"]
        row["add_expanded_over_copy"] = row["add_expanded_s"] / row["copy_s"]
        if common:
            naive = CommonFastfood(D, d)
            clock = time.perf_counter()
            naive.expand(x)
            row["torch_fastfood_s"] = time.perf_counter() - clock
            slower = max(row["project_s"], row["add_expanded_s"])
            row["speedup_over_torch_fastfood"] = row["torch_fastfood_s"] / slower
            ours = max(row["fastfood_project_s"], row["fastfood_add_expanded_s"])
            row["fastfood_speedup_over_torch_fastfood"] = row["torch_fastfood_s"] / ours
        yield row


def _copies(source: Tensor, target: Tensor) -> dict[str, Callable[[], Any]]:
    """Two ways to copy D floats with all threads, torch's and ours in ranges: the faster is the yardstick."""
    a, b = source.numpy(), target.numpy()
    ranges = pool.threads()
    step = -(-a.size // ranges)

    def one(start: int, stop: int) -> None:
        for i in range(start, stop):
            np.copyto(b[i * step : (i + 1) * step], a[i * step : (i + 1) * step])

    return {"copy_by_torch": partial(target.copy_, source), "copy_in_ranges": partial(pool.run, one, ranges)}


def transforms(powers: list[int]) -> Iterator[Measured]:
    """fwht on one thread and on all, against its view form in torch and one matrix product in sqrt blocks."""
    for m in powers:
        x = np.zeros(1 << m, np.float32)
        times = max(1, (1 << 20) >> m)
        row: Measured = {"size": 1 << m}
        everything = pool.threads()
        for name, threads in (("one_core", 1), ("all_cores", everything)):
            with pool.using(threads):
                row[f"{name}_gelem_s"] = x.size * times / best(partial(_repeat, fwht_, x, times), 5) / 1e9
        t = torch.zeros(1 << m)
        row["torch_views_gelem_s"] = x.size / best(partial(fwht_plain, t), 2) / 1e9
        row["torch_matmul_gelem_s"] = x.size / best(partial(_by_matmul, t), 2) / 1e9
        yield row


def _repeat(call: Callable[[Any], Any], argument: Any, times: int) -> None:
    for _ in range(times):
        call(argument)


def _by_matmul(x: Tensor) -> Tensor:
    """H x as two products with small Hadamard matrices: H_ab = H_a (x) H_b."""
    m = x.numel().bit_length() - 1
    a, b = 1 << (m // 2), 1 << (m - m // 2)
    if b > 1 << 12:
        return fwht_plain(x)  # the matrices themselves would outgrow the vector's cost
    Ha, Hb = fwht_plain(torch.eye(a)), fwht_plain(torch.eye(b))
    return (Ha @ x.view(a, b) @ Hb).reshape(-1)


def growth(D_powers: list[int], d_powers: list[int]) -> Iterator[Measured]:
    """Nanoseconds a parameter as D and d grow. (Of ones: zeros that nobody wrote lie in one page.)"""
    for D, d in [(1 << p, 1 << 14) for p in D_powers] + [(1 << max(D_powers), 1 << p) for p in d_powers]:
        A, g, base, out, x = Rotation(D, d, 1), torch.ones(D), torch.ones(D), torch.ones(D), torch.ones(d)
        calls = {"project": partial(A.project, g), "add_expanded": partial(A.add_expanded, base, x, out)}
        took = best_by_turns(calls, seconds=0.6)
        yield {"D": D, "d": d, **{f"{name}_ns": seconds / D * 1e9 for name, seconds in took.items()}}


FIRST_CALL = """
import time, torch
from narrowcast.subspaces import compile_kernels
clock = time.perf_counter(); compile_kernels(); print(time.perf_counter() - clock)
"""


def first_call() -> Measured:
    """Seconds until the kernels answer in a new process: from numba's cache, and compiled anew."""

    def seconds(cache: dict[str, str]) -> float:
        run = subprocess.run(
            [sys.executable, "-c", FIRST_CALL],
            env={**os.environ, **cache},
            capture_output=True,
            text=True,
            check=True,
        )
        return float(run.stdout)

    with tempfile.TemporaryDirectory() as folder:
        cold = seconds({"NUMBA_CACHE_DIR": folder})
        warm = seconds({"NUMBA_CACHE_DIR": folder})
    return {"compiled_s": cold, "cached_s": warm}


def memory(D: int, d: int) -> Measured:
    """Bytes that a call takes beyond its input and output, as NumPy tells them to tracemalloc.

    The kernels' own strips come on top: 50 KiB a thread.
    """
    A, g, out, x, y = Rotation(D, d, 1), torch.ones(D), torch.ones(D), torch.ones(d), torch.ones(d)
    calls: list[tuple[str, Callable[[], Tensor]]] = [
        ("project", partial(A.project, g, y)),
        ("add_expanded", partial(A.add_expanded, g, x, out)),
    ]
    row: Measured = {"D": D, "d": d, "shards": A.shards}
    for name, call in calls:
        call()  # compiled, or loaded from the cache
        tracemalloc.start()
        call()
        row[f"{name}_extra_bytes"] = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
    return row
