"""`narrowcast measure`: how small can d be for this task, or what to do with so many bytes."""

from __future__ import annotations

import math
import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console

from narrowcast.cli.flags import with_run_flags
from narrowcast.errors import ConfigError
from narrowcast.extras import require
from narrowcast.methods.table import METHODS
from narrowcast.runs.config import RunConfig
from narrowcast.runs.reading import make_config
from narrowcast.runs.words import flag, off

if TYPE_CHECKING:
    from narrowcast.measure.probing import Spec, Trial

QUICK = {"rounds": 60, "cohort": 29, "evaluate_every": 10, "width": 128}
THRESHOLD = 0.9
REPEATS, QUICK_REPEATS = 3, 2
TOLERANCE, QUICK_TOLERANCE = 1.1, 1.5


@with_run_flags
def measure(
    task: Annotated[str | None, typer.Argument(help="a task [default: digits, with --quick]")] = None,
    threshold: Annotated[
        float | None, typer.Option(help=f"share of the uncompressed metric to reach [default: {THRESHOLD}]")
    ] = None,
    repeats: Annotated[
        int | None, typer.Option(min=1, help=f"seeds: --seed and those after it [default: {REPEATS}]")
    ] = None,
    tolerance: Annotated[
        float | None, typer.Option(help=f"the search ends when d is within it [default: {TOLERANCE}]")
    ] = None,
    rates: Annotated[
        int | None,
        typer.Option(min=1, help="rates that baseline and probes may try [default: 1; --suggest: 3]"),
    ] = None,
    full_lr: Annotated[
        float | None, typer.Option(help="rate of uncompressed training; the probes' follow from it")
    ] = None,
    out: Annotated[
        Path | None, typer.Option(help="folder of the results [default: runs/measure-TASK]")
    ] = None,
    probes: Annotated[
        Path | None, typer.Option(help="folder of the single runs [default: OUT/probes]")
    ] = None,
    quick: Annotated[bool, typer.Option("--quick", help="a small net, short runs: seconds")] = False,
    suggest: Annotated[bool, typer.Option("--suggest", help="say what to run with --budget bytes")] = False,
    budget: Annotated[
        str | None, typer.Option(help="bytes a client may send and receive in a run, e.g. 2MB")
    ] = None,
    *,
    flags: dict[str, Any],
) -> None:
    """The smallest d that reaches a share of the uncompressed metric; --dim: where to begin, --lr: at all d.

    The other flags are those of `narrowcast run` and say how every run is made.
    """
    from narrowcast.cli.terminal import console, plain_errors

    with plain_errors():
        for package in ("scipy", "matplotlib"):  # before hours of probes, not after
            require(package, "measure", "narrowcast measure")
        name = task or ("digits" if quick else None)
        if name is None:
            raise ConfigError("say what to measure: a task such as digits")
        if suggest != (budget is not None):
            raise ConfigError(
                "--suggest and --budget go together: narrowcast measure digits --suggest --budget 2MB"
            )
        if suggest:
            _refuse_measuring(threshold, tolerance, flags)
        _refuse_not_above("--tolerance", tolerance, 1, "the search ends when d is within this factor")
        _refuse_not_above("--full-lr", full_lr, 0, "it is the rate of uncompressed training")
        _refuse_not_above("--dim", flags.get("dim"), 0, "the search begins there")
        folder = out or Path("runs") / f"measure-{name.replace(':', '-')}{'-quick' if quick else ''}"
        own = {
            "threshold": threshold,
            "repeats": repeats,
            "tolerance": tolerance,
            "rates": rates,
            "full_lr": full_lr,
            "quick": quick,
            "suggest": suggest,
            "budget": budget,
            "out": folder,
            "probes": probes,
        }
        words = shlex.join(["narrowcast", "measure", *([task] if task else []), *_words({**own, **flags})])
        from narrowcast.measure.probing import LENGTH

        defaults = QUICK if quick else LENGTH.get(name, {})
        if flags.keys() & {"epochs", "rounds"}:  # the first of both to be reached would end a run
            defaults = {key: value for key, value in defaults.items() if key not in ("epochs", "rounds")}
        theirs = {k: v for k, v in flags.items() if k == "method" and v not in METHODS.own}
        asked = {**defaults, **{k: v for k, v in flags.items() if k not in ("dim", "lr", "method", "seed")}}
        config = make_config({"task": name, **asked, **theirs}, admit=True)
        _refuse_unused(config, flags, suggest)
        count, within = (QUICK_REPEATS, QUICK_TOLERANCE) if quick else (REPEATS, TOLERANCE)
        count, within = count if repeats is None else repeats, within if tolerance is None else tolerance
        seeds = tuple(range(flags.get("seed", 0), flags.get("seed", 0) + count))
        if budget is not None:
            propose(
                config, seeds, budget, rates, full_lr, folder, probes or folder / "probes", words, console
            )
            return
        spec = _spec(THRESHOLD if threshold is None else threshold, seeds, within, rates, full_lr, flags)
        run(config, spec, folder, probes or folder / "probes", words, console, asked)


def _refuse_measuring(threshold: float | None, tolerance: float | None, flags: dict[str, Any]) -> None:
    """What only a search for d looks at."""
    given = {"threshold": threshold, "tolerance": tolerance, **{k: flags.get(k) for k in ("dim", "lr")}}
    names = [name for name, value in given.items() if value is not None]
    names += ["method"] if flags.get("method") in METHODS.own else []
    if names:
        raise ConfigError(
            f"--suggest goes without {', '.join(map(flag, names))}: it tries our methods, each with the "
            "largest d that fits, at rates that follow from --full-lr"
        )


def _refuse_not_above(name: str, value: float | None, bound: int, why: str) -> None:
    if value is not None and not bound < value < math.inf:
        raise ConfigError(f"{name} is a number above {bound}, got {value:g}: {why}")


def _refuse_unused(config: RunConfig, flags: dict[str, Any], suggest: bool) -> None:
    """What neither the baseline nor any method that is tried would look at."""
    from narrowcast.measure.probing import FAMILY, UNCOMPRESSED
    from narrowcast.runs.used import refuse_unused

    tried = (*FAMILY, config.method) if suggest else (flags.get("method", "static"),)
    made = [config.but(method=method) for method in (UNCOMPRESSED, *tried)]
    refuse_unused([name for name in flags if name not in ("dim", "lr")], *made)


def _spec(
    threshold: float,
    seeds: tuple[int, ...],
    tolerance: float,
    rates: int | None,
    full_lr: float | None,
    flags: dict[str, Any],
) -> Spec:
    from narrowcast.measure import rules
    from narrowcast.measure.probing import Spec

    return Spec(
        method=flags.get("method", "static"),
        threshold=threshold,
        seeds=seeds,
        start=flags.get("dim"),
        tolerance=tolerance,
        rates=1 if rates is None else rates,
        full_rate=rules.FULL_RATE if full_lr is None else full_lr,
        rate=None if flags.get("lr") == "auto" else flags.get("lr"),
    )


def run(
    config: RunConfig,
    spec: Spec,
    out: Path,
    probes: Path,
    command: str,
    console: Console,
    settings: dict[str, Any],
) -> None:
    """Make what is missing, then tables and picture from the file."""
    from narrowcast.files import write_atomically
    from narrowcast.measure import pictures, probing, results, tables
    from narrowcast.measure.trainers import InFolders
    from narrowcast.runs.compiling import prepare_kernels

    prepare_kernels(console)
    with _Display(console) as display:
        trainer = InFolders(config, probes, display.watch)
        seeds = probing.conduct(trainer, spec, display.say)
    measured = probing.measured(trainer.about(), spec, seeds, config.task, settings)
    results.write(out / "measure.json", measured)
    measured = results.read_results(out / "measure.json", results.Measured)
    write_atomically(out / "probes.csv", results.table(measured).encode())
    write_atomically(out / "README.md", tables.page(measured, command).encode())
    pictures.draw(measured, out / "measure.png")
    for table in tables.terminal(measured):
        console.print(table)
    console.print(tables.answer(measured), highlight=False, markup=False)
    console.print(f"tables and picture: {out}", highlight=False, markup=False, soft_wrap=True)


def propose(
    config: RunConfig,
    seeds: tuple[int, ...],
    budget: str,
    rates: int | None,
    full_lr: float | None,
    out: Path,
    probes: Path,
    command: str,
    console: Console,
) -> None:
    """Try what fits the budget; table and command from the file."""
    from narrowcast.files import write_atomically
    from narrowcast.measure import results, rules, suggest, suggest_table
    from narrowcast.runs.compiling import prepare_kernels
    from narrowcast.units import parse_bytes

    allowed = parse_bytes(budget)
    prepare_kernels(console)
    with _Display(console) as display:
        found = suggest.propose(
            config,
            seeds,
            allowed,
            probes,
            rates=suggest.RATES if rates is None else rates,
            full_rate=rules.FULL_RATE if full_lr is None else full_lr,
            say=display.say,
            watch=display.watch,
        )
    results.write(out / "suggest.json", found)
    write_atomically(out / "suggest.md", suggest_table.page(found, command).encode())
    console.print(suggest_table.terminal(found))
    console.print(suggest_table.certainty(found), highlight=False, markup=False)
    console.print(suggest_table.answer(found), highlight=False, markup=False, soft_wrap=True)


def _words(values: dict[str, Any]) -> list[str]:
    """Flags as one would type them; what is None or a switch left off is left out."""
    words: list[str] = []
    for name, value in values.items():
        if isinstance(value, bool):
            on = value or RunConfig.model_fields.get(name) is not None
            words += [flag(name) if value else off(name)] if on else []
        elif value is not None:
            words += [flag(name), value.as_posix() if isinstance(value, Path) else str(value)]
    return words


class _Display:
    """A line a probe, and in a terminal how far the present one is."""

    def __init__(self, console: Console) -> None:
        self.console = console
        self.status = console.status("preparing")

    def __enter__(self) -> _Display:
        self.status.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.status.stop()

    def say(self, line: str) -> None:
        self.console.print(line, highlight=False, markup=False, soft_wrap=True)

    def watch(self, trial: Trial, done: int, rounds: int, metrics: dict[str, float]) -> None:
        what = trial.method if trial.d is None else f"{trial.method} d = {trial.d}"
        if metrics or done == 1:
            now = ", ".join(f"{name} {value:.4g}" for name, value in metrics.items())
            self.status.update(f"seed {trial.seed}, {what}: round {done} of {rounds} {now}")
