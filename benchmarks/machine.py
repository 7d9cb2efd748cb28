"""What the benchmarks share: arguments, a stopwatch for functions, tables, JSON."""

from __future__ import annotations

import argparse
import functools
import json
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

from narrowcast.bench.kernels import machine as describe
from narrowcast.methods import intrinsic
from narrowcast.numerics import pool
from narrowcast.subspaces import Subspace
from narrowcast.wire import messages as wire

__all__ = ["Stopwatch", "arguments", "clock", "describe", "table", "write"]
RESULTS = Path(__file__).parent / "results"


def arguments(name: str, description: str | None) -> argparse.Namespace:
    """--quick, --json and --threads, which every benchmark takes.

    On shared cores one thread is quicker and steadier: threads that share a loop wait for the slowest.
    """
    parser = argparse.ArgumentParser(description=(description or "").split("\n")[0])
    parser.add_argument("--quick", action="store_true", help="a few rounds only: does it run?")
    parser.add_argument("--json", type=Path, default=RESULTS / f"{name}.json", metavar="FILE")
    parser.add_argument("--threads", type=int, help="of torch and of our kernels (default: the cores)")
    options = parser.parse_args()
    if options.threads:
        torch.set_num_threads(options.threads)
        pool.set_threads(options.threads)
    return options


def clock(threads: int | None) -> tuple[Callable[[], float], str]:
    """(a clock, its name): with one thread the CPU's, which other processes hardly disturb."""
    return (time.process_time, "CPU seconds") if threads == 1 else (time.perf_counter, "seconds")


def write(path: Path, machine: dict[str, Any], quick: bool, results: dict[str, Any]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    machine = {**machine, "load_at_end": describe()["load"]}
    path.write_text(json.dumps({"machine": machine, "quick": quick, **results}, indent=1) + "\n")


def table(head: Sequence[str], rows: Sequence[Sequence[Any]]) -> None:
    """Print columns, the first flush left, the rest flush right."""
    cells = [[str(c) for c in row] for row in (head, *rows)]
    widths = [max(len(row[i]) for row in cells) for i in range(len(head))]
    for row in cells:
        first, *rest = (
            c.rjust(w) if i else c.ljust(w) for i, (c, w) in enumerate(zip(row, widths, strict=True))
        )
        print("  ".join([first, *rest]))
    sys.stdout.flush()


class Stopwatch:
    """Seconds by part, each without the parts called inside it."""

    def __init__(self, clock: Callable[[], float] = time.perf_counter) -> None:
        self.clock = clock
        self.seconds = defaultdict[str, float](float)
        self.digests: list[bytes] = []
        self._inner = [0.0]

    @contextmanager
    def part(self, name: str) -> Iterator[None]:
        self._inner.append(0.0)
        started = self.clock()
        try:
            yield
        finally:
            elapsed = self.clock() - started
            self.seconds[name] += elapsed - self._inner.pop()
            self._inner[-1] += elapsed

    def watch(self, owner: Any, function: str, name: str) -> None:
        """Time every call of owner.function as part `name`, until the process ends."""
        original = getattr(owner, function)

        @functools.wraps(original)
        def timed(*args: Any, **kwargs: Any) -> Any:
            with self.part(name):
                return original(*args, **kwargs)

        setattr(owner, function, timed)

    def watch_narrowcast(self) -> None:
        """A round's parts beside the gradient: project, expand, wire (numbers to bytes and back), digest."""
        self.watch(Subspace, "project_many", "project")
        self.watch(Subspace, "add_expanded", "expand")
        self.watch(intrinsic, "add_family", "expand")
        for function in ("encode", "decode", "block"):
            self.watch(wire, function, "wire")
        self.watch(wire.Block, "numbers", "wire")
        digest = wire.digest

        def kept(*model: torch.Tensor | None) -> bytes:
            with self.part("digest"):
                self.digests.append(digest(*model))
            return self.digests[-1]

        wire.digest = kept

    def take(self) -> tuple[dict[str, float], list[bytes]]:
        """(seconds by part, digests computed) since the last call."""
        taken = dict(self.seconds), self.digests
        self.seconds, self.digests = defaultdict(float), []
        return taken
