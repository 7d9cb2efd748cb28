"""What the slow Flower tests share: a small run of digits on real processes, and what was noted of it."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import faulty_app
from narrowcast import files
from narrowcast.flower.demo import write_app
from narrowcast.flower.local_fleet import LocalFleet
from narrowcast.rounds import records
from narrowcast.rounds.records import RoundRecord
from narrowcast.runs import run_folder

SETTINGS: dict[str, object] = {
    "task": "digits", "width": 16, "clients": 6, "cohort": 6, "partition": "iid", "rounds": 4,
    "evaluate-every": 0, "schedule": "constant", "min-clients": 6, "timeout": 150.0,
}  # fmt: skip
VARYING = {"method": "time-varying", "dim": 64, "lr": 5.0, "refresh": "2"}
TOPK = {"method": "topk", "k": 40, "lr": 0.1}


def table(**settings: object) -> dict[str, object]:
    """The settings of a run as its app has them: time-varying, unless they name a method."""
    own = {} if "method" in settings else VARYING
    return SETTINGS | {name.replace("_", "-"): value for name, value in {**own, **settings}.items()}


def app(folder: Path, **settings: object) -> Path:
    """An app that takes notes; its run goes to FOLDER/run."""
    return faulty_app.install(write_app(folder / "app", table(folder=str(folder / "run"), **settings)))


def until(condition: Callable[[], object], what: str, seconds: float = 1200.0) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, f"{what} did not happen in {seconds:g} s"
        time.sleep(0.1)


def rounds(run: Path) -> int:
    path = run / "records.jsonl"
    return len(records.read(path)) if path.is_file() else 0


def is_free(run: Path) -> bool:
    """Whether no process holds the run's folder."""
    try:
        with files.locked(run):
            return True
    except RuntimeError:
        return False


def finish(fleet: LocalFleet, run: Path, submitted: subprocess.Popen[bytes]) -> list[RoundRecord]:
    """The records of the run, once it has ended."""
    until(lambda: run_folder.finished(run) or submitted.poll() is not None, "the end of the run", 3600)
    assert run_folder.finished(run), fleet.log("run")[-5000:]
    return records.read(run / "records.jsonl")


def noted(path: Path) -> dict[int, set[str]]:
    """Round -> digests of theta in it."""
    found: dict[int, set[str]] = {}
    for line in path.read_text().splitlines() if path.is_file() else []:
        round, digest = line.split()
        found.setdefault(int(round), set()).add(digest)
    return found


def begun(notes: Path, part: int) -> list[int]:
    """The rounds in which a node has begun to work."""
    path = notes / f"node-{part}.begun"
    return [int(line) for line in path.read_text().split()] if path.is_file() else []


@contextmanager
def held(fleet: LocalFleet, run: Path, notes: Path, *parts: int) -> Iterator[None]:
    """Start these nodes in here: one that waits (`faulty_app`) holds the rounds up until they are asked."""
    hold, first = notes / "hold", rounds(run) + 1

    def begin(round: int) -> None:
        files.write_atomically(hold, str(round).encode())

    def said(part: int) -> int:
        return fleet.log(f"node-{part}").count("SuperNode ID")

    def asked(part: int) -> int:
        path = notes / f"node-{part}.asked"
        return len(path.read_text().splitlines()) if path.is_file() else 0

    before = {part: (said(part), asked(part)) for part in parts}
    begin(first)
    yield
    until(lambda: all(said(part) > before[part][0] for part in parts), "the nodes at the SuperLink")
    begin(first + 1)  # at whose beginning they are asked
    until(lambda: all(asked(part) > before[part][1] for part in parts), "the nodes' answers")
    hold.unlink()


def assert_equal_thetas(run: Path, notes: Path) -> dict[int, dict[int, str]]:
    """Wherever a client trained, its theta was the server's of that round: {part: {round: digest}}.

    Both digests are taken from the numbers themselves, in the processes that hold them.
    """
    server = noted(Path(f"{run}.thetas"))
    assert server
    assert all(len(digests) == 1 for digests in server.values()), f"one theta a round, got {server}"
    found = {}
    for path in sorted(notes.glob("node-*.thetas")):
        here = noted(path)
        assert here, f"{path.name}: no client of this node has trained"
        for round, digests in here.items():
            assert digests == server[round], f"{path.name}, round {round}: {digests}, not {server[round]}"
        part = int(path.stem.removeprefix("node-"))
        found[part] = {round: next(iter(digests)) for round, digests in here.items()}
    return found
