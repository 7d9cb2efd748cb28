"""The page's file: what is in it, that strangers' words stay words, how large it gets."""

import json
import re
import sys
from html.parser import HTMLParser
from itertools import accumulate
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner

from narrowcast.cli.app import app
from narrowcast.page.document import document
from narrowcast.page.gathering import LOSS, gather
from narrowcast.page.thinning import thinned
from narrowcast.rounds import records
from narrowcast.rounds.records import RoundRecord
from page_runs import METHODS, write_run

pytest.importorskip("plotly", reason="needs the extra narrowcast[page]")
HOSTILE = "</script><script>alert(1)</script><img src=x onerror=alert(2)>{{data}}\x1b[31m\u202e&amp;"


class Reader(HTMLParser):
    """The scripts of a page, and every tag with its attributes, as a browser parses them."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.scripts: list[tuple[dict[str, str | None], str]] = []
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attributes)))
        if tag == "script":
            self.scripts.append((dict(attributes), ""))

    def handle_data(self, data: str) -> None:
        if self.scripts and self.lasttag == "script":
            attributes, text = self.scripts[-1]
            self.scripts[-1] = attributes, text + data


def data_of(text: str) -> dict:
    return json.loads(
        next(body for attributes, body in Reader(text).scripts if attributes.get("id") == "data")
    )


@pytest.fixture
def runs(tmp_path: Path) -> list[Path]:
    return [write_run(tmp_path / "runs" / name, method=name) for name in METHODS]


def test_the_command_writes_one_file_that_asks_for_nothing_else(tmp_path: Path, runs: list[Path]) -> None:
    to = tmp_path / "out" / "page.html"
    done = CliRunner().invoke(app, ["page", str(tmp_path / "runs"), "--to", str(to)])
    assert done.exit_code == 0, done.output
    assert f"page: {to}" in done.output.replace("\n", "")
    page = Reader(to.read_text())
    assert {run["method"] for run in data_of(to.read_text())["runs"]} == set(METHODS)
    for tag, attributes in page.tags:
        assert tag not in ("iframe", "object", "embed", "base", "form")
        assert "src" not in attributes
        assert not re.match(r"\w+:(?!,)|//", attributes.get("href") or "#"), attributes
    policy = next(a["content"] for t, a in page.tags if t == "meta" and "http-equiv" in a)
    assert "default-src 'none'" in policy
    assert "connect-src 'none'" in policy
    assert "unsafe-inline" not in policy.split("script-src")[1].split(";")[0]


def test_strangers_words_stay_words(tmp_path: Path) -> None:
    write_run(tmp_path / "a", label=HOSTILE, task="digits")
    (tmp_path / "a" / "records.jsonl").write_text(
        (tmp_path / "a" / "records.jsonl")
        .read_text()
        .replace("no answer", "</script><b>")
        .replace('"accuracy"', '"acc<script>"')
    )
    plain = Reader(document(gather([write_run(tmp_path / "b")]), "x"))
    text = document(gather([tmp_path / "a"]), HOSTILE)
    page = Reader(text)
    assert len(page.scripts) == len(plain.scripts)
    assert [tag for tag, _ in page.tags] == [tag for tag, _ in plain.tags]  # nothing became markup
    (run,) = data_of(text)["runs"]
    assert run["label"].startswith("</script><script>alert(1)</script><img src=x onerror=alert(2)>{{data}}")
    assert "\x1b" not in text
    assert "\u202e" not in text
    assert "</script><b>" in run["dropped"]
    assert "acc<script>" in run["curves"]


def test_a_look_imports_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "strangers_code.py").write_text("raise SystemExit('it ran')")
    monkeypatch.chdir(tmp_path)
    folder = write_run(tmp_path / "a", dim=48)
    config = (folder / "config.toml").read_text()
    (folder / "config.toml").write_text(config.replace('"digits"', '"strangers_code:task"'))
    (run,) = gather([folder])["runs"]
    assert run["settings"]["task"] == "strangers_code:task"
    assert run["settings"]["dim"] == "48"
    assert "strangers_code" not in sys.modules
    assert str(tmp_path) not in sys.path


def test_numbers_are_those_of_the_records(runs: list[Path]) -> None:
    found = gather(runs)
    for folder, run in zip(runs, found["runs"], strict=True):
        rows = records.read(folder / "records.jsonl")
        assert (run["up"], run["down"]) == (sum(r.up for r in rows), sum(r.down for r in rows))
        assert sum(run["kinds"].values()) == run["down"]
        assert run["kinds"]["catch_up"] == sum(r.down_catch_up for r in rows)
        assert run["kinds"]["first"] == sum(r.down_first for r in rows)
        assert run["dropped"] == {"no answer": sum(r.dropped.get("no answer", 0) for r in rows)}
        evaluated = [r for r in rows if r.metrics]
        curve = run["curves"]["accuracy"]
        assert curve["round"] == [r.round + 1 for r in evaluated]
        assert curve["y"] == pytest.approx([r.metrics["accuracy"] for r in evaluated], rel=1e-5)
        spent = list(accumulate(r.up + r.down for r in rows))
        assert curve["bytes"] == [spent[r.round] for r in evaluated]
        assert len(run["curves"][LOSS]["y"]) == len(rows)
    assert found["runs"][0]["compression"][0] == pytest.approx(1.0)  # against the uncompressed one among them


def test_a_run_that_has_not_begun_or_not_ended_has_its_place(tmp_path: Path) -> None:
    folders = [write_run(tmp_path / "a", done=0), write_run(tmp_path / "b", done=3)]
    first, second = gather(folders)["runs"]
    assert (first["state"], first["curves"], first["value"]) == ("not begun", {}, None)
    assert (second["state"], second["done"], second["complete"]) == ("begun", 3, False)
    assert data_of(document(gather(folders)))["runs"][0]["done"] == 0
    assert data_of(document(gather([])))["runs"] == []


def test_what_is_no_run_is_said(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    done = CliRunner().invoke(app, ["page", str(tmp_path / "empty"), "--to", str(tmp_path / "x.html")])
    assert done.exit_code == 2
    assert "not a run folder" in done.output.replace("\n", " ")
    assert not (tmp_path / "x.html").exists()


@given(st.lists(st.none() | st.floats(-1e6, 1e6) | st.just(float("nan")), max_size=500), st.integers(4, 100))
def test_thinned_curves_keep_both_ends_and_every_extreme(values: list[float | None], most: int) -> None:
    kept = thinned(values, most)
    known = [i for i, v in enumerate(values) if v is not None and v == v]
    assert len(kept) <= most
    assert kept == sorted(set(kept))
    assert set(kept) <= set(known)
    if known:
        assert (kept[0], kept[-1]) == (known[0], known[-1])
        assert {min(values[i] for i in kept), max(values[i] for i in kept)} == {
            min(values[i] for i in known),
            max(values[i] for i in known),
        }
    if len(known) <= most:
        assert kept == known


def test_a_hundred_long_runs_stay_below_ten_megabytes(tmp_path: Path) -> None:
    first = write_run(tmp_path / "0", 2400, evaluate_every=1)
    found = gather([first] * 100)
    assert len(document(found).encode()) < 10_000_000
    whole = gather([first])["runs"][0]["curves"][LOSS]
    for run in found["runs"]:
        for axis in ("round", "bytes", "y"):
            thin = run["curves"][LOSS][axis]
            assert (thin[0], thin[-1]) == (whole[axis][0], whole[axis][-1])


def test_a_private_run_costs_what_nobody_may_know_and_not_nothing(tmp_path: Path) -> None:
    """Its records hide bytes and seconds, which would tell who came: zeros would be drawn, and believed."""
    folder = write_run(tmp_path / "private", done=0)
    hidden = [private_record(i) for i in range(24)]
    (folder / "records.jsonl").write_bytes(b"".join(map(records.to_line, hidden)))
    (run,) = gather([folder])["runs"]
    assert [run[name] for name in ("up", "down", "kinds", "seconds")] == [None] * 4
    assert run["epsilon"] == 24.0
    assert set(run["curves"]["accuracy"]) == {"round", "y"}
    (plain,) = gather([write_run(tmp_path / "plain")])["runs"]
    assert plain["epsilon"] is None
    assert plain["up"] > 0


def private_record(i: int) -> RoundRecord:
    record = RoundRecord(i, 0, i + 1, 1.0, None, 1, 1, 1, metrics={"accuracy": 0.5}, epsilon=i + 1.0)
    record.hide()
    return record
