"""One run in a process of its own: its settings on standard input, its folder as the argument.

It ends as `narrowcast run` does: 0, 1 where it diverged, 130 where it was stopped, 2 for anything else.
"""

from __future__ import annotations

import sys
from pathlib import Path

import click

from narrowcast.cli import keep_memory, plain_errors
from narrowcast.runs import RunConfig, attempts


def work(settings: str, folder: Path) -> int:
    """The exit code of the run, begun or gone on with."""
    keep_memory()
    try:
        with plain_errors():
            attempts.in_process(RunConfig.model_validate_json(settings), folder)
    except click.exceptions.Exit as end:
        return end.exit_code
    return 0


if __name__ == "__main__":
    sys.exit(work(sys.stdin.read(), Path(sys.argv[1])))
