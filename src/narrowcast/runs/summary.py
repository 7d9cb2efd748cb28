"""A run in one row, read from its folder alone."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

from narrowcast.errors import ConfigError
from narrowcast.rounds import records
from narrowcast.rounds.records import RoundRecord
from narrowcast.runs import run_folder
from narrowcast.runs.config import ELSEWHERE
from narrowcast.runs.run_folder import Facts


@dataclass(frozen=True)
class Summary:
    """Totals of a run. Bytes are those of encoded messages."""

    folder: Path
    facts: Facts
    rounds: int  # done
    metric: float | None  # the headline metric at the last evaluation
    up: int
    down: int
    down_first: int
    down_dense: int
    uploads: int  # messages
    downloads: int
    dropped: dict[str, int]
    seconds: float
    network_seconds: float | None  # on the run's network, if it has one
    curve: list[tuple[int, float]]  # (bytes up and down so far, metric) at every evaluation
    timed: list[tuple[float, float]]  # the same against the seconds on the network
    last: dict[str, float]  # all metrics of the last evaluation
    settings: str = ""  # equal ones: runs that differ by their seed alone
    diverged: str | None = None  # why it did
    seeds: tuple[int, ...] = ()  # of the runs that this is the mean of, if it is one
    interval: float | None = None  # half of Student's 95 % interval of their metric
    band: tuple[tuple[float, float], ...] = ()  # of the metric, at every evaluation
    at_nodes: float | None = None  # the headline metric on what nodes hold out, at the last evaluation there
    evaluation: int = 0  # bytes of that, which `up` and `down` leave out
    epsilon: float | None = None  # of every client, so far; such a run tells no bytes and no seconds

    @property
    def complete(self) -> bool:
        return self.rounds == self.facts.rounds


@dataclass(frozen=True)
class Compression:
    """How many times fewer bytes than a reference; total is the harmonic mean, as in the paper."""

    up: float
    down: float

    @property
    def total(self) -> float:
        return 2 / (1 / self.up + 1 / self.down)


def summarise(folder: Path) -> Summary:
    facts = run_folder.load_facts(folder)
    path = folder / run_folder.RECORDS
    rows = records.read(path) if path.is_file() else []
    if run_folder.finished(folder) and [row.round for row in rows] != list(range(facts.rounds)):
        there = f"has {len(rows)} records that are not" if path.is_file() else "is missing: it had"
        raise ConfigError(
            f"{path} {there} those of the {facts.rounds} rounds of this finished run. Its model can still be "
            f"had (narrowcast export {folder}); to have the numbers, run it again with --force"
        )
    return replace(
        _summary(folder, facts, rows), settings=_settings(folder, facts), diverged=run_folder.diverged(folder)
    )


def _settings(folder: Path, facts: Facts) -> str:
    """What a run was asked for but its seed: a rate that was found for it is none of that."""
    own = {"seed", *ELSEWHERE} | ({"lr"} if facts.search else set())
    return repr(sorted((k, v) for k, v in run_folder.load_settings(folder).items() if k not in own))


def _summary(folder: Path, facts: Facts, rows: list[RoundRecord]) -> Summary:
    curve: list[tuple[int, float]] = []
    timed: list[tuple[float, float]] = []
    dropped: dict[str, int] = {}
    total, seconds = 0, 0.0
    for r in rows:
        total += r.up + r.down
        seconds += r.network_seconds
        if facts.metric in r.metrics:
            curve.append((total, r.metrics[facts.metric]))
            timed.append((seconds, r.metrics[facts.metric]))
        for why, count in r.dropped.items():
            dropped[why] = dropped.get(why, 0) + count
    answered = sum(r.clients for r in rows)
    return Summary(
        folder=folder,
        facts=facts,
        rounds=len(rows),
        metric=curve[-1][1] if curve else None,
        up=sum(r.up for r in rows),
        down=sum(r.down for r in rows),
        down_first=sum(r.down_first for r in rows),
        down_dense=sum(r.down_dense for r in rows),
        uploads=answered,
        downloads=answered + sum(dropped.values()),
        dropped=dropped,
        seconds=sum(r.seconds for r in rows),
        network_seconds=seconds if facts.network else None,
        curve=curve,
        timed=timed if facts.network else [],
        last=next((r.metrics for r in reversed(rows) if r.metrics), {}),
        at_nodes=next((r.node_metrics.get(facts.metric) for r in reversed(rows) if r.node_metrics), None),
        evaluation=sum(r.evaluate_up + r.evaluate_down for r in rows),
        epsilon=rows[-1].epsilon if rows else None,
    )


def reference(run: Summary, runs: list[Summary]) -> Summary | None:
    """The uncompressed run of the same task and model that a run is compared with, if it is among them."""

    def kind(r: Summary) -> tuple[str, int, int]:
        return r.facts.task, r.facts.parameters, r.facts.clients

    plain = [
        r
        for r in runs
        if r.facts.method == "uncompressed" and r.complete and r.up and r.down and kind(r) == kind(run)
    ]
    return max(plain, key=lambda r: r.up + r.down, default=None)


def compression(run: Summary, against: Summary | None) -> Compression | None:
    """Per run against the reference run; without one, per message against 4 D bytes."""
    if not run.up or not run.down or not run.uploads:
        return None
    if against is not None:
        return Compression(against.up / run.up, against.down / run.down)
    whole = 4 * run.facts.parameters
    return Compression(whole * run.uploads / run.up, whole * run.downloads / run.down)
