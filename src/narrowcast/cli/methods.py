"""`narrowcast methods`."""

from __future__ import annotations

from typing import Annotated

import typer

from narrowcast.cli.terminal import console, plain_errors


def methods(
    name: Annotated[
        str | None,
        typer.Argument(help="show this one (or a package.module:name) in full"),
    ] = None,
    markdown: Annotated[bool, typer.Option("--markdown", help="print as Markdown, with equations")] = False,
) -> None:
    """What each method sends and keeps, its mathematics in a line, and who proposed it."""
    from narrowcast.cli import methods_page
    from narrowcast.methods.table import METHODS

    with plain_errors():
        if name is not None:
            METHODS.admit(name)
        broken = {} if name else methods_page.broken()
        rows = methods_page.rows([name] if name else [n for n in METHODS if n not in broken])
        if markdown:
            print(methods_page.markdown(rows))
        else:
            console.print(methods_page.terminal(rows) if name is None else methods_page.detail(rows[0]))
        for why in broken.values():
            console.print(why, highlight=False, markup=False, soft_wrap=True)
