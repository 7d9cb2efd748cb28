"""`narrowcast bench`: the kernels on this machine."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from narrowcast.cli.terminal import console, plain_errors


def bench(
    json: Annotated[Path | None, typer.Option(help="also write the numbers to this file")] = None,
    quick: Annotated[bool, typer.Option("--quick", help="the smaller model only: a few seconds")] = False,
    device: Annotated[str, typer.Option(help="time the passes there instead: cuda, cuda:1, mps")] = "cpu",
) -> None:
    """The kernels on this machine, against a copy and against Fastfood as commonly written in torch.

    With --device those of a GPU: project, add_expanded and the digest, as ratios to a copy there.
    """
    from narrowcast.bench import kernels as benching
    from narrowcast.bench import table
    from narrowcast.runs.compiling import prepare_kernels

    with plain_errors():
        prepare_kernels(console)
        sizes = [(benching.RESNET9, 16_384)] + ([] if quick else [(benching.GPT2, 16_384)])
        result: dict[str, Any] = {"machine": benching.machine(), "subspaces": [], "fwht": []}
        if device != "cpu":
            result = _on_device(device, sizes)
            _write(json, result)
            return
        with console.status("timing the subspaces: the common Fastfood takes most of it"):
            result["subspaces"] = list(benching.subspaces(sizes))
        console.print(table.subspaces(result["subspaces"], result["machine"]))
        with console.status("timing the Hadamard transform"):
            result["fwht"] = list(benching.transforms([12, 14, 16, 20]))
        console.print(table.transforms(result["fwht"]))
        _write(json, result)


def _on_device(name: str, sizes: list[tuple[int, int]]) -> dict[str, Any]:
    from narrowcast.bench import device as there
    from narrowcast.bench import table
    from narrowcast.errors import ConfigError
    from narrowcast.numerics.devices import names

    try:
        device = names.find(name)
    except ValueError as error:
        raise ConfigError(f"--device: {error}") from None
    if device.type == names.CPU:
        raise ConfigError(f"--device {name}: there is no GPU here; leave it out for the CPU's kernels")
    rows, described = list(there.on_device(device, sizes)), there.described(device)
    console.print(table.on_device(rows, described))
    return {"device": described, "passes": rows}


def _write(path: Path | None, result: dict[str, Any]) -> None:
    import msgspec

    if path:
        path.write_bytes(msgspec.json.format(msgspec.json.encode(result)) + b"\n")
        console.print(f"written: {path}", highlight=False, soft_wrap=True)
