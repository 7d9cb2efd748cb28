"""`narrowcast export`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from narrowcast.cli.flags import Force
from narrowcast.cli.terminal import console, plain_errors
from narrowcast.errors import ConfigError


def export(
    model: Annotated[Path, typer.Argument(help="a model file, or the folder of a finished run")],
    to: Annotated[
        Path,
        typer.Option(
            help="FILE.safetensors, FILE.pt, or for transformers a folder that from_pretrained reads"
        ),
    ] = Path("state_dict.pt"),
    base: Annotated[
        str | None,
        typer.Option(
            help="what training began with, where the file cannot find it by itself: a folder, a name on the "
            "hub, or a file of its weights"
        ),
    ] = None,
    force: Force = False,
) -> None:
    """Rebuild the full weights from a model file and its base, bit for bit the server's: no data needed."""
    from narrowcast.runs import modelfile, models, run_folder, runner
    from narrowcast.tasks.table import CUSTOM, STARTS

    with plain_errors():
        if to.exists() and not force:
            raise ConfigError(f"{to} exists: choose another --to, or use --force")
        task = None
        if model.is_dir() or not model.exists():
            found, folder = runner.model_of(model)
            if base is None and found.base.task not in {*STARTS, CUSTOM}:
                task, theta = runner.rebuild(model)
            base, model = base or folder, model / run_folder.MODEL
        else:
            found = modelfile.read(model)
        to.parent.mkdir(parents=True, exist_ok=True)
        if task is None:
            models.export(found, to, base)
        else:
            models.export_task(task, theta, to)
        made = sum(file.stat().st_size for file in ([to] if to.is_file() else to.iterdir()))
        console.print(
            f"{model.stat().st_size:,} bytes of model became {made:,} bytes of weights: {to}", highlight=False
        )
