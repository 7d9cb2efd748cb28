"""Live progress of a run in the terminal; a line now and then where there is none."""

from __future__ import annotations

import time
from types import TracebackType

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeRemainingColumn

from narrowcast.rounds.records import RoundRecord
from narrowcast.runs.run_folder import Facts
from narrowcast.runs.words import searched
from narrowcast.units import format_bytes

SILENT_SECONDS = 15.0
NAME = 25  # columns of a bar's name


class RunProgress:
    """Call it with every record. Runs of a comparison share one display, a bar each.

    `seeds`: of runs with several seeds, each is named with its own.
    """

    def __init__(self, console: Console, seeds: bool = False) -> None:
        self.console, self.seeds = console, seeds
        self.bars = Progress(
            TextColumn(f"{{task.description:<{NAME}.{NAME}}}", markup=False),
            BarColumn(bar_width=12),
            MofNCompleteColumn(),
            TextColumn("{task.fields[status]}"),
            TimeRemainingColumn(compact=True, elapsed_when_finished=True),
            console=console,
            disable=not console.is_terminal,
        )
        self._bar: dict[str, TaskID] = {}
        self._bytes: dict[str, int] = {}
        self._metric: dict[str, str] = {}
        self._spoke = time.monotonic()
        self._trial: TaskID | None = None

    def __enter__(self) -> RunProgress:
        self.bars.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, e: BaseException | None, tb: TracebackType | None
    ) -> None:
        self.bars.stop()

    def __call__(self, facts: Facts, record: RoundRecord) -> None:
        seed = f", seed {facts.seed}" if self.seeds else ""
        name = facts.label + seed
        if name not in self._bar:
            if self._trial is not None:
                self.bars.remove_task(self._trial)
                self._trial = None
            if facts.privacy:
                self._print(f"{name}: {facts.privacy}")
            if facts.search:
                self._print(f"{name}: {searched(facts.search)}")
            self._bar[name] = self.bars.add_task(
                facts.label[: NAME - len(seed)] + seed, total=facts.rounds, status=""
            )
            self._bytes[name] = 0
        self._bytes[name] += record.up + record.down
        if facts.metric in record.metrics:
            self._metric[name] = f"{facts.metric} {record.metrics[facts.metric]:.4g}"
        so_far = self._metric.get(name) or ("" if record.loss is None else f"loss {record.loss:.4g}")
        told = format_bytes(self._bytes[name]) if record.epsilon is None else f"epsilon {record.epsilon:.3g}"
        status = f"{so_far:<15} {told:>7}"
        self.bars.update(self._bar[name], completed=record.round + 1, status=status)
        last = record.round + 1 == facts.rounds
        if not self.console.is_terminal and (last or time.monotonic() - self._spoke > SILENT_SECONDS):
            self._spoke = time.monotonic()
            self._print(f"{name}: round {record.round + 1} of {facts.rounds}  {status}")

    def trial(self, rate: float, loss: float) -> None:
        """A trial of `--lr auto` has ended."""
        if self._trial is None:
            self._trial = self.bars.add_task("finding lr", total=None, status="")
        self.bars.update(self._trial, advance=1, status=f"lr {rate:g}: loss {loss:.4g}")

    def _print(self, line: str) -> None:
        self.console.print(line, highlight=False, markup=False, soft_wrap=True)
