"""A study's outcome: means and standard errors over seeds, as Markdown and as CSV; the sweep of rates."""

from __future__ import annotations

import csv
import io
import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from narrowcast.runs import Compression
from narrowcast.tables import markdown_table, times
from narrowcast.units import format_bytes
from narrowcast_studies.study import Outcome, Study, Tuning

COLUMNS = (
    "name method settings lr given_up mean standard_error seeds_diverged bytes_up bytes_down compression_up "
    "compression_down compression seconds values"
)


@dataclass(frozen=True)
class Line:
    """A row over its seeds. Bytes and seconds are means of a run, nan of private ones, which tell neither."""

    name: str
    method: str
    settings: str
    rate: float
    given_up: dict[float, int]  # higher rates, the tuned one first -> final runs that went wrong at them
    values: list[float]  # the metric of every seed that came to its end; none: the rest here is nan
    diverged: int  # seeds that did not
    up: float
    down: float
    seconds: float
    ratio: Compression | None  # None: there is no uncompressed row

    @property
    def mean(self) -> float:
        return _mean(self.values)

    @property
    def error(self) -> float:
        """Standard error of the mean; 0 of a single seed."""
        return standard_error(self.values)


def size(count: float) -> str:
    """Bytes of a run; a private one tells none."""
    return format_bytes(count) if count > 0 else "-"


def standard_error(values: list[float]) -> float:
    return statistics.stdev(values) / math.sqrt(len(values)) if len(values) > 1 else 0.0


def lines(outcomes: list[Outcome]) -> list[Line]:
    """The rows that have a result, in the order of the file."""
    return [line for line in all_lines(outcomes) if line.values]


def all_lines(outcomes: list[Outcome]) -> list[Line]:
    """And those that diverged at every rate, or with every seed."""
    plain = [_bytes(o) for o in outcomes if o.runs and o.row.config.method == "uncompressed"]
    told = [both for both in plain if not math.isnan(sum(both))]
    return [_line(o, max(told, key=sum, default=None)) for o in outcomes]


def _bytes(o: Outcome) -> tuple[float, float]:
    """Up and down, of runs that tell them: what private ones hide is not nothing."""
    told = [run for run in o.runs if not run.private]
    return _mean([run.bytes_up for run in told]), _mean([run.bytes_down for run in told])


def _mean(values: Sequence[float]) -> float:
    return statistics.mean(values) if values else math.nan


def _line(o: Outcome, against: tuple[float, float] | None) -> Line:
    up, down = _bytes(o)
    return Line(
        name=o.row.name,
        method=o.row.config.method,
        settings=_settings(o.row.settings),
        rate=math.nan if o.rate is None else o.rate,
        given_up={rate: runs for rate, runs in o.diverged.items() if rate != o.rate},
        values=[run.value for run in o.runs if run.value is not None],
        diverged=o.diverged.get(o.rate, 0) if o.rate is not None else 0,
        up=up,
        down=down,
        seconds=_mean([run.seconds for run in o.runs if not run.private]),
        ratio=Compression(against[0] / up, against[1] / down) if against and up > 0 and down > 0 else None,
    )


def _settings(settings: dict[str, Any]) -> str:
    return ", ".join(f"{k}={str(v).lower() if isinstance(v, bool) else v}" for k, v in settings.items())


def markdown(study: Study, outcomes: list[Outcome], command: str, commit: str, missing: list[str]) -> str:
    """The page: how it was made, the results, what is missing, the sweep."""
    run = next(run for o in outcomes for run in o.runs)
    head = ["method", "settings", "lr", run.metric, "up", "down", "compression up/down/total"]
    parts = [
        f"# {study.title}",
        f"`{command}` written at commit {commit}, {_versions(outcomes)}seeds "
        f"{', '.join(map(str, study.seeds))}. D = {max(_sizes(outcomes)):,}; "
        f"{run.clients or run.config.get('clients', 0):,} clients.{_untrained(outcomes, run.metric)}",
        f"The {run.metric} is that of the test set after the last round; +-: standard error "
        "over the seeds. Up and down: bytes of a run as encoded, all clients, mean over the seeds. "
        "Compression: bytes of the uncompressed run over bytes of the run; total is the harmonic mean.",
        markdown_table(head, [_cells(line) for line in lines(outcomes)], left=2),
        *_failures(outcomes, missing),
        *(_tuning(study.tuning, outcomes, run.metric) if study.tuning and study.tunes else []),
    ]
    return "\n\n".join(parts) + "\n"


def _versions(outcomes: list[Outcome]) -> str:
    """Of the runs, which may have been made over months; older lines do not say."""
    runs = [run for o in outcomes for run in o.runs if run.torch]
    found = {"narrowcast": {run.narrowcast for run in runs}, "torch": {run.torch for run in runs}}
    return "".join(f"{name} {' and '.join(sorted(each))}, " for name, each in found.items() if each)


def _tuning(t: Tuning, outcomes: list[Outcome], metric: str) -> list[str]:
    return [
        "## The tuning of the rates",
        f"Runs of at most {t.epochs:g} epochs with seed {t.seed} on a held-out tenth of the training set; a "
        f"grid by the factor {t.factor:g}: three rates, then one more while the best lies on the border, "
        f"{t.most} at most. {metric.capitalize()} on the held-out part; the chosen rate is bold. Where a "
        "final run diverged at it, or ended worse than the untrained model, all seeds were run again at the "
        "next lower rate of the grid: the table above has the rate given up in brackets, with the number of "
        "such runs." + _earlier(outcomes),
        markdown_table(["method", "lr: result"], [_sweep(o) for o in outcomes if o.trials], left=2),
    ]


def _earlier(outcomes: list[Outcome]) -> str:
    """Rows whose rate is from elsewhere: another study of this task, or what the file says of it."""
    names = [o.row.name for o in outcomes if o.row.tuned]
    return f" At the rate that the file says, without a search here: {', '.join(names)}." * bool(names)


def _untrained(outcomes: list[Outcome], metric: str) -> str:
    """Rows begin alike, seed by seed, whatever they train: said where all seeds of one are known."""
    for before in (o.untrained.values() for o in outcomes if o.untrained):
        if all(metric in metrics for metrics in before):
            return f" Untrained: {_mean([metrics[metric] for metrics in before]):.4f}, mean over the seeds."
    return ""


def _sizes(outcomes: list[Outcome]) -> list[int]:
    return [run.parameters for o in outcomes for run in o.runs]


def _cells(line: Line) -> list[str]:
    r = line.ratio
    lost = f" ({line.diverged} diverged)" if line.diverged else ""
    return [
        line.name,
        line.settings,
        _rate(line),
        f"{line.mean:.4f} +- {line.error:.4f}{lost}",
        size(line.up),
        size(line.down),
        "-" if r is None else times(r.up, r.down, r.total),
    ]


def _rate(line: Line) -> str:
    """20 (60: 3 failed): run at 20, after 3 final runs had gone wrong at the tuned 60."""
    left = ", ".join(f"{rate:g}: {runs} failed" for rate, runs in line.given_up.items())
    return f"{line.rate:g}" + (f" ({left})" if left else "")


def _failures(outcomes: list[Outcome], missing: list[str]) -> list[str]:
    """What the table does not show."""
    bad = [o.row.name for o in outcomes if not o.runs]
    said = [f"Diverged at every rate, or with every seed: {', '.join(bad)}."] if bad else []
    return said + ([f"Not run yet: {', '.join(missing)}."] if missing else [])


def _sweep(o: Outcome) -> list[str]:
    tried = []
    for rate, value in sorted(o.trials.items()):
        text = f"{rate:g}: " + ("diverged" if math.isnan(value) else f"{value:.4f}")
        tried.append(f"**{text}**" if rate == o.tuned else text)
    return [o.row.name, ", ".join(tried)]


def swept(page: str) -> dict[str, dict[float, float]]:
    """Row -> rate -> result, from the last table of a page that `markdown` wrote, in its four digits."""
    found: dict[str, dict[float, float]] = {}
    for line in page.partition("| lr: result |")[2].splitlines()[2:]:
        if not line.startswith("| "):
            break
        name, results = line.strip("| ").rsplit(" | ", 1)
        pairs = (text.strip("*").split(": ") for text in results.split(", "))
        found[name] = {float(rate): math.nan if x == "diverged" else float(x) for rate, x in pairs}
    return found


def as_csv(outcomes: list[Outcome]) -> str:
    """A row a line, numbers in full; nan where all diverged."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(COLUMNS.split())
    for x in all_lines(outcomes):
        ratio = [x.ratio.up, x.ratio.down, x.ratio.total] if x.ratio else [""] * 3
        left = " ".join(f"{rate:g}:{runs}" for rate, runs in x.given_up.items())
        what = [x.name, x.method, x.settings, x.rate, left, x.mean, x.error, x.diverged, x.up, x.down]
        writer.writerow([*what, *ratio, x.seconds, " ".join(map(str, x.values))])
    return text.getvalue()


def from_csv(text: str) -> list[Line]:
    """What `as_csv` wrote; a file from before rates were given up has no such column."""
    return [_read(row) for row in csv.DictReader(io.StringIO(text))]


def _read(row: dict[str, str]) -> Line:
    if None in row or None in row.values():
        raise ValueError(f"row {row['name']!r} has not the columns of the head")
    left = (pair.split(":") for pair in row.get("given_up", "").split())
    up, down = row["compression_up"], row["compression_down"]
    return Line(
        name=row["name"],
        method=row["method"],
        settings=row["settings"],
        rate=float(row["lr"]),
        given_up={float(rate): int(runs) for rate, runs in left},
        values=[float(value) for value in row["values"].split()],
        diverged=int(row["seeds_diverged"]),
        up=float(row["bytes_up"]),
        down=float(row["bytes_down"]),
        seconds=float(row["seconds"]),
        ratio=Compression(float(up), float(down)) if up else None,
    )
