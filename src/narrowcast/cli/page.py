"""`narrowcast page`: runs to look at, in a browser."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import Annotated

import typer

from narrowcast.cli.terminal import console, plain_errors

PORT = 8421


def page(
    runs: Annotated[list[Path], typer.Argument(help="run folders, or folders of run folders")],
    to: Annotated[Path, typer.Option(help="the file")] = Path("page.html"),
    live: Annotated[bool, typer.Option("--live", help="serve it here instead, and follow the runs")] = False,
    port: Annotated[int, typer.Option(min=0, max=65535, help="with --live; 0: any that is free")] = PORT,
    title: Annotated[str | None, typer.Option(help="of the page [default: the tasks]")] = None,
) -> None:
    """Write runs as a page to look at: one file, interactive, that needs no network. Or serve it, --live."""
    from narrowcast.runs import run_folder

    with plain_errors():
        if live:
            return follow(runs, port, title)
        write_page(run_folder.find(runs), to, title)


def follow(roots: list[Path], port: int, title: str | None) -> None:
    """Serve the page until Ctrl-C."""
    from narrowcast.errors import ConfigError
    from narrowcast.page import live

    if missing := [str(root) for root in roots if not root.is_dir()]:
        raise ConfigError(f"{', '.join(missing)}: no such folder")
    try:
        server = live.server(roots, port, title)
    except OSError as error:
        raise ConfigError(f"port {port} cannot be had ({error.strerror}): choose another --port") from None
    with server:
        url = f"http://{live.LOOPBACK}:{server.server_address[1]}/"
        console.print(f"page: {url} (Ctrl-C ends it)", highlight=False, soft_wrap=True)
        with suppress(KeyboardInterrupt):
            server.serve_forever()


def write_page(folders: list[Path], to: Path, title: str | None = None) -> None:
    """The page of these runs, and where it is."""
    from narrowcast.page import document

    document.write(folders, to, title)
    console.print(f"page: {to}", highlight=False, soft_wrap=True)
