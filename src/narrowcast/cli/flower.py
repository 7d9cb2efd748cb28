"""`narrowcast flower`: an app to begin with, and a fleet on this machine to see it work."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from narrowcast import extras

if TYPE_CHECKING:
    from narrowcast.flower.demo import Outcome

app = typer.Typer(
    no_args_is_help=True,
    rich_markup_mode=None,
    help="The same methods on real nodes, through Flower: write an app, or see a fleet train right here.",
)
TEMPLATE = Path(__file__).parents[1] / "flower" / "template"


@app.command()
def new(folder: Annotated[Path, typer.Argument(help="where to write the app; must not exist yet")]) -> None:
    """Write a Flower app that runs at once: put your model, loss and data into its app/task.py."""
    from narrowcast.cli.terminal import console, plain_errors
    from narrowcast.errors import ConfigError

    with plain_errors():
        if folder.exists():
            raise ConfigError(f"{folder} exists: choose another folder")
        shutil.copytree(TEMPLATE, folder, ignore=shutil.ignore_patterns("__pycache__"))
        console.print(
            f"{folder} is a Flower app: your model goes into {folder}/app/task.py, and {folder}/README.md "
            "says how to run it",
            highlight=False,
            soft_wrap=True,
        )


@app.command()
def demo(
    method: Annotated[str, typer.Option(help="how to compress: see `narrowcast methods`")] = "time-varying",
    nodes: Annotated[int, typer.Option(min=1, max=64, help="SuperNodes, a process each")] = 2,
    rounds: Annotated[int, typer.Option(min=1, help="of training")] = 8,
    dim: Annotated[int, typer.Option(min=1, help="d: numbers in an upload")] = 512,
    tls: Annotated[bool, typer.Option("--tls", help="encrypted, every node with a key of its own")] = False,
    out: Annotated[
        Path | None, typer.Option(help="folder of the run and the logs [runs/flower-demo]")
    ] = None,
) -> None:
    """Train digits on a real SuperLink with real SuperNodes, as processes on this machine."""
    from narrowcast.cli.terminal import console, plain_errors
    from narrowcast.methods.table import METHODS

    with plain_errors():
        require()
        extras.require("sklearn", "demo", "the demo")
        METHODS.check(method)
        from narrowcast.flower import demo as demonstration

        folder = out or Path("runs") / "flower-demo"
        outcome = demonstration.show(console, folder, method, nodes, rounds, dim, tls)
        _print(outcome)


def require(extra: str = "flower") -> None:
    """Flower (and Ray), or a sentence on how to get it."""
    for name in ("flwr", "ray") if extra == "flower-sim" else ("flwr",):
        extras.require(name, extra, "this")


def _print(outcome: Outcome) -> None:
    from narrowcast.cli.show import show_runs
    from narrowcast.cli.terminal import console
    from narrowcast.runs import run_folder
    from narrowcast.units import format_bytes

    show_runs([outcome.folder])
    model = outcome.folder / run_folder.MODEL
    up, down = outcome.wire
    each = max(1, outcome.messages)
    console.print(
        f"payload: {format_bytes(outcome.up)} up, {format_bytes(outcome.down)} down, as encoded\n"
        f"on the wire: {format_bytes(up)} up, {format_bytes(down)} down, counted by a proxy: with Flower's "
        f"own requests, its polling, and {outcome.nodes} nodes joining\n"
        f"the engine added {format_bytes((up + down - outcome.up - outcome.down) // each)} a node and round\n"
        f"a round took {outcome.a_round:.1f} s, {outcome.working:.1f} of them with a message at work on a "
        "node. The rest is the engine's: a node asks for work every three seconds, and each message starts a "
        "process that imports torch. So a message should be worth it: several clients a node, several "
        "local steps (here 8)\n"
        f"{outcome.seconds:.0f} s in all, with the start of everything; logs: {outcome.folder.parent}\n"
        f"the model is a file of {format_bytes(model.stat().st_size)}; in full: narrowcast export "
        f"{outcome.folder} --to digits.pt",
        highlight=False,
        soft_wrap=True,
    )
