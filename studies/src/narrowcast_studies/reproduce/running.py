"""An experiment at work: what is missing is run, in time, and every end is written down when it comes.

A deadline cuts a run between two rounds: it has a checkpoint in its folder, and goes on from there. What is
in runs.jsonl is never run again, on this machine or another; an unfinished run another machine begins anew.
"""

from __future__ import annotations

import math
import signal
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from narrowcast.errors import Interrupted
from narrowcast.runs import RunConfig, attempts
from narrowcast.units import format_seconds
from narrowcast_studies import conducting
from narrowcast_studies.conducting import Known, PutOff, Say
from narrowcast_studies.ledger import Ledger
from narrowcast_studies.processes import Processes
from narrowcast_studies.ran import Ran
from narrowcast_studies.reproduce import committed, results, status
from narrowcast_studies.reproduce.experiment import Experiment
from narrowcast_studies.study import Row


class Work:
    """An experiment with its runs' folder and the folder of its results."""

    def __init__(self, experiment: Experiment, runs: Path, out: Path) -> None:
        self.experiment, self.study, self.out = experiment, experiment.study, out
        self.ledger = Ledger(runs, committed.lines(out))
        self.settled = committed.settled(out, self.study)
        self.again = f"narrowcast reproduce {experiment.name} --scale {experiment.scale}"
        self._writing = threading.Lock()

    def known(self) -> list[Known]:
        return conducting.collect(self.study, self.ledger, self.settled)

    def status(self, names: Sequence[str]) -> str:
        rows = status.progress(self.study, self.known(), self.ledger)
        return status.text([row for row in rows if row.name in names])

    def run(
        self, names: Sequence[str], jobs: int, seconds: float | None, whole: bool, say: Say
    ) -> dict[str, str]:
        """Run these rows, for so many seconds where they are given; the names of those that failed, and why.

        With `whole` no run is begun that should not end in time: the next row has its turn, whose tuning runs
        are shorter.
        """
        end = math.inf if seconds is None else time.monotonic() + seconds
        processes, ran, failed = Processes(), list[Ran](), dict[str, str]()

        def ended(run: Ran) -> None:
            ran.append(run)
            with self._writing:
                results.keep(self.known(), self.out)

        def begin(row: Row, config: RunConfig) -> None:
            if whole:
                self._in_time(row, config, end - time.monotonic())

        def finished(row: Row) -> None:
            if ran:
                self._write()

        try:
            with _terminated(), _alarm(seconds, processes.stop):
                conducting.conduct(
                    self.study,
                    self.ledger,
                    names,
                    settled=self.settled,
                    run=attempts.in_process if jobs == 1 and seconds is None else processes,
                    stop=processes.stop,
                    jobs=jobs,
                    begin=begin,
                    ended=ended,
                    finished=finished,
                    failed=failed,
                    say=say,
                )
        except (KeyboardInterrupt, Interrupted):
            if time.monotonic() < end:
                raise Interrupted(f"stopped. Go on with: {self.again}") from None
            say(f"stopped after {format_seconds(seconds or 0.0)}. Go on with: {self.again}")
        page = self._write() if ran or not any(row.stands for row in self.known()) else None
        say(page if page and seconds is None else self.status(names))
        return failed

    def _write(self) -> str | None:
        with self._writing:
            return results.write(self.experiment, self.known(), self.out, self.again)

    def _in_time(self, row: Row, config: RunConfig, left: float) -> None:
        with self._writing:
            expected = status.Pace(self.known()).seconds(row.name, config)
        if going := self.ledger.going(config):
            expected *= 1 - going.rounds / going.of
        if expected > left:
            raise PutOff(f"a run of {format_seconds(expected)} would not end in time")


@contextmanager
def _terminated() -> Iterator[None]:
    """SIGTERM stops as Ctrl-C does, and so does the end of the terminal: runs in sessions of their own would
    outlive it. Where that is ignored already, as under nohup, it stays so."""

    def interrupt(number: int, frame: Any) -> None:
        raise KeyboardInterrupt

    asked = {signal.SIGTERM, getattr(signal, "SIGHUP", signal.SIGTERM)}  # which Windows has not
    before = {s: signal.signal(s, interrupt) for s in asked if signal.getsignal(s) is not signal.SIG_IGN}
    try:
        yield
    finally:
        for s, handler in before.items():
            signal.signal(s, handler)


@contextmanager
def _alarm(seconds: float | None, ring: Callable[[], None]) -> Iterator[None]:
    if seconds is None:
        yield
        return
    timer = threading.Timer(seconds, ring)
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()
