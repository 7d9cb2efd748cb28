"""What reaches the terminal: no stranger's escape sequences, and errors that say how to go on."""

import io
import json
import logging
import os
import re
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import typer
from rich.progress import Progress, TextColumn
from typer.testing import CliRunner, Result

from doors import Doors
from narrowcast.cli.app import app
from narrowcast.cli.terminal import Terminal, plain_errors
from narrowcast.runs import run_folder, runner
from narrowcast.runs.reading import make_config
from narrowcast.tables import plain_table
from narrowcast.texts import PrintableLog, printable

EVIL = "a\x1b[2J\x1b]0;title\x07\x9b31m\u202eb\r[bold]"
SAFE = r"a\x1b[2J\x1b]0;title\x07\x9b31m\u202eb\r[bold]"
SETTINGS = {"task": "digits", "method": "static", "dim": 16, "width": 8, "lr": 5.0, "rounds": 4, "cohort": 40}
FLAGS = [word for name, value in SETTINGS.items() if name != "task" for word in (f"--{name}", value)]


def narrowcast(*args: object) -> Result:
    return CliRunner().invoke(app, [str(a) for a in args], env={"COLUMNS": "160"})


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return runner.start(make_config(SETTINGS), tmp_path_factory.mktemp("runs") / "run")


@pytest.fixture
def run(finished: Path, tmp_path: Path) -> Path:
    """A finished run of one's own."""
    return Path(shutil.copytree(finished, tmp_path / "run"))


# ---- escape sequences


def test_what_a_terminal_would_obey_is_spelt_out() -> None:
    assert printable(EVIL) == SAFE
    assert printable(SAFE) == SAFE
    assert printable("näive\ttext, \N{SNOWMAN}\n") == "näive\ttext, \N{SNOWMAN}\n"
    assert printable("\udc80") == r"\udc80"  # of a file name: it could not be written at all


@pytest.mark.parametrize("what", ["text", "table", "bar"])
def test_nothing_on_the_console_is_obeyed(what: str) -> None:
    out = io.StringIO()
    console = Terminal(file=out, force_terminal=True, width=200)
    if what == "text":
        console.print(EVIL, markup=False, highlight=False)
    elif what == "table":
        console.print(plain_table([EVIL, "up"], [[EVIL, "1"]], EVIL))
    else:
        with Progress(TextColumn("{task.description}", markup=False), console=console) as bars:
            bars.add_task(EVIL)
    shown = out.getvalue()
    assert r"\x1b[2J\x1b]0;title" in shown
    for sequence in ("\x1b[2J", "\x1b]0", "\x07", "\x9b", "\u202e"):
        assert sequence not in shown


@pytest.mark.parametrize("markdown", [[], ["--markdown"]])
def test_a_label_from_a_strangers_folder_is_only_text(run: Path, markdown: list[str]) -> None:
    facts = json.loads((run / run_folder.FACTS).read_text())
    facts |= {"label": EVIL, "metric": EVIL, "task": EVIL}
    (run / run_folder.FACTS).write_text(json.dumps(facts))
    shown = narrowcast("show", run, *markdown)
    assert shown.exit_code == 0, shown.output
    assert r"\x1b[2J" in shown.output
    assert not {"\x1b", "\x07", "\x9b", "\u202e"} & set(shown.output)


def test_an_error_about_a_strangers_file_is_only_text(run: Path) -> None:
    (run / run_folder.CONFIG).write_text('"a\\u001b[2J" = 1')
    shown = narrowcast("run", "--resume", run)
    assert shown.exit_code == 2
    assert r"\x1b[2J" in shown.output
    assert "\x1b" not in shown.output


def test_facts_that_are_no_text_are_named(run: Path) -> None:
    (run / run_folder.FACTS).write_bytes(b'{"label": "\xff"}')
    shown = narrowcast("show", run)
    assert shown.exit_code == 2
    assert "facts.json is damaged" in shown.output.replace("\n", "")


def test_a_nodes_words_are_only_text_in_the_log(caplog: pytest.LogCaptureFixture) -> None:
    log = PrintableLog(logging.getLogger("test-texts"))
    with caplog.at_level(logging.INFO):
        log.warning("node %d is left out: %s", 3, ValueError(EVIL))
        log.info("node %d is sent another download: %s", 4, EVIL)
    assert caplog.messages == [f"node 3 is left out: {SAFE}", f"node 4 is sent another download: {SAFE}"]


# ---- records


@pytest.mark.parametrize("damage", ["missing", "empty", "cut", "shuffled", "another line", "no text"])
def test_a_finished_run_without_its_records_is_an_error_that_names_them(run: Path, damage: str) -> None:
    path = run / run_folder.RECORDS
    lines = path.read_bytes().splitlines(keepends=True)
    match damage:
        case "missing":
            path.unlink()
        case "empty":
            path.write_bytes(b"")
        case "cut":
            path.write_bytes(b"".join(lines)[:-3])
        case "shuffled":
            path.write_bytes(b"".join(reversed(lines)))
        case "another line":
            path.write_bytes(b"".join(lines) + lines[-1])
        case "no text":
            path.write_bytes(b'{"round": "\xff"}\n' + b"".join(lines[1:]))
    for command in (["show", run], ["show", run, "--plot", run / "plot.png"], ["run", "--resume", run]):
        shown = narrowcast(*command)
        assert shown.exit_code == 2, shown.output
        assert str(path) in shown.output.replace("\n", "")
        assert "0 B" not in shown.output


def test_a_run_that_has_not_finished_may_have_none_yet(run: Path) -> None:
    (run / run_folder.MODEL).unlink()
    (run / run_folder.RECORDS).unlink()
    shown = narrowcast("show", run)
    assert shown.exit_code == 0
    assert "0/4" in shown.output


# ---- errors of others' code

THEIRS = """
import narrowcast as nc

def looked_up():
    return {}["absent"]

def refused():
    return nc.method("statc")
"""


def in_own_module(name: str, folder: Path, monkeypatch: pytest.MonkeyPatch, **env: str) -> Result:
    """A run of the task that a function of a user's file makes."""
    (folder / "theirs_blame.py").write_text(THEIRS)
    monkeypatch.delitem(sys.modules, "theirs_blame", raising=False)
    monkeypatch.syspath_prepend(str(folder))
    monkeypatch.chdir(folder)
    words = ["run", f"theirs_blame:{name}", "--rounds", "1"]
    return CliRunner().invoke(app, words, env={"COLUMNS": "160", **env})


def test_an_error_of_a_users_code_names_its_type_and_their_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, doors: Doors
) -> None:
    shown = in_own_module("looked_up", tmp_path, monkeypatch)
    assert shown.exit_code == 2
    first, second = shown.output.splitlines()
    assert first == "error: KeyError: 'absent' (theirs_blame.py, line 5, in looked_up)"
    assert second == "NARROWCAST_TRACEBACK=1 shows the whole traceback"


def test_the_whole_traceback_is_shown_on_demand(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, doors: Doors
) -> None:
    shown = in_own_module("looked_up", tmp_path, monkeypatch, NARROWCAST_TRACEBACK="1")
    assert shown.exit_code == 2
    assert shown.output.startswith("Traceback (most recent call last)")
    assert shown.output.endswith("error: KeyError: 'absent' (theirs_blame.py, line 5, in looked_up)\n")


def test_what_we_refuse_is_our_sentence_with_the_users_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, doors: Doors
) -> None:
    shown = in_own_module("refused", tmp_path, monkeypatch)
    assert shown.exit_code == 2
    assert shown.output.startswith("error: unknown method 'statc' (did you mean 'static'?)")
    assert shown.output.endswith(" (theirs_blame.py, line 8, in refused)\n")


def test_a_mistake_of_ours_names_our_line(monkeypatch: pytest.MonkeyPatch, run: Path) -> None:
    monkeypatch.setattr(run_folder, "find", lambda runs: [None])
    shown = narrowcast("show", run)
    assert shown.exit_code == 2
    first, second = shown.output.splitlines()
    assert first.startswith("error: TypeError: ")
    assert re.search(r"narrowcast/\w+/\w+\.py, line \d+, in \w+\)$", first)
    assert second == "NARROWCAST_TRACEBACK=1 shows the whole traceback"


def test_what_typer_says_and_an_exit_that_was_asked_for_pass_through() -> None:
    for error in (typer.Exit(3), typer.BadParameter("wrong")):
        with pytest.raises(type(error)) as caught, plain_errors():
            raise error
        assert caught.value is error


# ---- a full disk

Fill = Callable[[str], None]


@pytest.fixture
def fill(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Fill:
    """fill(name): whatever opens a file to write, with this in its name, finds the disk full."""
    opened = Path.open
    if not Path("/dev/full").is_char_device():
        pytest.skip("this system has no /dev/full")

    def fill(name: str) -> None:
        def open(path: Path, mode: str = "r", *more: Any, **named: Any) -> Any:
            if name not in path.name or "r" in mode:
                return opened(path, mode, *more, **named)
            (tmp_path / "full").mkdir(exist_ok=True)
            device = tmp_path / "full" / path.name
            if not device.is_symlink():
                device.symlink_to("/dev/full")
            return opened(device, mode, *more, **named)

        monkeypatch.setattr(Path, "open", open)
        monkeypatch.setattr(os, "fsync", lambda number: None)  # which a device does not know

    return fill


@pytest.mark.parametrize("name", [run_folder.RECORDS, run_folder.CHECKPOINT, run_folder.MODEL])
def test_a_full_disk_names_the_file_and_the_way_on(
    tmp_path: Path, finished: Path, name: str, fill: Fill, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "run"
    fill(name)
    shown = narrowcast("run", "digits", *FLAGS, "--out", out)
    said = shown.output.replace("\n", "")
    assert shown.exit_code == 2
    assert "No space left on device" in said
    assert name in said
    assert f"Make room, then go on with: narrowcast run --resume {out}" in said
    assert not list(out.glob(".*.tmp"))
    monkeypatch.undo()
    (out / run_folder.RECORDS).touch()  # it was opened on the device instead
    again = narrowcast("run", "--resume", out)
    assert again.exit_code == 0, again.output
    assert (out / run_folder.MODEL).read_bytes() == (finished / run_folder.MODEL).read_bytes()


def test_a_disk_that_is_full_before_the_run_begins(tmp_path: Path, fill: Fill) -> None:
    fill(run_folder.FACTS)
    shown = narrowcast("run", "digits", *FLAGS, "--out", tmp_path / "run")
    assert shown.exit_code == 2
    assert "go on with: the same command" in shown.output.replace("\n", "")


@pytest.mark.parametrize("name", ["w.pt", "w.safetensors"])
def test_a_place_that_cannot_be_written_is_said_with_what_to_do(run: Path, name: str) -> None:
    there = Path("/proc") / name
    if not there.parent.is_dir():
        pytest.skip("this system has no /proc")
    shown = narrowcast("export", run, "--to", there)
    assert shown.exit_code == 2
    assert shown.output.startswith(f"error: cannot read or write {there}: ")
    assert shown.output.endswith(": name another path, or see that it exists and is yours to use\n")


def test_an_export_is_whole_or_not_there(
    run: Path, tmp_path: Path, fill: Fill, monkeypatch: pytest.MonkeyPatch
) -> None:
    weights = tmp_path / "weights.pt"
    fill(".weights.pt")
    shown = narrowcast("export", run, "--to", weights)
    assert shown.exit_code == 2
    assert "No space left on device" in shown.output
    assert str(weights) in shown.output.replace("\n", "")
    assert not weights.exists()
    weights.write_bytes(b"older")
    assert narrowcast("export", run, "--to", weights, "--force").exit_code == 2
    assert weights.read_bytes() == b"older"
    monkeypatch.undo()
    assert narrowcast("export", run, "--to", weights, "--force").exit_code == 0
    assert torch.load(weights, weights_only=True)
    assert not list(tmp_path.glob(".weights*"))
