"""`narrowcast attack`: flags in, a study run, its tables and pictures out."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

if TYPE_CHECKING:
    from narrowcast_studies.attacks.results import Case, Result

SILENT = 20  # cases between two lines where there is no terminal


def attack(
    model: Annotated[str | None, typer.Option(help="lenet, resnet18, resnet152 [default: lenet]")] = None,
    images: Annotated[
        str, typer.Option(help="cifar10, photos, or auto: CIFAR-10 where it is found")
    ] = "auto",
    data: Annotated[Path | None, typer.Option(help="folder of CIFAR-10 [default: $NARROWCAST_DATA]")] = None,
    count: Annotated[int | None, typer.Option(help="images to attack [default: 10]")] = None,
    dims: Annotated[str | None, typer.Option(help="d of the subspaces [default: 64,256,1024,4096]")] = None,
    attacks: Annotated[str | None, typer.Option(help="which attacks [default: dlg,invert]")] = None,
    batches: Annotated[str | None, typer.Option(help="images a client has [default: 1,4,16]")] = None,
    rounds: Annotated[
        str | None, typer.Option(help="rounds of time-varying that are seen [default: 1,4,16]")
    ] = None,
    labels: Annotated[str, typer.Option(help="known or inferred")] = "known",
    iterations: Annotated[int | None, typer.Option(help="steps of an attack [default: 300]")] = None,
    restarts: Annotated[int | None, typer.Option(help="of the invert attack [default: 1]")] = None,
    rate: Annotated[float, typer.Option(help="the server's rate between rounds; 0: theta stays")] = 0.0,
    seed: Annotated[int, typer.Option(help="of everything random")] = 0,
    out: Annotated[Path, typer.Option(help="folder of the tables and pictures")] = Path("runs/attack"),
    cases: Annotated[
        Path | None, typer.Option(help="folder of the single results [default: OUT/cases]")
    ] = None,
    page: Annotated[Path | None, typer.Option(help="also write the documentation page")] = None,
    quick: Annotated[bool, typer.Option("--quick", help="two images and few steps: seconds")] = False,
) -> None:
    """Reconstruct a client's images from its uploads: how much does compression hide?"""
    import sys

    import msgspec
    import torch

    from narrowcast.cli import plain_errors
    from narrowcast.numerics import pool
    from narrowcast_studies.attacks import programme, report, results

    with plain_errors():
        torch.set_num_threads(1)  # the nets are small: threads would wait for each other
        pool.set_threads(1)
        plan = programme.QUICK if quick else programme.Plan()
        changes = {
            "images": count,
            "dims": _numbers("dims", dims),
            "batches": _numbers("batches", batches),
            "rounds": _numbers("rounds", rounds),
            "attacks": tuple(attacks.split(",")) if attacks else None,
        }
        plan = replace(plan, **{name: value for name, value in changes.items() if value is not None})  # type: ignore[arg-type]
        wanted = {"model": model, "iterations": iterations, "restarts": restarts}
        settings = msgspec.structs.replace(
            programme.QUICK_SETTINGS if quick else results.Settings(),
            labels=labels,
            rate=rate,
            seed=seed,
            **{name: value for name, value in wanted.items() if value is not None},
        )
        folder = cases or out / "cases"
        with _Display() as display:
            summary = programme.conduct(plan, settings, images, data, folder, display.say)
        command = "narrowcast " + " ".join(sys.argv[1:])
        report.write(summary, folder, out, command, page)
        display.console.print(report.terminal(summary))
        display.console.print(f"tables and pictures: {out}", highlight=False, soft_wrap=True)


def _numbers(name: str, text: str | None) -> tuple[int, ...] | None:
    """ "1,4,16" -> (1, 4, 16)."""
    if text is None:
        return None
    try:
        return tuple(int(part) for part in text.split(","))
    except ValueError:
        raise ValueError(f"--{name} takes whole numbers with commas between them, got {text!r}") from None


class _Display:
    """A bar in a terminal, a line now and then elsewhere."""

    def __init__(self) -> None:
        self.console = Console()
        self.bars = Progress(
            TextColumn("{task.description:<48.48}", markup=False),
            BarColumn(bar_width=12),
            MofNCompleteColumn(),
            TimeRemainingColumn(compact=True, elapsed_when_finished=True),
            console=self.console,
            disable=not self.console.is_terminal,
        )
        self.bar = self.bars.add_task("attack", total=None)

    def __enter__(self) -> _Display:
        self.bars.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.bars.stop()

    def say(self, done: int, total: int, case: Case, result: Result) -> None:
        psnr = sum(p.psnr for p in result.pictures) / len(result.pictures)
        line = f"{case.attack}, {case.attacker}: {case.upload.label}: {psnr:.1f} dB"
        self.bars.update(self.bar, completed=done, total=total, description=line)
        if not self.console.is_terminal and (done % SILENT == 0 or done == total):
            self.console.print(f"{done} of {total}: {line}", highlight=False, markup=False, soft_wrap=True)
