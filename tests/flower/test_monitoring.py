"""What an operator watches: Prometheus text that parses, JSON lines, files that do not grow for ever."""

import json
import logging
import re
import socket
from pathlib import Path
from urllib.error import HTTPError
from urllib.request import urlopen

import pytest

pytest.importorskip("flwr", reason="needs the extra narrowcast[flower]")
from federations import impatient, settings, whole  # noqa: F401
from narrowcast.errors import ConfigError
from narrowcast.flower import monitoring
from narrowcast.flower.fleet import log
from narrowcast.flower.monitoring import Metrics, watching
from narrowcast.flower.server import begin_or_resume, driver
from narrowcast.flower.settings import FleetSettings, fleet_settings
from narrowcast.rounds import records
from narrowcast.rounds.records import RoundRecord
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
