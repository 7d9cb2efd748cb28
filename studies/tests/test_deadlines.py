"""Work that stops in time, goes on later to the same end, and is accounted for."""

import os
import re
import shutil
import signal
import sys
import threading
import time
from dataclasses import replace
from pathlib import Path

import pytest
from typer.testing import CliRunner

from narrowcast import files
from narrowcast.cli.app import app
from narrowcast.errors import Interrupted
from narrowcast.runs import RunConfig, attempts, runner
from narrowcast_studies.ledger import Going, Ledger
from narrowcast_studies.processes import Processes
from narrowcast_studies.reproduce import experiment, running
from sessions import FILE, RESULTS, Cut, call, lines, timeless


def test_cut_anywhere_the_end_is_the_same_bit_for_bit(clone: Path, cut: type[Cut], finished: Path) -> None:
    """Session after session, on two machines in turn: a run that is cut goes on, or is begun anew."""
    sessions, said = 0, ""
    while "3 of 3 rows are done" not in said:
        sessions += 1
        assert sessions < 30
        cut.rounds = 7  # a run has three or six
        said = call("tiny", "--stop-after", "0.001s")
        if not sessions % 2:
            shutil.rmtree("runs")  # a new one: the lines alone are left
    assert sessions > 5
    assert len(cut.ended) == len(set(cut.ended)) == 12  # nothing came to its end twice
    assert timeless(RESULTS) == timeless(finished / RESULTS)


def test_rows_go_in_the_order_of_the_file_each_after_its_tuning(clone: Path, begun: list[RunConfig]) -> None:
    call("tiny")
    order = [(c.method, c.validation, c.epochs) for c in begun]
    static, plain, half = order[:5], order[5:10], order[10:]
    assert static == [("static", True, 1)] * 3 + [("static", False, 2)] * 2
    assert plain == [("uncompressed", True, 1)] * 3 + [("uncompressed", False, 2)] * 2
    assert half == [("uncompressed", False, 1)] * 2


def test_a_process_that_is_cut_goes_on_from_its_checkpoint(clone: Path) -> None:
    plan = experiment.load("tiny", "small").study
    row = replace(plan.rows[0], config=plan.rows[0].config.model_copy(update={"epochs": 2e4}))
    config, processes, said = plan.final(row, 5.0, 0), Processes(), list[BaseException]()
    folder = Path("runs") / attempts.folder_of(config)

    def work() -> None:
        try:
            processes(config, folder)
        except Interrupted as stopped:
            said.append(stopped)

    thread = threading.Thread(target=work)
    thread.start()
    while thread.is_alive() and not (folder / "records.jsonl").is_file():
        time.sleep(0.05)
    processes.stop()  # as the alarm does
    thread.join()
    assert len(said) == 1
    rounds = len((folder / "records.jsonl").read_text().splitlines())
    assert 0 < rounds < 60_000
    assert Ledger(Path("runs")).going(config) == Going(rounds, 60_000, pytest.approx(0, abs=60))
    runner.resume(folder, until=lambda: True)
    assert len((folder / "records.jsonl").read_text().splitlines()) == rounds + 1


ASKED = f"""#!{sys.executable}
import os, signal, sys, time
from pathlib import Path

def ask(number, frame):
    with open("asked", "a") as file:
        file.write("asked\\n")

signal.signal(signal.SIGTERM, ask)
Path("leads").write_text(str(os.getsid(0) == os.getpid()))
while not Path("end").exists():
    time.sleep(0.01)
sys.exit(130)
"""


def test_a_process_is_asked_to_stop_once_and_by_its_parent_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By the alarm, and again when the first of several has ended: a second signal would mean "at once"."""
    monkeypatch.chdir(tmp_path)
    Path("asked.py").write_text(ASKED)
    Path("asked.py").chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(tmp_path / "asked.py"))
    processes, config = Processes(), RunConfig(task="quadratic", rounds=1)

    def work() -> None:
        with pytest.raises(Interrupted):
            processes(config, tmp_path / "run")

    thread = threading.Thread(target=work)
    thread.start()
    for said in ("leads", "asked"):
        while not (Path(said).exists() and Path(said).read_text()):
            time.sleep(0.01)
        processes.stop()
    Path("end").touch()
    thread.join()
    assert Path("asked").read_text() == "asked\n"
    assert Path("leads").read_text() == "True"  # a session, in which no terminal's Ctrl-C arrives


@pytest.mark.parametrize("own", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_a_study_that_is_asked_to_stop_does_so_within_a_round(
    clone: Path, own: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One row at a time: the run in this process, or the one that it started, writes a checkpoint."""
    long = FILE.replace("epochs = 1\nmost = 3", "epochs = 20000\nmost = 3").replace("= 2\n", "= 20000\n", 1)
    Path("studies/experiments/tiny.toml").write_text(long)

    def ask() -> None:
        while not list(Path("runs").glob("*/*/records.jsonl")):
            time.sleep(0.05)
        os.kill(os.getpid(), signal.SIGTERM)

    asking = threading.Thread(target=ask)
    asking.start()
    result = CliRunner().invoke(app, ["reproduce", "tiny", *(["--stop-after", "1h"] if own else [])])
    asking.join()
    assert result.exit_code == 130
    assert "stopped. Go on with: narrowcast reproduce tiny --scale small" in result.output
    (folder,) = Path("runs/tiny-small").glob("static-*")
    assert (folder / "checkpoint.pt").is_file()
    with files.locked(folder):  # nobody works there any more
        assert 0 < len((folder / "records.jsonl").read_text().splitlines()) < 60_000


def test_the_end_of_the_terminal_stops_as_ctrl_c_does_unless_it_is_ignored() -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with running._terminated():
            os.kill(os.getpid(), signal.SIGHUP)  # under nohup
        signal.signal(signal.SIGHUP, signal.SIG_DFL)
        with running._terminated(), pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), signal.SIGHUP)
        assert signal.getsignal(signal.SIGHUP) is signal.SIG_DFL
    finally:
        signal.signal(signal.SIGHUP, before)


def test_when_the_time_is_over_nothing_is_begun(clone: Path) -> None:
    said = call("tiny", "--stop-after", "0.001s")
    assert "stopped after 1 ms. Go on with: narrowcast reproduce tiny --scale small" in said
    assert said.endswith("(or by --dry-run).\n")
    assert not list(Path("runs").glob("**/config.toml"))
    assert not RESULTS.exists()


def test_rows_that_failed_before_the_deadline_are_reported(
    clone: Path, cut: type[Cut], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(self: Cut, config: RunConfig, folder: Path) -> None:
        if config.method == "static":
            raise RuntimeError("no room")
        time.sleep(0.01)  # the deadline is over by then, however quick the machine
        raise Interrupted("stopped")

    monkeypatch.setattr(cut, "__call__", fail)
    result = CliRunner().invoke(app, ["reproduce", "tiny", "--stop-after", "0.001s"])
    assert "stopped after 1 ms. Go on with" in result.output
    assert "error: static d=16: no room" in result.output
    assert result.exit_code == 2


def test_the_status_counts_runs_and_hours(committed_alone: Path) -> None:
    nothing = call("tiny", "--status", "--out", "nowhere")
    assert "| static d=16 | - | 0 | - | 0 of 2 | 0.00 | ? |" in nothing
    assert "0 of 3 rows are done, for 0.00 core-hours by the clock; what is left can be told once" in nothing
    lines({"seconds": 360.0}, drop='"row":"uncompressed","seed":1,')  # a tenth of an hour each
    said = call("tiny", "--status")
    assert re.search(r"\| static d=16 \| done \| 3 \| [\d.]+ \| 2 of 2 \| 0\.50 \| 0 \|", said)
    # Three tuning runs over nine tenths of an epoch and a seed of two took 1440 s: two epochs more are 613 s.
    assert re.search(r"\| uncompressed \| begun \| 3 \| [\d.]+ \| 1 of 2 \| 0\.40 \| 0\.17 \|", said)
    assert re.search(r"\| half as long \| done \| 3 \| [\d.]+ \| 2 of 2 \| 0\.20 \| 0 \|", said)
    assert said.endswith("2 of 3 rows are done, for 1.10 core-hours by the clock; about 0.17 are left.\n")
    assert not Path("runs").exists()


def test_whole_runs_alone_are_begun_and_the_time_left_is_used(clone: Path, cut: type[Cut]) -> None:
    cut.rounds = 10  # the tuning of the first row, and a round
    call("tiny", "--stop-after", "0.001s")
    shutil.rmtree("runs")
    lines({"seconds": 900.0})  # nine tenths of an epoch: a final run of the first row would take 2000 s
    cut.rounds = 10**9
    said = call("tiny", "--stop-after", "1500s", "--whole")
    assert "static d=16: put off: a run of 33.3 min would not end in time" in said
    assert "2 of 3 rows are done" in said
    assert "Not run yet: static d=16." in (RESULTS / "README.md").read_text()
    assert "3 of 3 rows are done" in call("tiny", "--stop-after", "3000s", "--whole")


def test_rows_that_are_not_finished_are_marked(committed_alone: Path, cut: type[Cut]) -> None:
    lines({}, drop='"row":"static d=16","seed":1,')
    cut.rounds = 1  # of the seed that is missing
    call("tiny", "--only", "static", "--stop-after", "0.001s")
    (RESULTS / "README.md").unlink()
    cut.rounds = 1
    call("tiny", "--only", "static", "--stop-after", "0.001s")
    assert "Not run yet: static d=16 (1 of 2 seeds)." in (RESULTS / "README.md").read_text()
    call("results")
    page = Path("docs/results.md").read_text()
    assert "Not run yet: static d=16." in page
    assert "| Static sends fewer bytes | - | **not run yet**: [tiny](#tiny) |" in page


@pytest.mark.parametrize(
    ("words", "error"),
    [
        (["tiny", "--whole"], "--whole goes with --stop-after"),
        (["tiny", "--stop-after", "2"], "expected a positive time with its unit, such as 2.5h"),
        (["tiny", "--status", "--jobs", "2"], "--status goes without --jobs"),
        (["tiny", "--dry-run", "--stop-after", "1h"], "--dry-run goes without --stop-after"),
        (["results", "--stop-after", "1h"], "results goes without --stop-after"),
    ],
)
def test_what_makes_no_sense_is_refused(clone: Path, words: list[str], error: str) -> None:
    result = CliRunner().invoke(app, ["reproduce", *words])
    assert result.exit_code == 2
    assert error in result.output
