"""`narrowcast compare`."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import typer

from narrowcast.cli.flags import Force, Track
from narrowcast.cli.terminal import console, going_on_with, plain_errors
from narrowcast.errors import Diverged
from narrowcast.extras import Missing


def compare(
    file: Annotated[Path, typer.Argument(help="a TOML file with a [[run]] table for each run")],
    out: Annotated[Path | None, typer.Option(help="folder of the comparison [default: runs/NAME]")] = None,
    seed: Annotated[int | None, typer.Option(help="of every run, over what the file says")] = None,
    track: Track = "",
    force: Force = False,
) -> None:
    """Run several configurations; print the table, draw the picture and write the page."""
    from narrowcast.cli.page import write_page
    from narrowcast.cli.show import draw_runs, show_runs
    from narrowcast.runs import compare as comparing
    from narrowcast.runs.compiling import prepare_kernels
    from narrowcast.runs.progress import RunProgress
    from narrowcast.runs.tracking import names_of

    with plain_errors():
        comparison = comparing.load(file, {} if seed is None else {"seed": seed})
        folder, trackers = out or Path("runs") / file.stem, names_of(track)
        prepare_kernels(console)
        several = len({config.seed for config in comparison.configs.values()}) > 1
        again = f"narrowcast compare {file} --out {folder}" + ("" if seed is None else f" --seed {seed}")
        with going_on_with(lambda: again), RunProgress(console, several) as progress:
            runs, lost = comparing.run_all(comparison, folder, progress, force, progress.trial, trackers)
        why = "\n".join(f"{name}: {reason}" for name, reason in lost.items())
        if not runs:
            raise Diverged(why)
        show_runs(runs)
        if lost:
            console.print(why, highlight=False, markup=False, soft_wrap=True)
        with _unless_missing("picture"):
            draw_runs(runs, folder / "frontier.png", comparison.title)
        with _unless_missing("page"):
            write_page(runs, folder / "page.html", comparison.title)


@contextmanager
def _unless_missing(what: str) -> Iterator[None]:
    """The runs are done: a package that is not installed is no reason to fail."""
    try:
        yield
    except Missing as missing:
        console.print(f"no {what}: {missing}", highlight=False, markup=False, soft_wrap=True)
