"""All of the kernels' goals: `python benchmarks/kernels.py [--quick] [--json FILE]`.

Rotation and Fastfood against a copy and against the common torch Fastfood, growth in D and d, the Hadamard
transform, extra memory, the first call.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import msgspec
from rich.console import Console

from narrowcast.bench import kernels, table

console = Console()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--json", type=Path, default=Path(__file__).parent / "results" / "kernels.json")
    options = parser.parse_args()
    top, sizes = (22, [kernels.RESNET9]) if options.quick else (27, [kernels.RESNET9, kernels.GPT2])
    result: dict[str, Any] = {
        "machine": kernels.machine(),
        "subspaces": list(kernels.subspaces([(D, 16_384) for D in sizes])),
        "fwht": list(kernels.transforms(list(range(12, top + 1, 3 if options.quick else 1)))),
        "growth": list(kernels.growth(list(range(20, top + 1)), list(range(8, min(top, 22) + 1, 2)))),
        "memory": [kernels.memory(D, d) for D in sizes for d in (1_024, 16_384, 1 << 20)],
        "first_call": kernels.first_call(),
    }
    console.print(table.subspaces(result["subspaces"], result["machine"]))
    console.print(table.transforms(result["fwht"]))
    for part in ("growth", "memory"):
        for row in result[part]:
            console.print(part, row)
    console.print("first call", result["first_call"])
    options.json.parent.mkdir(exist_ok=True)
    options.json.write_bytes(msgspec.json.format(msgspec.json.encode(result)) + b"\n")


if __name__ == "__main__":
    main()
