"""A study's rows, run: what is missing of them, in the order of the file, several at a time.

Every run has a folder of its own, named by its settings: what is finished is never repeated, whether it is
found in its folder or in a committed line (see `ledger`), and a changed setting is another run.
"""

from __future__ import annotations

import threading
import time
from collections import defaultdict
from collections.abc import Callable, Collection, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

from narrowcast.cli import give_back, keep_memory
from narrowcast.errors import Interrupted
from narrowcast.runs import RunConfig, attempts
from narrowcast.units import format_seconds
from narrowcast_studies import untrained
from narrowcast_studies.ledger import Ledger
from narrowcast_studies.ran import Metrics, Ran
from narrowcast_studies.study import Outcome, Row, Study, follow
from narrowcast_studies.untrained import harmed

Say = Callable[[str], None]
Settled = Mapping[str, Outcome]  # rows whose results stand, by name


class PutOff(Exception):
    """A run that is not to be begun now."""


def conduct(
    study: Study,
    ledger: Ledger,
    rows: Collection[str] | None = None,
    *,
    settled: Settled | None = None,
    run: attempts.Run = attempts.in_process,
    stop: Callable[[], None] = lambda: None,
    jobs: int = 1,
    tune_only: bool = False,
    begin: Callable[[Row, RunConfig], None] = lambda row, config: None,
    ended: Callable[[Ran], None] = lambda ran: None,
    finished: Callable[[Row], None] = lambda row: None,
    failed: dict[str, str] | None = None,
    say: Say = print,
) -> dict[str, str]:
    """Run what is missing, `jobs` rows at a time; the names of rows that failed, and why.

    `begin` is asked before a run, and may raise PutOff: the row is left, and it is the next one's turn.
    `ended` is told of every new end, `finished` of every row that came through; `failed` is filled as rows
    fail, for one who interrupts. When interrupted it begins no more runs, calls `stop` to end those that
    `run` has going, and waits.
    """
    chosen = [row for row in study.rows if rows is None or row.name in rows]
    failed = {} if failed is None else failed
    started, done, halted = time.monotonic(), 0, threading.Event()
    held: defaultdict[str, threading.Lock] = defaultdict(threading.Lock)  # rows may share a tuning run

    def one(row: Row) -> None:
        nonlocal done

        def hold(name: str) -> threading.Lock:
            if halted.is_set():
                raise Interrupted("stopped")
            return held[name]

        def attempt(config: RunConfig) -> Ran:
            with hold(attempts.folder_of(config)):
                if known := ledger.find(config, row.name):
                    return known
                begin(row, config)
                now = time.monotonic()
                attempts.attempt(config, ledger.folder(config), run)
                give_back()
                new = ledger.find(config, row.name)
                assert new is not None, "an attempt ends in one of two ways"
                tell(f"{row.name}: {_told(new)} ({format_seconds(time.monotonic() - now)})")
                ended(new)
                return new

        def began(config: RunConfig) -> Metrics:
            with hold(untrained.file_of(config)):
                return ledger.measured(config)

        how = "done"
        try:
            if row.name not in (settled or {}):
                follow(study, row, attempt, began, tune_only)
                finished(row)
        except Interrupted:
            raise
        except PutOff as why:
            how = f"put off: {why}"
        except (OSError, RuntimeError, ValueError) as error:  # the other rows go on
            failed[row.name] = str(error)
            how = f"FAILED: {error}"
        done += 1
        tell(f"{row.name}: {how} ({done} of {len(chosen)} rows)")

    def tell(line: str) -> None:
        say(f"[{format_seconds(time.monotonic() - started):>8}] {line}")

    keep_memory()  # before there are threads
    pool = ThreadPoolExecutor(jobs)
    try:
        if jobs == 1:  # in this thread: a run here stops when the process is asked to
            for row in chosen:
                one(row)
        for future in [pool.submit(one, row) for row in chosen if jobs > 1]:
            future.result()
    except BaseException:
        halted.set()
        stop()
        raise
    finally:
        pool.shutdown(wait=True, cancel_futures=True)
    return failed


def _told(run: Ran) -> str:
    rate = run.config["lr"]
    what = f"tune lr {rate:g}" if run.tuning else f"seed {run.seed} lr {rate:g}"
    if run.diverged:
        return f"{what}: diverged"
    return f"{what}: {run.value:.4f}" + (", worse than untrained" if harmed(run, run.untrained) else "")


@dataclass
class Known:
    """What there is of a row, from folders and lines alone."""

    row: Row
    runs: list[Ran] = field(default_factory=list)  # all that ended
    outcome: Outcome | None = None  # None: it is not complete
    next: RunConfig | None = None  # the run that it needs next; None: none
    stands: bool = False  # complete by its committed results, though some run of it has no line


class _NotRun(Exception):
    """A run that a row needs and that has not come to its end."""


def known(study: Study, row: Row, ledger: Ledger, settled: Settled | None = None) -> Known:
    """How far the row has come. A settled one needs nothing more, even where its tuning is not known."""
    found = Known(row)

    def find(config: RunConfig) -> Ran:
        if (run := ledger.find(config, row.name)) is None:
            found.next = config
            raise _NotRun
        found.runs.append(run)
        return run

    try:
        found.outcome = follow(study, row, find, ledger.before)
    except _NotRun:
        if settled and row.name in settled:
            found.outcome, found.next, found.stands = settled[row.name], None, True
            found.runs += [run for run in found.outcome.runs if run not in found.runs]
    return found


def collect(study: Study, ledger: Ledger, settled: Settled | None = None) -> list[Known]:
    """How far every row has come, in the order of the file."""
    return [known(study, row, ledger, settled) for row in study.rows]
