"""`narrowcast compare`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from narrowcast.cli.flags import Force
from narrowcast.cli.terminal import console, going_on_with, plain_errors
from narrowcast.extras import Missing


def compare(
    file: Annotated[Path, typer.Argument(help="a TOML file with a [[run]] table for each run")],
    out: Annotated[Path | None, typer.Option(help="folder of the comparison [default: runs/NAME]")] = None,
    seed: Annotated[int | None, typer.Option(help="of every run, over what the file says")] = None,
    force: Force = False,
) -> None:
    """Run several configurations; print the table and draw the picture."""
    from narrowcast.cli.show import draw_runs, show_runs
    from narrowcast.runs import compare as comparing
    from narrowcast.runs.compiling import prepare_kernels
    from narrowcast.runs.progress import RunProgress

    with plain_errors():
        comparison = comparing.load(file, {} if seed is None else {"seed": seed})
        folder = out or Path("runs") / file.stem
        prepare_kernels(console)
        again = f"narrowcast compare {file} --out {folder}" + ("" if seed is None else f" --seed {seed}")
        with going_on_with(lambda: again), RunProgress(console) as progress:
            runs = comparing.run_all(comparison, folder, progress, force, progress.trial)
        show_runs(runs)
        try:
            draw_runs(runs, folder / "frontier.png", comparison.title)
        except Missing as missing:  # the runs are done: no reason to fail
            console.print(f"no picture: {missing}", highlight=False, markup=False, soft_wrap=True)
