"""Matrix products of float32 on this processor, as torch takes them and with MKL's kernels for AVX-512.

    python benchmarks/products.py [--build FILE.so] [--json FILE]

torch's wheels carry Intel's MKL, which asks who made a processor before it asks what that can do: on AMD's
it takes kernels for AVX2, whatever there is. A library of two functions answers for it, made here with `cc`;
a program that is started with it takes the others: `LD_PRELOAD=FILE.so narrowcast run ...`.
"""

from __future__ import annotations

import argparse
import json
import os
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
    parser.add_argument(
        "--here", action="store_true", help=argparse.SUPPRESS
    )  # in a process with or without it
    options = parser.parse_args()
    if options.here:
        print(json.dumps([speed(*shape) for shape in SHAPES]))
        return
    with tempfile.TemporaryDirectory() as folder:
        library = (options.build or Path(folder, "answers.so")).resolve()
        subprocess.run(
            ["cc", "-shared", "-fPIC", "-x", "c", "-", "-o", library], input=ANSWERS, text=True, check=True
        )
        machine, plain, told = describe(), measured({}), measured({"LD_PRELOAD": str(library)})
    rows = [
        {"shape": list(shape), "plain": a, "told": b} for shape, a, b in zip(SHAPES, plain, told, strict=True)
    ]
    cells = [
        (r["shape"], f"{r['plain']:.0f}", f"{r['told']:.0f}", f"{r['told'] / r['plain']:.2f}") for r in rows
    ]
    table(["m, k, n", "Gflop/s", "told", "times"], cells)
    write(options.json, machine, False, {"products": rows})


def measured(environment: dict[str, str]) -> list[float]:
    """Gflop/s of each shape, in a process of its own."""
    asked = [sys.executable, __file__, "--here"]
    said = subprocess.run(asked, env={**os.environ, **environment}, stdout=subprocess.PIPE, check=True).stdout
    speeds: list[float] = json.loads(said)
    return speeds


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
