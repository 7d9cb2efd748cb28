"""`narrowcast page`: runs to look at, in a browser."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from narrowcast.cli.terminal import console, plain_errors


def page(
    runs: Annotated[list[Path], typer.Argument(help="run folders, or folders of run folders")],
    to: Annotated[Path, typer.Option(help="the file")] = Path("page.html"),
    title: Annotated[str | None, typer.Option(help="of the page [default: the tasks]")] = None,
) -> None:
    """Write runs as a page to look at: one file, interactive, that needs no network."""
    from narrowcast.runs import run_folder

    with plain_errors():
        write_page(run_folder.find(runs), to, title)


def write_page(folders: list[Path], to: Path, title: str | None = None) -> None:
    """The page of these runs, and where it is."""
    from narrowcast.page import document

    document.write(folders, to, title)
    console.print(f"page: {to}", highlight=False, soft_wrap=True)
