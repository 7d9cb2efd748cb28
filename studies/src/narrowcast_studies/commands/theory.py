"""`narrowcast theory`: the definition, the theorems and the proposition, bound against measured."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console


def theory(
    out: Annotated[Path | None, typer.Option(help="folder of the results [default: runs/theory]")] = None,
    quick: Annotated[bool, typer.Option("--quick", help="small problems, few runs: a minute")] = False,
) -> None:
    """Do the paper's theorems hold? Convex problems with known optimum, bound against measured."""
    from narrowcast.cli import plain_errors

    with plain_errors():
        run(out or Path("runs") / ("theory-quick" if quick else "theory"), quick, Console())


def run(out: Path, quick: bool, console: Console) -> None:
    """Make what is missing, then the tables and pictures from the files."""
    from narrowcast.files import write_atomically
    from narrowcast_studies.theory import pictures, programme, tables

    specs = programme.QUICK if quick else programme.FULL
    programme.conduct(specs, out, lambda line: console.print(line, highlight=False, markup=False))
    results = programme.load(specs, out)
    command = f"narrowcast theory{' --quick' if quick else ''} --out {out.as_posix()}"
    write_atomically(out / "theory.md", tables.page(results, command).encode())
    for result in results:
        pictures.draw(result, out / f"{result.spec.problem}.png")
    for table in tables.terminal(results):
        console.print(table)
    console.print(f"all tables: {out / 'theory.md'}", highlight=False, soft_wrap=True)
