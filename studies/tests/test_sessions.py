"""Work over many sessions and machines: from committed lines alone, in time, and accounted for."""

import contextlib
import csv
import json
import os
import re
import shutil
import signal
import threading
import time
from dataclasses import replace
from pathlib import Path
from typing import ClassVar

import pytest
from typer.testing import CliRunner

from narrowcast import files
from narrowcast.cli.app import app
from narrowcast.errors import Interrupted
from narrowcast.runs import RunConfig, attempts, run_folder, runner
from narrowcast.units import parse_seconds
from narrowcast_studies.ledger import Going, Ledger
from narrowcast_studies.processes import Processes
from narrowcast_studies.reproduce import committed, experiment, running, table
from places import ROOT

STUDY = """
task = "digits"
width = 8
cohort = 100
epochs = 2
evaluate_every = 3
seeds = [0, 1]
[SCALE.tune]
seed = 100
epochs = 1
most = 3
[[SCALE.run]]
name = "static d=16"
method = "static"
dim = 16
lr = 5.0
[[SCALE.run]]
name = "uncompressed"
method = "uncompressed"
lr = 0.3
[[SCALE.run]]
name = "half as long"
method = "uncompressed"
epochs = 1
lr = 0.3
"""
CLAIM = """
title = "a test"
[[claim]]
says = "Static sends fewer bytes"
kind = "cheaper"
pairs = [["static d=16", "uncompressed"]]
why.small = "It was short."
why.medium = "It was long."
"""
FILE = CLAIM + "[small]" + STUDY.replace("SCALE", "small")
RESULTS = Path("studies/experiments/results/tiny")
COMMITTED = ROOT / "studies/experiments/results"


@pytest.fixture
def clone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "studies/experiments").mkdir(parents=True)
    (tmp_path / "studies/experiments/tiny.toml").write_text(FILE)
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A clone in which all was run at once."""
    folder = tmp_path_factory.mktemp("finished")
    (folder / "studies/experiments").mkdir(parents=True)
    (folder / "studies/experiments/tiny.toml").write_text(FILE)
    with contextlib.chdir(folder):
        call("tiny")
    return folder


@pytest.fixture
def committed_alone(clone: Path, finished: Path) -> Path:
    """The same on another machine: its results are there, its runs are not."""
    shutil.copytree(finished / RESULTS, clone / RESULTS)
    return clone


@pytest.fixture
def begun(monkeypatch: pytest.MonkeyPatch) -> list[RunConfig]:
    """The runs that are begun or gone on with, in this process."""
    seen: list[RunConfig] = []
    here = attempts.in_process

    def noted(config: RunConfig, folder: Path) -> None:
        seen.append(config)
        here(config, folder)

    monkeypatch.setattr(attempts, "in_process", noted)
    return seen


def call(*words: str) -> str:
    result = CliRunner().invoke(app, ["reproduce", *words])
    assert result.exit_code == 0, result.output
    return result.output


def timeless(folder: Path) -> dict[str, object]:
    """The results without how long they took and which commit made them."""
    lines = [json.loads(line) for line in (folder / "runs.jsonl").read_text().splitlines()]
    rows = csv.DictReader((folder / "results.csv").read_text().splitlines())
    page = re.sub(r"commit \w+,", "", (folder / "README.md").read_text())
    return {
        "runs": [{k: v for k, v in line.items() if k not in ("seconds", "commit")} for line in lines],
        "rows": [{k: v for k, v in row.items() if k != "seconds"} for row in rows],
        "page": page[: page.index("The final runs took")],
    }


def test_from_committed_lines_alone_nothing_is_repeated(
    committed_alone: Path, begun: list[RunConfig]
) -> None:
    before = {p.name: p.read_bytes() for p in RESULTS.iterdir()}
    call("tiny")
    assert not begun
    assert not list(Path().glob("runs/*/*/config.toml"))
    assert {p.name: p.read_bytes() for p in RESULTS.iterdir()} == before


def test_of_an_unfinished_row_what_has_a_line_is_not_repeated(
    committed_alone: Path, begun: list[RunConfig]
) -> None:
    whole = timeless(RESULTS)
    (RESULTS / "results.csv").unlink()
    (RESULTS / "README.md").unlink()
    lines = (RESULTS / "runs.jsonl").read_text().splitlines()
    last = next(i for i, line in enumerate(lines) if '"row":"uncompressed","seed":1,' in line)
    rate = next(i for i, line in enumerate(lines) if '"row":"static d=16","seed":100' in line)
    lost = [json.loads(lines[i])["config"] for i in (rate, last)]
    kept = [line for i, line in enumerate(lines) if i not in (rate, last)]
    (RESULTS / "runs.jsonl").write_text("\n".join(kept) + "\n")
    call("tiny")
    assert [(c.method, c.seed, c.lr) for c in begun] == [(c["method"], c["seed"], c["lr"]) for c in lost]
    assert timeless(RESULTS) == whole


def test_a_line_with_other_settings_is_another_run(committed_alone: Path, begun: list[RunConfig]) -> None:
    file = Path("studies/experiments/tiny.toml")
    file.write_text(FILE.replace("dim = 16", "dim = 17"))
    call("tiny", "--only", "static")
    assert [c.dim for c in begun] == [17] * 5


def old_form(folder: Path) -> None:
    """As results were written before tuning runs had lines."""
    new = ("clients", "rounds_per_epoch", "narrowcast", "torch", "diverged", "untrained")
    runs = [json.loads(line) for line in (folder / "runs.jsonl").read_text().splitlines()]
    kept = [{k: v for k, v in run.items() if k not in new} for run in runs if not run["config"]["validation"]]
    (folder / "runs.jsonl").write_text("".join(json.dumps(run) + "\n" for run in kept))


def test_results_from_before_tuning_had_lines_stand(committed_alone: Path, begun: list[RunConfig]) -> None:
    sweep = (RESULTS / "README.md").read_text().partition("| lr: result |")[2].splitlines()
    old_form(RESULTS)
    before = {p.name: p.read_bytes() for p in RESULTS.iterdir()}
    assert "3 of 3 rows are done" in call("tiny")
    assert not begun
    assert {p.name: p.read_bytes() for p in RESULTS.iterdir()} == before  # not touched
    file = Path("studies/experiments/tiny.toml")
    file.write_text(FILE.replace("dim = 16", "dim = 17"))
    call("tiny")  # one row is new: so is the page, with the old rows and their sweep
    assert {c.dim for c in begun} == {17}
    page = (RESULTS / "README.md").read_text()
    assert all(line in page for line in sweep if line.startswith(("| uncompressed", "| half")))
    assert len((RESULTS / "runs.jsonl").read_text().splitlines()) == 4 + 3 + 2


@pytest.mark.parametrize("name", [path.parent.name for path in COMMITTED.glob("*/runs.jsonl")])
def test_the_committed_small_results_stand_on_a_new_machine(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(ROOT)
    chosen = experiment.load(name, "small")
    work = running.Work(chosen, tmp_path / "no-runs", chosen.results)
    rows = work.known()
    assert [row.row.name for row in rows if row.next] == []
    page = (chosen.results / "README.md").read_text()
    swept = table.swept(page)
    assert {row.row.name: row.outcome.trials for row in rows if row.outcome and row.outcome.runs} == swept
    lines = table.lines([row.outcome for row in rows if row.outcome])
    found = committed.read(chosen.results)
    assert found
    for line in lines:  # seconds are those of the lines, in tenths
        stands = found.lines[line.name]
        assert (line.values, line.rate, line.given_up) == (stands.values, stands.rate, stands.given_up)
        assert (line.up, line.down, line.settings) == (stands.up, stands.down, stands.settings)


class Cut:
    """Runs here, for so many rounds in all; then the deadline has come, between two rounds."""

    rounds = 10**9
    ended: ClassVar[list[str]] = []

    def __call__(self, config: RunConfig, folder: Path) -> None:
        def enough() -> bool:
            Cut.rounds -= 1
            return Cut.rounds <= 0

        if attempts.begun(folder):
            runner.resume(folder, until=enough)
        else:
            runner.start(config, folder, until=enough)
        if not run_folder.finished(folder):
            raise Interrupted("stopped")
        Cut.ended.append(folder.name)

    def stop(self) -> None:
        """The rounds alone decide."""


@pytest.fixture
def cut(monkeypatch: pytest.MonkeyPatch) -> type[Cut]:
    monkeypatch.setattr(running, "Processes", Cut)
    monkeypatch.setattr(Cut, "ended", [])
    monkeypatch.setattr(Cut, "rounds", 10**9)
    return Cut


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


def test_when_the_time_is_over_nothing_is_begun(clone: Path) -> None:
    said = call("tiny", "--stop-after", "0.001s")
    assert "stopped after 1 ms. Go on with: narrowcast reproduce tiny --scale small" in said
    assert said.endswith("(or by --dry-run).\n")
    assert not list(Path("runs").glob("**/config.toml"))
    assert not RESULTS.exists()


def lines(change: dict[str, object], drop: str = "none") -> None:
    """Every line of the results with these values, but for those that have this in them."""
    path = RESULTS / "runs.jsonl"
    runs = [json.loads(line) | change for line in path.read_text().splitlines() if drop not in line]
    path.write_text("".join(json.dumps(run) + "\n" for run in runs))


def test_the_status_counts_runs_and_hours(committed_alone: Path) -> None:
    nothing = call("tiny", "--status", "--out", "nowhere")
    assert "| static d=16 | - | 0 | - | 0 of 2 | 0.00 | ? |" in nothing
    assert "0 of 3 rows are done, for 0.00 core-hours; what is left can be told once" in nothing
    lines({"seconds": 360.0}, drop='"row":"uncompressed","seed":1,')  # a tenth of an hour each
    said = call("tiny", "--status")
    assert re.search(r"\| static d=16 \| done \| 3 \| [\d.]+ \| 2 of 2 \| 0\.50 \| 0 \|", said)
    # Three tuning runs over nine tenths of an epoch and a seed of two took 1440 s: two epochs more are 613 s.
    assert re.search(r"\| uncompressed \| begun \| 3 \| [\d.]+ \| 1 of 2 \| 0\.40 \| 0\.17 \|", said)
    assert re.search(r"\| half as long \| done \| 3 \| [\d.]+ \| 2 of 2 \| 0\.20 \| 0 \|", said)
    assert said.endswith("2 of 3 rows are done, for 1.10 core-hours; about 0.17 are left.\n")
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


BOTH = FILE.replace("[[claim]]", '[[figure]]\nkind = "frontier"\nx = "compression"\n[[claim]]')
BOTH += "[medium]" + STUDY.replace("SCALE", "medium").replace("epochs = 2\n", "epochs = 3\n", 1)
PAIR = "| static d=16 |"


def judged() -> tuple[str, str]:
    """(the verdict of the claim with its reason, the line of its pair)."""
    call("results")
    text = Path("docs/results.md").read_text().partition("### Static sends fewer bytes")[2]
    return text.split("\n\n")[1], next(line for line in text.splitlines() if line.startswith(PAIR))


def test_a_pair_is_judged_at_the_largest_scale_that_has_both(committed_alone: Path) -> None:
    Path("studies/experiments/tiny.toml").write_text(BOTH)
    before = {p.name: p.read_bytes() for p in RESULTS.iterdir() if p.is_file()}
    assert judged()[1].endswith("| yes |")  # one scale alone goes without saying
    call("tiny", "--scale", "medium", "--only", "static")
    verdict, pair = judged()
    assert verdict == "**holds**. It was short."
    assert pair.endswith("| yes | small |")
    call("tiny", "--scale", "medium", "--only", "uncompressed")
    verdict, pair = judged()
    assert verdict == "**holds**. It was long."
    assert pair.endswith("| yes | medium |")
    assert {p.name: p.read_bytes() for p in RESULTS.iterdir() if p.is_file()} == before
    text = Path("docs/results.md").read_text()
    assert "Scale medium: `narrowcast reproduce tiny --scale medium`" in " ".join(text.split())
    assert "(../studies/experiments/results/tiny/medium/frontier.png)" in text


def test_rows_with_other_seeds_are_not_compared(committed_alone: Path) -> None:
    Path("studies/experiments/tiny.toml").write_text(BOTH)
    call("tiny", "--scale", "medium")
    assert judged()[1].endswith("| medium |")
    other = BOTH.rpartition("seeds = [0, 1]")
    Path("studies/experiments/tiny.toml").write_text(other[0] + "seeds = [0, 1, 2]" + other[2])
    call("tiny", "--scale", "medium", "--only", "static")  # one row has the third seed, the other has not
    assert judged()[1].endswith("| small |")
    call("tiny", "--scale", "medium", "--only", "uncompressed")
    assert judged()[1].endswith("| medium |")
    path = RESULTS / "medium/runs.jsonl"
    text = path.read_text()
    path.write_text(text.replace('"row":"uncompressed","seed":2', '"row":"uncompressed","seed":3'))
    assert judged()[1].endswith("| small |")


@pytest.mark.parametrize(
    ("words", "error"),
    [
        (["tiny", "--whole"], "--whole goes with --stop-after"),
        (["tiny", "--stop-after", "2"], "expected a positive time with its unit, such as 2.5h"),
        (["tiny", "--status", "--jobs", "2"], "--status goes without --jobs"),
        (["results", "--stop-after", "1h"], "results goes without --stop-after"),
    ],
)
def test_what_makes_no_sense_is_refused(clone: Path, words: list[str], error: str) -> None:
    result = CliRunner().invoke(app, ["reproduce", *words])
    assert result.exit_code == 2
    assert error in result.output


def test_times_with_their_units() -> None:
    assert [parse_seconds(text) for text in ("2.5h", "90 min", "45s", "1d")] == [9000, 5400, 45, 86400]
    for text in ("", "5", "0s", "-1h", "1e400h", "nan s", "2.5 hours"):
        with pytest.raises(ValueError, match="a positive time with its unit"):
            parse_seconds(text)
