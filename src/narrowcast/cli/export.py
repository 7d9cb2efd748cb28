"""`narrowcast export`."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path
from typing import Annotated, Any

import typer

from narrowcast.cli.flags import Force
from narrowcast.cli.terminal import console, plain_errors
from narrowcast.errors import ConfigError


def export(
    run: Annotated[Path, typer.Argument(help="folder of a finished run")],
    to: Annotated[
        Path,
        typer.Option(help="FILE.pt, or for a model of transformers a folder that from_pretrained reads"),
    ] = Path("state_dict.pt"),
    force: Force = False,
) -> None:
    """Rebuild the full weights of a run, bit for bit the server's: a torch state_dict, or a folder."""
    import torch

    from narrowcast import files
    from narrowcast.runs import run_folder, runner

    with plain_errors():
        if to.exists() and not force:
            raise ConfigError(f"{to} exists: choose another --to, or use --force")
        task, theta = runner.rebuild(run)
        to.parent.mkdir(parents=True, exist_ok=True)
        if to.suffix:
            with files.replacing(to) as temporary, temporary.open("wb") as f:
                torch.save(task.state_dict(theta), f)
        elif hasattr(task, "save_pretrained"):
            _save_folder(task, theta, to)
        else:
            raise ConfigError(f"{to} is no file name with a suffix: choose --to {to}.pt")
        made = sum(file.stat().st_size for file in ([to] if to.is_file() else to.iterdir()))
        size = (run / run_folder.MODEL).stat().st_size
        console.print(f"{size:,} bytes of model became {made:,} bytes of weights: {to}", highlight=False)


def _save_folder(task: Any, theta: Any, to: Path) -> None:
    """Written beside it, and moved file by file: none of them is ever half there."""
    with tempfile.TemporaryDirectory(prefix=f".{to.name}.", dir=to.parent) as folder:
        task.save_pretrained(theta, Path(folder))
        to.mkdir(exist_ok=True)
        for made in sorted(Path(folder).iterdir()):
            os.replace(made, to / made.name)
