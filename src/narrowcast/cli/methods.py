"""`narrowcast methods`."""

from __future__ import annotations

from typing import Annotated

import typer

from narrowcast.cli.terminal import console, plain_errors


def methods(
    name: Annotated[str | None, typer.Argument(help="show this one in full, with its options")] = None,
    markdown: Annotated[bool, typer.Option("--markdown", help="print as Markdown, with equations")] = False,
) -> None:
    """What each method sends and keeps, its mathematics in a line, and who proposed it."""
    from narrowcast.cli import methods_page

    with plain_errors():
        rows = methods_page.rows(name)
        if markdown:
            print(methods_page.markdown(rows))
        else:
            console.print(methods_page.terminal(rows) if name is None else methods_page.detail(rows[0]))
