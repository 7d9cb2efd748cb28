"""`narrowcast bench`: the kernels on this machine."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from narrowcast.cli.terminal import console, plain_errors


def bench(
    json: Annotated[Path | None, typer.Option(help="also write the numbers to this file")] = None,
    quick: Annotated[bool, typer.Option("--quick", help="the smaller model only: a few seconds")] = False,
) -> None:
    """The kernels on this machine, against a copy and against Fastfood as commonly written in torch."""
    import msgspec

    from narrowcast.bench import kernels as benching
    from narrowcast.bench import table
    from narrowcast.runs.compiling import prepare_kernels

    with plain_errors():
        prepare_kernels(console)
        sizes = [(benching.RESNET9, 16_384)] + ([] if quick else [(benching.GPT2, 16_384)])
        result: dict[str, Any] = {"machine": benching.machine(), "subspaces": [], "fwht": []}
        with console.status("timing the subspaces: the common Fastfood takes most of it"):
            result["subspaces"] = list(benching.subspaces(sizes))
        console.print(table.subspaces(result["subspaces"], result["machine"]))
        with console.status("timing the Hadamard transform"):
            result["fwht"] = list(benching.transforms([12, 14, 16, 20]))
        console.print(table.transforms(result["fwht"]))
        if json:
            json.write_bytes(msgspec.json.format(msgspec.json.encode(result)) + b"\n")
            console.print(f"written: {json}", highlight=False, soft_wrap=True)
