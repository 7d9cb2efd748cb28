"""`narrowcast reproduce NAME`: run or resume what is missing of an experiment, and write its results."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from narrowcast.tasks import DATA_VARIABLE

if TYPE_CHECKING:
    from rich.console import Console

    from narrowcast_studies.reproduce.experiment import Experiment
    from narrowcast_studies.reproduce.running import Work


def reproduce(
    context: typer.Context,
    name: Annotated[
        str | None, typer.Argument(help="table1, a file studies/experiments/NAME.toml, or results")
    ] = None,
    scale: Annotated[
        str, typer.Option(help="small: this machine; medium: hours of it; paper: the paper's settings")
    ] = "small",
    only: Annotated[list[str] | None, typer.Option(help="a method or a row; may be given again")] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="say how long it would take")] = False,
    jobs: Annotated[int, typer.Option(min=1, help="runs at a time, one thread each")] = 1,
    stop_after: Annotated[
        str | None, typer.Option(help="2.5h, 90min: then stop, to go on when called again")
    ] = None,
    whole: Annotated[
        bool, typer.Option("--whole", help="with --stop-after: begin no run that would not end in time")
    ] = False,
    status: Annotated[
        bool, typer.Option("--status", help="what is done, what it cost, what is left")
    ] = False,
    smoke: Annotated[bool, typer.Option("--smoke", help="a few rounds of each row: does it run?")] = False,
    minutes: Annotated[
        float | None, typer.Option(min=0, help="one row, untuned, for so long; again: so much longer")
    ] = None,
    data: Annotated[Path | None, typer.Option(help="folder of the data [NARROWCAST_DATA]")] = None,
    runs: Annotated[Path | None, typer.Option(help="folder of the runs [runs/NAME-SCALE]")] = None,
    out: Annotated[
        Path | None, typer.Option(help="of the results [studies/experiments/results/NAME, NAME/SCALE]")
    ] = None,
) -> None:
    """The paper's tables and figures: runs what is missing, and writes studies/experiments/results/NAME.

    `narrowcast reproduce results` runs nothing: it judges the claims by those results, in docs/results.md.
    """
    from narrowcast.cli import console, plain_errors
    from narrowcast.errors import ConfigError
    from narrowcast_studies.reproduce import experiment, page, running, table1

    with plain_errors(), _data_in(data):
        if name is None:
            raise ConfigError(
                f"say what to reproduce: {', '.join(['table1', *experiment.names(), 'results'])}"
            )
        if name == "results":
            _refuse_others(context, name, "out")
            page.write(out or page.PAGE)
            console.print(f"wrote {out or page.PAGE}", markup=False, highlight=False)
            return
        if name == "table1":
            _refuse_others(context, name, "out")
            shown = table1.reproduce(out or experiment.FOLDER / "results" / "table1")
            console.print(shown, markup=False, highlight=False, soft_wrap=True)
            return
        chosen = experiment.load(name, scale)
        if minutes is not None:
            _refuse_others(context, "--minutes", "minutes", "scale", "only", "data", "runs", "out")
            _timed(chosen, only, minutes, runs or chosen.runs, out, console)
            return
        if smoke:
            chosen = experiment.smoke(chosen, _smoke_changes(chosen))
        if dry_run:
            _refuse_others(context, "--dry-run", "dry_run", "scale", "only", "data", "smoke")
            _estimate(chosen, only, console)
            return
        folders = runs or chosen.runs
        work = running.Work(chosen, folders, folders / "results" if smoke else out or chosen.results)
        if status:
            _refuse_others(context, "--status", "status", "scale", "only", "data", "runs", "out", "smoke")
            console.print(work.status(_chosen(chosen, only)), markup=False, highlight=False, soft_wrap=True)
            return
        if whole and stop_after is None:
            raise ConfigError("--whole goes with --stop-after")
        _run(work, _chosen(chosen, only), jobs, stop_after, whole, console)


def _refuse_others(context: typer.Context, what: str, *takes: str) -> None:
    """An option that would change nothing is refused: its user meant something by it."""
    from narrowcast.errors import ConfigError

    given = [name for name in context.params if _was_given(context, name)]
    if others := [f"--{name.replace('_', '-')}" for name in given if name not in ("name", *takes)]:
        raise ConfigError(f"{what} goes without {', '.join(others)}")


def _was_given(context: typer.Context, name: str) -> bool:
    source = context.get_parameter_source(name)
    return source is not None and source.name == "COMMANDLINE"


@contextmanager
def _data_in(folder: Path | None) -> Iterator[None]:
    """For this process and the runs it starts. As a setting it would make other runs of them."""
    before = os.environ.get(DATA_VARIABLE)
    try:
        if folder is not None:
            os.environ[DATA_VARIABLE] = str(folder)
        yield
    finally:
        if before is not None:
            os.environ[DATA_VARIABLE] = before
        elif folder is not None:
            os.environ.pop(DATA_VARIABLE, None)


def _smoke_changes(chosen: Experiment) -> dict[str, Any]:
    """Small data in place of large, and a narrow net."""
    few = {"dim": 64, "k": 20, "sketch_columns": 100}
    match chosen.study.rows[0].config.task:
        case "cifar10":
            return {"task": "cifar10-small", "width": 4, "clients": 100, "cohort": 10, **few}
        case "sst2" | "personachat":
            return {"model": "tiny", "clients": 6, "cohort": 3, "test_examples": 10, **few}
        case _:
            return {}


def _chosen(chosen: Experiment, only: list[str] | None) -> list[str]:
    from narrowcast.errors import ConfigError

    rows = chosen.study.rows
    if only is None:
        return [row.name for row in rows]
    unknown = set(only) - {row.name for row in rows} - {row.config.method for row in rows}
    if unknown:
        raise ConfigError(f"--only: no row or method is called {', '.join(sorted(unknown))}")
    return [row.name for row in rows if row.name in only or row.config.method in only]


def _estimate(chosen: Experiment, only: list[str] | None, console: Console) -> None:
    from narrowcast_studies.reproduce.dry_run import estimate

    total = 0.0
    for row in chosen.study.rows:
        if row.name in _chosen(chosen, only):
            e = estimate(chosen.study, row)
            total += e.core_hours
            console.print(
                f"{e.row:<36} {e.round_s:8.3f} s a round, {e.runs} runs: {e.core_hours:7.2f} core-hours",
                highlight=False,
                markup=False,
            )
    console.print(f"together at most {total:.2f} core-hours, evaluation left out", highlight=False)


def _timed(
    chosen: Experiment, only: list[str] | None, minutes: float, runs: Path, out: Path | None, console: Console
) -> None:
    from narrowcast.errors import ConfigError
    from narrowcast.runs import RunProgress, prepare_kernels
    from narrowcast_studies.reproduce import timed

    names = _chosen(chosen, only)
    if len(names) != 1:
        raise ConfigError(f"--minutes is for one row, not {len(names)}: name it with --only")
    row = next(row for row in chosen.study.rows if row.name == names[0])
    prepare_kernels(console)
    with RunProgress(console) as progress:
        folder = timed.run(row, chosen.study.seeds[0], minutes, runs, progress)
    command = (
        f'narrowcast reproduce {chosen.name} --scale {chosen.scale} --only "{row.name}" --minutes {minutes:g}'
    )
    out = out or chosen.results / "timed" / timed.slug(row)
    console.print(
        timed.write(chosen, row, folder, out, command), markup=False, highlight=False, soft_wrap=True
    )


def _run(
    work: Work, rows: list[str], jobs: int, stop_after: str | None, whole: bool, console: Console
) -> None:
    from narrowcast.units import parse_seconds

    def say(text: str) -> None:
        console.print(text, highlight=False, markup=False, soft_wrap=True)

    seconds = None if stop_after is None else parse_seconds(stop_after)
    failed = work.run(rows, jobs, seconds, whole, say)
    if failed:
        raise RuntimeError("\n".join(f"{row}: {why}" for row, why in failed.items()))
