"""A study's outcome: means and standard errors over seeds, as Markdown and as CSV; the sweep of rates."""

from __future__ import annotations

import csv
import io
import math
import statistics
from dataclasses import dataclass
from typing import Any

from narrowcast.report.summary import Compression
from narrowcast.report.table import markdown_table, times
from narrowcast.report.units import format_bytes
from narrowcast.study import Outcome, Study, Tuning


@dataclass(frozen=True)
class Line:
    """A row over its seeds. Bytes and seconds are means of a run."""

    name: str
    method: str
    settings: str
    rate: float
    values: list[float]  # the metric of every seed that came to its end
    diverged: int  # seeds that did not
    up: float
    down: float
    seconds: float
    ratio: Compression | None  # None: there is no uncompressed row

    @property
    def mean(self) -> float:
        return statistics.mean(self.values)

    @property
    def error(self) -> float:
        """Standard error of the mean; 0 of a single seed."""
        return standard_error(self.values)


def standard_error(values: list[float]) -> float:
    return statistics.stdev(values) / math.sqrt(len(values)) if len(values) > 1 else 0.0


def lines(outcomes: list[Outcome]) -> list[Line]:
    """The rows that have a result, in the order of the file."""
    done = [o for o in outcomes if o.runs and o.rate is not None]
    plain = [_bytes(o) for o in done if o.row.config.method == "uncompressed"]
    return [_line(o, max(plain, key=sum, default=None)) for o in done]


def _bytes(o: Outcome) -> tuple[float, float]:
    return statistics.mean(run.up for run in o.runs), statistics.mean(run.down for run in o.runs)


def _line(o: Outcome, against: tuple[float, float] | None) -> Line:
    assert o.rate is not None
    up, down = _bytes(o)
    return Line(
        name=o.row.name,
        method=o.row.config.method,
        settings=_settings(o.row.settings),
        rate=o.rate,
        values=[run.metric for run in o.runs if run.metric is not None],
        diverged=o.diverged,
        up=up,
        down=down,
        seconds=statistics.mean(run.seconds for run in o.runs),
        ratio=Compression(against[0] / up, against[1] / down) if against else None,
    )


def _settings(settings: dict[str, Any]) -> str:
    return ", ".join(f"{k}={str(v).lower() if isinstance(v, bool) else v}" for k, v in settings.items())


def markdown(study: Study, outcomes: list[Outcome], command: str, commit: str, missing: list[str]) -> str:
    """The page: how it was made, the results, the sweep."""
    facts = next(run.facts for o in outcomes for run in o.runs)
    head = ["method", "settings", "lr", facts.metric, "up", "down", "compression up/down/total"]
    parts = [
        f"# {study.title}",
        f"`{command}` written at commit {commit}, narrowcast {facts.narrowcast}, torch {facts.torch}, seeds "
        f"{', '.join(map(str, study.seeds))}. D = {max(_sizes(outcomes)):,}; {facts.clients:,} clients.",
        f"The {facts.metric} is that of the test set after the last round, read once; +-: standard error "
        "over the seeds. Up and down: bytes of a run as encoded, all clients, mean over the seeds. "
        "Compression: bytes of the uncompressed run over bytes of the run; total is the harmonic mean.",
        markdown_table(head, [_cells(line) for line in lines(outcomes)], left=2),
        *_failures(outcomes, missing),
        *(_tuning(study.tuning, outcomes, facts.metric) if study.tuning else []),
    ]
    return "\n\n".join(parts) + "\n"


def _tuning(t: Tuning, outcomes: list[Outcome], metric: str) -> list[str]:
    return [
        "## The tuning of the rates",
        f"Runs of at most {t.epochs:g} epochs with seed {t.seed} on a held-out tenth of the training set; a "
        f"grid by the factor {t.factor:g}: three rates, then one more while the best lies on the border, "
        f"{t.most} at most. {metric.capitalize()} on the held-out part; the chosen rate is bold.",
        markdown_table(["method", "lr: result"], [_sweep(o) for o in outcomes], left=2),
    ]


def _sizes(outcomes: list[Outcome]) -> list[int]:
    return [run.facts.parameters for o in outcomes for run in o.runs]


def _cells(line: Line) -> list[str]:
    r = line.ratio
    lost = f" ({line.diverged} diverged)" if line.diverged else ""
    return [
        line.name,
        line.settings,
        f"{line.rate:g}",
        f"{line.mean:.4f} +- {line.error:.4f}{lost}",
        format_bytes(line.up),
        format_bytes(line.down),
        "-" if r is None else times(r.up, r.down, r.total),
    ]


def _failures(outcomes: list[Outcome], missing: list[str]) -> list[str]:
    """What the table does not show."""
    bad = [o.row.name for o in outcomes if not o.runs]
    said = [f"Diverged at every rate, or with every seed: {', '.join(bad)}."] if bad else []
    return said + ([f"Not run yet: {', '.join(missing)}."] if missing else [])


def _sweep(o: Outcome) -> list[str]:
    tried = []
    for rate, value in sorted(o.trials.items()):
        text = f"{rate:g}: " + ("diverged" if math.isnan(value) else f"{value:.4f}")
        tried.append(f"**{text}**" if rate == o.rate else text)
    return [o.row.name, ", ".join(tried)]


def as_csv(outcomes: list[Outcome]) -> str:
    """A row a line, numbers in full."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    names = "name method settings lr mean standard_error seeds_diverged bytes_up bytes_down"
    writer.writerow(
        [*names.split(), "compression_up", "compression_down", "compression", "seconds", "values"]
    )
    for x in lines(outcomes):
        ratio = [x.ratio.up, x.ratio.down, x.ratio.total] if x.ratio else [""] * 3
        what = [x.name, x.method, x.settings, x.rate, x.mean, x.error, x.diverged, x.up, x.down]
        writer.writerow([*what, *ratio, x.seconds, " ".join(map(str, x.values))])
    return text.getvalue()
