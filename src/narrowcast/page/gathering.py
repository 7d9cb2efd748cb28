"""What the page shows of runs, read from their folders alone: plain data, ready to be JSON.

Every word in it is a stranger's, and is made printable here; the document escapes it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from itertools import accumulate
from pathlib import Path
from typing import Any

from narrowcast.page.thinning import thinned
from narrowcast.rounds import records
from narrowcast.rounds.records import RoundRecord
from narrowcast.runs import attempts, own, run_folder
from narrowcast.runs.reading import make_config
from narrowcast.runs.style import STYLE
from narrowcast.runs.summary import Summary, compression, reference, summarise
from narrowcast.runs.table import caption
from narrowcast.runs.used import used
from narrowcast.texts import printable

Settings = dict[str, str]
LOSS = "training loss"
MOST, FEWEST, ALL = 240, 80, 12_000  # points of a curve, and of all curves of a kind: more no screen can show


def gather(folders: Sequence[Path], tolerant: bool = False) -> dict[str, Any]:
    """The runs of these folders, and what their numbers are counted against.

    One that cannot be read is an error; with `tolerant` it is said, and the others are shown.
    """
    read: list[tuple[Summary, Settings, list[RoundRecord]]] = []
    runs: list[dict[str, Any]] = []
    problems: list[str] = []
    said = problems if tolerant else None
    for folder in folders:
        with _saying(folder, said):
            read.append(_read(folder))
    summaries = [summary for summary, _, _ in read]
    most = max(FEWEST, min(MOST, ALL // max(1, len(read))))
    for one in read:
        with _saying(one[0].folder, said):
            runs.append(_run(*one, summaries, most))
    return {
        "runs": runs,
        "caption": printable(caption(summaries)) if read else "",
        "problems": problems,
    }


@contextmanager
def _saying(folder: Path, problems: list[str] | None) -> Iterator[None]:
    """What is wrong with the folder goes to `problems`, whatever it is: a stranger may have written it."""
    try:
        yield
    except Exception as error:
        if problems is None:
            raise
        problems.append(printable(f"{folder}: {error}"))


def _read(folder: Path) -> tuple[Summary, Settings, list[RoundRecord]]:
    path = folder / run_folder.RECORDS
    rows = records.read(path) if path.is_file() else []
    return summarise(folder), _settings(folder), rows


def _run(
    run: Summary, settings: Settings, rows: list[RoundRecord], among: list[Summary], most: int
) -> dict[str, Any]:
    facts, private = run.facts, run.epsilon is not None  # then bytes and seconds would tell who came
    ratio = compression(run, reference(run, among))
    colour, marker = STYLE[facts.method]
    return {
        "id": printable(str(run.folder)),
        "label": printable(facts.label),
        "task": printable(facts.task),
        "method": printable(facts.method),
        "metric": printable(facts.metric),
        "higher": facts.higher_is_better,
        "parameters": facts.parameters,
        "seed": facts.seed,
        "rounds": facts.rounds,
        "epochs": facts.rounds / facts.rounds_per_epoch,
        "done": run.rounds,
        "complete": run.complete,
        "state": _state(run),
        "value": run.metric,
        "epsilon": run.epsilon,
        "up": None if private else run.up,
        "down": None if private else run.down,
        "kinds": None if private else _kinds(rows),
        "dropped": {printable(why): count for why, count in run.dropped.items()},
        "seconds": None if private else run.seconds,
        "network": run.network_seconds,
        "network_name": printable(facts.network),
        "compression": None if ratio is None else [ratio.up, ratio.down, ratio.total],
        "settings": settings,
        "colour": colour,
        "marker": marker,
        "curves": _curves(rows, most, bool(facts.network), private),
    }


def _state(run: Summary) -> str:
    """How far it is; one that is not finished may be going on."""
    return attempts.outcome(run.folder) or ("begun" if run.rounds else "not begun")


def _settings(folder: Path) -> Settings:
    """What the run looks at, as text.

    Of one that names code by its place, all that its file says: nothing is imported for being looked at.
    """
    values = run_folder.load_settings(folder)
    if not own.named_by_place(values):
        config = make_config(values)
        values = config.model_dump(exclude_none=True, include=used(config))
    return {printable(name): printable(str(value)) for name, value in values.items() if name != "name"}


def _kinds(rows: Iterable[RoundRecord]) -> dict[str, int]:
    """The bytes down by what they were for; nothing is in two of them."""
    first = sum(r.down_first for r in rows)
    whole = sum(r.down_dense_again for r in rows)
    catch_up = sum(r.down_catch_up for r in rows)
    return {
        "first": first,
        "whole": whole,
        "catch_up": catch_up,
        "current": sum(r.down for r in rows) - first - whole - catch_up,
    }


def _curves(
    rows: list[RoundRecord], most: int, network: bool, private: bool
) -> dict[str, dict[str, list[Any]]]:
    """By name: the values, and against what they can be drawn, each as far as the round's end."""
    axes: dict[str, list[Any]] = {"round": [r.round + 1 for r in rows]}
    if not private:
        axes["bytes"] = list(accumulate(r.up + r.down for r in rows))
        axes["seconds"] = [_short(x) for x in accumulate(r.seconds for r in rows)]
    if network:
        axes["network"] = [_short(x) for x in accumulate(r.network_seconds for r in rows)]
    measured = [{**r.metrics, **{f"{n} at the nodes": v for n, v in r.node_metrics.items()}} for r in rows]
    names = dict.fromkeys(name for found in measured for name in found)
    values: dict[str, list[float | None]] = {name: [found.get(name) for found in measured] for name in names}
    curves = {}
    for name, ys in {**values, LOSS: [r.loss for r in rows]}.items():
        kept = thinned(ys, most)
        if kept:
            at = {axis: [xs[i] for i in kept] for axis, xs in axes.items()}
            curves[printable(name)] = {**at, "y": [_short(ys[i]) for i in kept]}
    return curves


def _short(value: float | None) -> float:
    """Six digits: as many as anybody reads off a picture."""
    return float(f"{value:.6g}")
