"""What a measurement gave, as it stands in its files. Reports read these and nothing else."""

from __future__ import annotations

import csv
import io
from pathlib import Path
from typing import TypeVar

import msgspec

from narrowcast.files import write_atomically
from narrowcast.measure import rules
from narrowcast.measure.searching import Interval, interval


class Trained(msgspec.Struct, frozen=True):
    """One training run: how the metric went, and what was allowed. An empty curve: it diverged at once."""

    curve: list[tuple[int, float]]  # (rounds done, metric) at every evaluation
    rounds: int  # its budget
    diverged: bool = False


class Probe(msgspec.Struct, frozen=True):
    """A d asked for: a run for every rate that was tried, and whether one of them reached the target."""

    d: int
    reached: bool
    rates: list[float]
    runs: list[Trained]

    def best(self, higher_is_better: bool) -> float | None:
        """The best evaluation of all its runs; None: all diverged before the first."""
        values = [rules.best(run.curve, higher_is_better) for run in self.runs if run.curve]
        return None if not values else max(values) if higher_is_better else min(values)

    @property
    def used(self) -> int:
        """Rounds done, up to the last evaluation of each run."""
        return sum(run.curve[-1][0] for run in self.runs if run.curve)


class Baseline(msgspec.Struct, frozen=True):
    """Uncompressed training of the same budget."""

    rates: list[float]
    runs: list[Trained]
    best: float  # evaluation, over rates and rounds


class Seed(msgspec.Struct, frozen=True):
    """The search of one seed: d reached and `failed` did not; None: not even all parameters did."""

    seed: int
    baseline: Baseline
    target: float
    probes: list[Probe]  # in the order they were asked for
    d: int | None
    failed: int


class Measured(msgspec.Struct, frozen=True):
    """A measurement: all that its tables and pictures need."""

    task: str
    method: str
    subspace: str
    parameters: int  # D
    metric: str
    higher_is_better: bool
    threshold: float
    tolerance: float
    rounds: int
    epochs: float
    seeds: list[Seed]
    settings: dict[str, str] = {}  # what the runs were asked for beside that
    torch: str = ""

    @property
    def dims(self) -> list[int]:
        """d of the seeds that found one."""
        return [s.d for s in self.seeds if s.d is not None]

    @property
    def interval(self) -> Interval | None:
        """d over the seeds; None where one of them found none."""
        return interval(self.dims) if len(self.dims) == len(self.seeds) else None


T = TypeVar("T")


def write(path: Path, value: msgspec.Struct) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(path, msgspec.json.format(msgspec.json.encode(value), indent=1) + b"\n")


def read_results(path: Path, kind: type[T]) -> T:
    try:
        return msgspec.json.decode(path.read_bytes(), type=kind)
    except msgspec.DecodeError as error:
        raise ValueError(f"{path} is not a result of `narrowcast measure` ({error}): make it again") from None


def table(measured: Measured) -> str:
    """Every run of every probe as CSV; d = D is the uncompressed baseline."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(["seed", "run", "d", "lr", measured.metric, "target", "rounds", "budget", "verdict"])
    for s in measured.seeds:
        parts = [("uncompressed", measured.parameters, s.baseline.rates, s.baseline.runs)]
        parts += [(measured.method, p.d, p.rates, p.runs) for p in s.probes]
        for name, d, rates, runs in parts:
            for rate, run in zip(rates, runs, strict=True):
                best = rules.best(run.curve, measured.higher_is_better) if run.curve else None
                how = "diverged" if run.diverged else _verdict(measured, best, s.target)
                used = run.curve[-1][0] if run.curve else 0
                writer.writerow([s.seed, name, d, rate, best, s.target, used, run.rounds, how])
    return out.getvalue()


def _verdict(measured: Measured, best: float | None, target: float) -> str:
    reached = best is not None and rules.better(best, target, measured.higher_is_better)
    return rules.REACHED if reached else rules.FAILED
