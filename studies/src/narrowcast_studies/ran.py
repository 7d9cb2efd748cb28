"""A run that came to its end, as a line of runs.jsonl: all that a study asks of it, without its folder."""

from __future__ import annotations

import math
from itertools import accumulate
from pathlib import Path
from typing import Any

import msgspec

from narrowcast.rounds import records
from narrowcast.runs import RunConfig, attempts, make_config, run_folder, summarise

Metrics = dict[str, float]


class Ran(msgspec.Struct, frozen=True):
    """What a run was asked, and what came of it. Older lines lack what has a default here."""

    row: str  # that asked for it first, where rows share a tuning run
    seed: int
    commit: str = ""
    seconds: float = 0.0
    config: dict[str, Any] = {}
    parameters: int = 0
    metric: str = "accuracy"
    higher_is_better: bool = True
    rounds: int = 0
    bytes_up: int = 0
    bytes_down: int = 0
    down_first: int = 0
    down_dense: int = 0
    dropped: dict[str, int] = {}
    untrained: Metrics = {}
    curve: dict[int, Metrics] = {}  # rounds -> metrics, where it was evaluated
    spent: dict[int, int] = {}  # the same rounds -> bytes up and down until then
    clients: int = 0
    rounds_per_epoch: int = 0
    narrowcast: str = ""
    torch: str = ""
    diverged: str = ""  # why it did

    @property
    def asked(self) -> RunConfig:
        return make_config(self.config)

    @property
    def tuning(self) -> bool:
        return bool(self.config.get("validation"))

    @property
    def private(self) -> bool:
        """Whether it has differential privacy: such a run tells neither bytes nor seconds."""
        return "dp_noise" in self.config

    @property
    def last(self) -> Metrics:
        """All metrics of the last evaluation."""
        return self.curve[max(self.curve)] if self.curve else {}

    @property
    def value(self) -> float | None:
        """The headline metric at the end."""
        return self.last.get(self.metric)

    @property
    def epochs(self) -> float:
        """Of its rounds; lines from before they were written have those that were asked for."""
        asked = self.config.get("epochs") or 0.0
        return self.rounds / self.rounds_per_epoch if self.rounds_per_epoch else asked

    def by_epoch(self) -> list[tuple[float, float]]:
        """(epochs, the headline metric) at every evaluation."""
        a_round = self.epochs / self.rounds if self.rounds else 0.0
        return [(n * a_round, m[self.metric]) for n, m in self.curve.items() if self.metric in m]

    def by_bytes(self) -> list[tuple[float, float]]:
        """(bytes up and down, the headline metric) at every evaluation; none where a run does not tell bytes.

        A line from before they were written at each has them where its rounds are alike: as much down as up.
        """
        if self.private or not self.rounds:
            return []
        a_round = (self.bytes_up + self.bytes_down) / self.rounds
        alike = {n: n * a_round for n in self.curve} if self.bytes_up == self.bytes_down else {}
        spent = {n: float(x) for n, x in (self.spent or alike).items()}
        return [(spent[n], m[self.metric]) for n, m in self.curve.items() if n in spent and self.metric in m]


def from_folder(folder: Path, row: str, untrained: Metrics) -> Ran:
    """The line of a run that has finished or diverged; an end without a finite metric is no end either."""
    run = summarise(folder)
    facts, why = run.facts, ""
    if attempts.outcome(folder) == "diverged":
        why = (folder / run_folder.DIVERGED).read_text(encoding="utf-8").strip() or "it diverged"
    elif run.metric is None or not math.isfinite(run.metric):
        why = f"the {facts.metric} at its end is {run.metric}"
    done = [] if why else records.read(folder / run_folder.RECORDS)
    totals = accumulate(r.up + r.down for r in done)
    return Ran(
        row=row,
        seed=facts.seed,
        commit=facts.commit or f"before it was recorded, narrowcast {facts.narrowcast}",
        seconds=round(run.seconds, 1),
        config=run_folder.load_config(folder).model_dump(exclude_none=True, exclude={"data"}),
        parameters=facts.parameters,
        metric=facts.metric,
        higher_is_better=facts.higher_is_better,
        rounds=run.rounds,
        bytes_up=run.up,
        bytes_down=run.down,
        down_first=run.down_first,
        down_dense=run.down_dense,
        dropped=run.dropped,
        untrained=_finite(untrained),
        curve={r.round + 1: _finite(r.metrics) for r in done if r.metrics},
        spent={r.round + 1: total for r, total in zip(done, totals, strict=True) if r.metrics},
        clients=facts.clients,
        rounds_per_epoch=facts.rounds_per_epoch,
        narrowcast=facts.narrowcast,
        torch=facts.torch,
        diverged=why,
    )


def _finite(metrics: Metrics) -> Metrics:
    """JSON has no other numbers."""
    return {name: value for name, value in metrics.items() if math.isfinite(value)}


def to_line(run: Ran) -> bytes:
    return msgspec.json.encode(run)


def read(path: Path) -> list[Ran]:
    """The lines of the file; none where there is no such file."""
    if not path.is_file():
        return []
    return [msgspec.json.decode(line, type=Ran) for line in path.read_bytes().splitlines() if line]
