"""Compiling the kernels in sight of the user: the first time takes half a minute."""

from __future__ import annotations

from rich.console import Console

from narrowcast.subspaces.warm import compile_kernels


def prepare_kernels(console: Console) -> None:
    """Compile the kernels before the bars begin to move, and say so if it takes a while."""
    with console.status("compiling kernels for this machine: half a minute, only the first time"):
        compile_kernels()
