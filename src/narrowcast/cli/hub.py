"""`narrowcast push` and `narrowcast pull`."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Annotated

import typer

from narrowcast.cli.flags import Force
from narrowcast.cli.terminal import console, plain_errors
from narrowcast.errors import ConfigError

Repo = Annotated[str, typer.Argument(help="on the Hugging Face hub, as who/name")]


def push(
    model: Annotated[Path, typer.Argument(help="a model file, or the folder of a finished run")],
    repo: Repo,
    private: Annotated[bool, typer.Option("--private", help="a repository that is made is private")] = False,
) -> None:
    """Put a model file on the Hugging Face hub, with a card that says what it is (`hf auth login` first)."""
    from narrowcast.runs import hub, run_folder

    with plain_errors():
        path = model / run_folder.MODEL if model.is_dir() else model
        console.print(hub.push_model(path, repo, private=private or None), highlight=False, soft_wrap=True)


def pull(
    repo: Repo,
    to: Annotated[Path, typer.Option(help="file to write")] = Path("model.narrowcast"),
    revision: Annotated[str | None, typer.Option(help="a branch, a tag or a commit")] = None,
    force: Force = False,
) -> None:
    """Fetch a model file from the Hugging Face hub: `narrowcast export` makes the whole model of it."""
    from narrowcast.runs import hub

    with plain_errors():
        if to.exists() and not force:
            raise ConfigError(f"{to} exists: choose another --to, or use --force")
        shutil.copyfile(hub.pull_model(repo, revision), to)
        console.print(f"{to.stat().st_size:,} bytes of model: {to}", highlight=False, soft_wrap=True)
