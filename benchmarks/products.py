"""Matrix products of float32 on this processor, as torch takes them and with MKL's kernels for AVX-512.

    python benchmarks/products.py [--build FILE.so] [--json FILE]

torch's wheels carry Intel's MKL, which asks who made a processor before it asks what that can do: on AMD's
it takes kernels for AVX2, whatever there is. A library of two functions answers for it, made here with `cc`;
a program that is started with it takes the others: `LD_PRELOAD=FILE.so narrowcast run ...`. On Linux.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import torch
from machine import RESULTS, describe, table, write

ANSWERS = "int mkl_serv_intel_cpu(void) { return 1; }\nint mkl_serv_intel_cpu_true(void) { return 1; }\n"
SHAPES = ((1024, 1024, 1024), (1280, 576, 1536), (400, 384, 1536))  # the last two: of SmolLM2 and of MiniLM
REPEATS, PRODUCTS = 12, 10


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--build", type=Path, metavar="FILE.so", help="leave the library here")
    parser.add_argument("--json", type=Path, default=RESULTS / "products.json", metavar="FILE")
    parser.add_argument("--inside", metavar="LIBRARY", help=argparse.SUPPRESS)  # in a process begun with it
    options = parser.parse_args()
    if options.inside is not None:
        print(json.dumps(inside(options.inside)))
        return
    if sys.platform != "linux" or not torch.backends.mkl.is_available():
        parser.error("it is for Linux, and for a torch with MKL")
    if not shutil.which("cc"):
        parser.error("it needs a C compiler, cc")
    with tempfile.TemporaryDirectory() as folder:
        library = (options.build or Path(folder, "answers.so")).resolve()
        if not library.parent.is_dir() or re.search(r"[\s:]", str(library)):
            parser.error(f"{library} must be in a folder that is there, and have no blank and no colon")
        build(library)
        machine, plain, told = describe(), measured(""), measured(str(library))
    found = list(zip(SHAPES, plain, told, strict=True))
    cells = [(shape, f"{a:.0f}", f"{b:.0f}", f"{b / a:.2f}") for shape, a, b in found]
    table(["m, k, n", "Gflop/s", "told", "times"], cells)
    rows = [{"shape": list(shape), "plain": a, "told": b} for shape, a, b in found]
    write(options.json, machine, False, {"products": rows})


def build(library: Path) -> None:
    subprocess.run(
        ["cc", "-shared", "-fPIC", "-x", "c", "-", "-o", library], input=ANSWERS, text=True, check=True
    )


def measured(library: str) -> list[float]:
    """Gflop/s of each shape, in a process of its own; a library joins those that the user has."""
    loaded = " ".join(filter(None, (library, os.environ.get("LD_PRELOAD"))))
    asked = [sys.executable, __file__, "--inside", library]
    said = subprocess.run(asked, env={**os.environ, "LD_PRELOAD": loaded}, stdout=subprocess.PIPE, check=True)
    speeds: list[float] = json.loads(said.stdout)
    return speeds


def inside(library: str) -> list[float]:
    """The same here, if the library is: one that cannot be loaded is no error to the system."""
    if library and library not in Path("/proc/self/maps").read_text():
        sys.exit(f"{library} was not loaded")
    return [speed(*shape) for shape in SHAPES]


def speed(m: int, k: int, n: int) -> float:
    """The best of some, by the CPU's clock and one thread."""
    torch.set_num_threads(1)
    a, b = torch.randn(m, k), torch.randn(k, n)
    best = float("inf")
    for _ in range(REPEATS):
        started = time.process_time()
        for _ in range(PRODUCTS):
            a @ b
        best = min(best, (time.process_time() - started) / PRODUCTS)
    return 2e-9 * m * k * n / best


if __name__ == "__main__":
    main()
