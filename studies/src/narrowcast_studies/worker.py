"""One run in a process of its own: its settings on standard input, its folder as the argument.

It ends with 0, DIVERGED, 130 where it was stopped, and 2 for anything else that has a plain sentence.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import click

from narrowcast.cli import keep_memory, plain_errors
from narrowcast.runs import attempts, make_config

DIVERGED = 3  # which Python never ends with; with 1 it does where it cannot even begin


def work(settings: str, folder: Path) -> int:
    """The exit code of the run, begun or gone on with."""
    keep_memory()
    try:
        with plain_errors():
            attempts.in_process(make_config(json.loads(settings), admit=True), folder)
    except click.exceptions.Exit as end:
        return DIVERGED if end.exit_code == 1 else end.exit_code  # to a user a divergence is 1
    return 0


if __name__ == "__main__":
    sys.exit(work(sys.stdin.read(), Path(sys.argv[1])))
