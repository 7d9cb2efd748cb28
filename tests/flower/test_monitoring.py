"""What an operator watches: Prometheus text that parses, JSON lines, files that do not grow for ever."""

import itertools
import json
import logging
import os
import re
import socket
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.error import HTTPError
from urllib.request import urlopen

import pytest

pytest.importorskip("flwr", reason="needs the extra narrowcast[flower]")
from flwr.app import Message

from fake_grid import FakeGrid
from federations import impatient, settings, whole  # noqa: F401
from narrowcast import files
from narrowcast.errors import ConfigError
from narrowcast.flower import client_app, monitoring
from narrowcast.flower.fleet import log
from narrowcast.flower.monitoring import Metrics, watching
from narrowcast.flower.server import begin_or_resume, driver
from narrowcast.flower.settings import FleetSettings, fleet_settings
from narrowcast.rounds import records
from narrowcast.rounds.records import RoundRecord
from narrowcast.runs import checkpoints
from narrowcast.runs.run_folder import Facts

pytestmark = pytest.mark.usefixtures("impatient")
FACTS = Facts("l", "digits", "static", 100, 3, 5, 1, "accuracy", True, "", 0, "", "")
SAMPLE = re.compile(r'(narrowcast_[a-z_]+)(\{([a-z]+="(?:[^"\\\n]|\\.)*",?)+\})? (-?[0-9.e+-]+)')


def parsed(text: str) -> dict[str, float]:
    """As a scraper reads it: every sample under a HELP and a TYPE of its name, each name in one block."""
    found: dict[str, float] = {}
    typed = list[str]()
    for line in text.splitlines():
        if line.startswith("# TYPE "):
            typed.append(line.split()[2])
        elif not line.startswith("# HELP "):
            sample = SAMPLE.fullmatch(line)
            assert sample, line
            assert sample[1] == typed[-1]
            found[sample[1] + (sample[2] or "")] = float(sample[4])
    assert len(typed) == len(set(typed))
    return found


def a_record(number: int, **more: object) -> RoundRecord:
    return RoundRecord(number, 0, number, 0.1, 0.5, 2, 100, 50, **more)  # type: ignore[arg-type]


def test_totals_add_up_and_words_are_spelt_out() -> None:
    metrics = Metrics()
    assert metrics.text() == "\n"
    metrics.add(FACTS, a_record(0, dropped={"no answer": 2}, metrics={"accuracy": 0.5}))
    metrics.add(FACTS, a_record(1, dropped={"no answer": 1, 'a "b"\\\n': 4}, node_metrics={"accuracy": 0.75},
                                evaluate_up=3, evaluate_down=4, lost=2, rolled_back=True))  # fmt: skip
    found = parsed(metrics.text())
    assert found["narrowcast_rounds_done"] == 2
    assert found["narrowcast_up_bytes_total"] == 200
    assert found["narrowcast_evaluate_bytes_total"] == 7
    assert found['narrowcast_dropped_total{why="no answer"}'] == 3
    assert found['narrowcast_dropped_total{why="a \\"b\\"\\\\\\n"}'] == 4
    assert found['narrowcast_metric{name="accuracy",at="server"}'] == 0.5
    assert found['narrowcast_metric{name="accuracy",at="nodes"}'] == 0.75
    assert found["narrowcast_rolled_back_total"] == 1


def test_an_evaluation_replaces_the_one_before_at_its_place() -> None:
    """A node may choose new names each time: they are not kept, and nothing old is shown as new."""
    metrics = Metrics()
    metrics.add(FACTS, a_record(0, metrics={"accuracy": 0.5}, node_metrics={"a": 1.0, "b": 2.0}))
    metrics.add(FACTS, a_record(1, node_metrics={"b": 3.0, "c": 4.0}))
    metrics.add(FACTS, a_record(2))  # not evaluated
    shown = {k: v for k, v in parsed(metrics.text()).items() if k.startswith("narrowcast_metric")}
    assert shown == {
        'narrowcast_metric{name="accuracy",at="server"}': 0.5,
        'narrowcast_metric{name="b",at="nodes"}': 3.0,
        'narrowcast_metric{name="c",at="nodes"}': 4.0,
    }


def test_a_run_is_watched_and_one_that_goes_on_has_its_totals(tmp_path: Path) -> None:
    config, folder = settings("topk", rounds=3, cohort=12), tmp_path / "run"
    run, grid = whole(config)
    how = FleetSettings(folder=str(folder), json_log=str(tmp_path / "logs" / "run.jsonl"), wait=600.0)
    begin_or_resume(config, how, driver(grid, how), None)
    rows = records.read(folder / "records.jsonl")
    found = parsed((folder / "metrics.prom").read_text())
    assert found["narrowcast_up_bytes_total"] == sum(row.up for row in rows)
    assert found["narrowcast_rounds_done"] == found["narrowcast_rounds_planned"] == 3
    lines = [json.loads(line) for line in (tmp_path / "logs" / "run.jsonl").read_text().splitlines()]
    rounds = [line for line in lines if line.get("event") == "round"]
    assert [line["round"] for line in rounds] == [1, 2, 3]
    assert [line["up"] for line in rounds] == [row.up for row in rows]
    assert any(line["message"].startswith("round 3 of 3") for line in lines)
    assert all(re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ", line["time"]) for line in lines)
    assert not [h for h in logging.getLogger("flwr").handlers if "run.jsonl" in str(h)]
    assert run.rounds == 3


class Killed(BaseException):
    """What no handler of ours catches."""


def events(path: Path) -> list[dict[str, Any]]:
    """The rounds of a JSON log, and the lines in words of the same."""
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    return [line for line in lines if re.match(r"round \d+( of|$)", line["message"])]


def test_a_server_that_goes_on_tells_no_round_again_and_keeps_the_time_of_the_last(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Killed before any round ends, twice: `metrics.prom` says when the last one did, long ago."""
    monkeypatch.setattr(checkpoints, "COSTS", 0.0)  # written after every round: that of the one before
    config, folder, log_file = settings("static", rounds=6, cohort=12), tmp_path / "run", tmp_path / "log"
    grid, written = FakeGrid(client_app(config=config), 12), list[dict[str, float]]()
    how = FleetSettings(folder=str(folder), json_log=str(log_file), wait=600.0)
    replace = files.write_atomically

    def noting(path: Path, data: bytes, *more: object) -> None:
        replace(path, data, *more)
        if path.name == monitoring.FILE:
            written.append(parsed(path.read_text()))

    def killed_in(number: int) -> Callable[[int, Message], Message]:
        def fault(node: int, message: Message) -> Message:
            if message.metadata.group_id == str(number):
                raise Killed
            return message

        return fault

    monkeypatch.setattr(files, "write_atomically", noting)
    grid.fault = killed_in(4)
    with pytest.raises(Killed):
        begin_or_resume(config, how, driver(grid, how), None)
    assert [line["round"] for line in events(log_file) if "round" in line] == [1, 2, 3]
    done, ago = records.read(folder / "records.jsonl")[:2], time.time() - 7200  # the third is lost
    os.utime(folder / "records.jsonl", (ago, ago))
    told, grid.fault = events(log_file), killed_in(3)
    for _ in range(2):
        written.clear()
        with pytest.raises(Killed):
            begin_or_resume(config, how, driver(grid, how), None)
        (found,) = written
        assert found["narrowcast_rounds_done"] == 2
        assert found["narrowcast_up_bytes_total"] == sum(record.up for record in done)
        assert found["narrowcast_last_round_timestamp_seconds"] == pytest.approx(ago)
        assert events(log_file) == told

    grid.fault = lambda node, message: message
    written.clear()
    begin_or_resume(config, how, driver(grid, how), None)
    whole = records.read(folder / "records.jsonl")
    assert [line["round"] for line in events(log_file) if "round" in line] == [1, 2, 3, 3, 4, 5, 6]
    assert [found["narrowcast_rounds_done"] for found in written] == [2, 3, 4, 5, 6]
    assert written[-1]["narrowcast_up_bytes_total"] == sum(record.up for record in whole)
    assert written[-1]["narrowcast_last_round_timestamp_seconds"] > ago + 7000


def test_a_private_round_that_was_released_and_not_told_is_told_when_the_server_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Killed between the two: its record is in the checkpoint alone, and no log has it."""
    pytest.importorskip("dp_accounting", reason="needs the extra narrowcast[privacy]")
    config = settings("static", rounds=3, cohort=12, dp_noise=2.0, dp_delta=1e-3)
    grid, append, count = FakeGrid(client_app(config=config), 12), files.append, itertools.count()
    how = FleetSettings(folder=str(tmp_path / "run"), json_log=str(tmp_path / "log"), wait=600.0)

    def deadly(*words: Any) -> None:
        if next(count) == 1:
            raise Killed
        append(*words)

    monkeypatch.setattr(files, "append", deadly)
    with pytest.raises(Killed):
        begin_or_resume(config, how, driver(grid, how), None)
    assert [line["round"] for line in events(tmp_path / "log") if "round" in line] == [1]
    begin_or_resume(config, how, driver(grid, how), None)
    assert [line["round"] for line in events(tmp_path / "log") if "round" in line] == [1, 2, 3]


def test_a_port_answers_while_the_run_lasts(tmp_path: Path) -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    with watching(FleetSettings(metrics_port=port), tmp_path) as watch:
        watch(FACTS, a_record(0))
        with urlopen(f"http://127.0.0.1:{port}/metrics") as answer:
            assert answer.headers["Content-Type"].startswith("text/plain; version=0.0.4")
            assert parsed(answer.read().decode())["narrowcast_rounds_done"] == 1
        with pytest.raises(HTTPError, match="404"):
            urlopen(f"http://127.0.0.1:{port}/config.toml")
    with pytest.raises(OSError, match=r"refused|Cannot"):
        urlopen(f"http://127.0.0.1:{port}/metrics")
    with pytest.raises(ConfigError, match="metrics_port"):
        fleet_settings({"narrowcast.metrics-port": 70000})


def test_the_log_begins_anew_before_it_fills_the_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(monitoring, "LOG_BYTES", 2000)
    with watching(FleetSettings(json_log=str(tmp_path / "log")), tmp_path):
        for i in range(300):
            log.warning("round %d: a stranger says %s", i, "\x1b[31m\n" * 3)
    made = sorted(tmp_path.glob("log*"))
    assert len(made) == 1 + monitoring.LOG_FILES
    assert all(path.stat().st_size <= 2000 for path in made)
    assert all(
        json.loads(line)["level"] == "warning" for path in made for line in path.read_text().splitlines()
    )


def test_a_private_run_has_no_counters_of_what_it_does_not_tell() -> None:
    metrics = Metrics()
    metrics.add(FACTS, RoundRecord(0, 0, 1, 0.1, None, 0, 0, 0, epsilon=1.5))
    found = parsed(metrics.text())
    assert found["narrowcast_epsilon"] == 1.5
    assert not {name for name in found if "bytes" in name or "clients" in name or "dropped" in name}
