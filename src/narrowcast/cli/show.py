"""`narrowcast show`: from the folders alone."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from narrowcast.cli.terminal import console, plain_errors
from narrowcast.texts import encodable, printable


def show(
    runs: Annotated[list[Path], typer.Argument(help="run folders, or folders of run folders")],
    plot: Annotated[Path | None, typer.Option(help="also draw the picture, to this file")] = None,
    markdown: Annotated[bool, typer.Option("--markdown", help="print the table as Markdown")] = False,
) -> None:
    """Print the table again from the folders alone."""
    from narrowcast.runs import run_folder

    with plain_errors():
        folders = run_folder.find(runs)
        show_runs(folders, markdown)
        if plot:
            draw_runs(folders, plot)


def show_runs(folders: list[Path], markdown: bool = False) -> None:
    """The table of these runs."""
    from narrowcast.runs import table
    from narrowcast.runs.seeds import pooled
    from narrowcast.runs.summary import summarise
    from narrowcast.runs.words import searched

    each = [summarise(folder) for folder in folders]
    summaries = pooled(each)
    if markdown:
        print(encodable(printable(table.markdown(summaries)), sys.stdout.encoding or "utf-8"))
    else:
        console.print(table.terminal(summaries, console.width))
        for s in each:
            if s.diverged is not None:
                seed = f", seed {s.facts.seed}" if len(summaries) < len(each) else ""
                console.print(f"{s.facts.label}{seed}: diverged: {s.diverged}", highlight=False, markup=False)
            if s.facts.search:
                console.print(f"{s.facts.label}: {searched(s.facts.search)}", highlight=False, markup=False)
            if s.dropped:
                what = ", ".join(f"{count} {why}" for why, count in s.dropped.items())
                console.print(f"{s.facts.label}: clients dropped: {what}", highlight=False, markup=False)


def draw_runs(folders: list[Path], to: Path, title: str | None = None) -> None:
    """The pictures of these runs: against bytes, and beside it against time, of those on a network."""
    from narrowcast.runs import frontier
    from narrowcast.runs.seeds import pooled
    from narrowcast.runs.summary import summarise

    summaries = [summarise(folder) for folder in folders]
    made = [frontier.draw(pooled(summaries), to, title)]
    if any(run.timed for run in summaries):
        made.append(frontier.draw(summaries, to.with_stem(f"{to.stem}-time"), title, time=True))
    console.print(f"picture: {', '.join(map(str, made))}", highlight=False, soft_wrap=True)
