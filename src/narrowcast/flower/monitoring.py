"""What an operator watches of a run: its numbers as Prometheus text, and its log as JSON, a line an event.

`metrics.prom` in the run's folder is replaced after every round, for node_exporter's textfile collector; with
`metrics-port` the same is answered on loopback, for a scraper. `json-log` names a file that begins anew at
16 MB, with four older ones beside it.
"""

from __future__ import annotations

import json
import logging
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from logging.handlers import RotatingFileHandler
from pathlib import Path
from typing import Any

import msgspec

from narrowcast import files
from narrowcast.flower.settings import FleetSettings
from narrowcast.rounds.records import RoundRecord
from narrowcast.runs.run_folder import Facts

FILE = "metrics.prom"
LOG_BYTES, LOG_FILES = 16 << 20, 4

Sample = tuple[str, str, float]  # name, labels, value
HELP = {
    "rounds_done": "gauge rounds that have ended",
    "rounds_planned": "gauge rounds of the whole run",
    "parameters": "gauge D, parameters that are trained",
    "clients_counted": "gauge clients whose updates the last round counted",
    "epsilon": "gauge of differential privacy, of every client so far, at most",
    "loss": "gauge mean training loss of the last round",
    "metric": "gauge of the last evaluation, at the server or at the nodes",
    "up_bytes_total": "counter payload that clients have sent",
    "down_bytes_total": "counter payload that clients have been sent",
    "evaluate_bytes_total": "counter payload of evaluation at the nodes, both ways",
    "dropped_total": "counter clients that were dropped from a round, by reason",
    "lost_states_total": "counter private states of clients that were lost",
    "rolled_back_total": "counter rounds that were taken back",
    "round_seconds": "gauge seconds of the last round",
    "last_round_timestamp_seconds": "gauge when the last round ended, in Unix time",
}


class Metrics:
    """Totals of the rounds so far; those of before a restart are in the records, and so in here."""

    def __init__(self) -> None:
        self.facts: Facts | None = None
        self.last: RoundRecord | None = None
        self.totals = dict.fromkeys(("up", "down", "evaluate", "lost", "rolled_back"), 0)
        self.dropped: dict[str, int] = {}
        self.metrics: dict[str, dict[str, float]] = {}  # where -> of the last evaluation there
        self.ended = 0.0

    def add(self, facts: Facts, *records: RoundRecord, ended: float | None = None) -> None:
        """Rounds, the last of which has ended now, or then; a scraper sees none of them or all."""
        for record in records:
            self._count(record)
        self.facts, self.last, self.ended = facts, records[-1], time.time() if ended is None else ended

    def _count(self, record: RoundRecord) -> None:
        self.totals["up"] += record.up
        self.totals["down"] += record.down
        self.totals["evaluate"] += record.evaluate_up + record.evaluate_down
        self.totals["lost"] += record.lost
        self.totals["rolled_back"] += record.rolled_back
        for why, count in record.dropped.items():
            self.dropped[why] = self.dropped.get(why, 0) + count
        for where, found in (("server", record.metrics), ("nodes", record.node_metrics)):
            if found:  # whole: a node may choose other names each time
                self.metrics[where] = found

    def text(self) -> str:
        """Prometheus' text format."""
        lines, told = list[str](), ""
        for name, labels, value in self._samples():
            if name != told:
                kind, _, words = HELP[name].partition(" ")
                lines += [f"# HELP narrowcast_{name} {words}", f"# TYPE narrowcast_{name} {kind}"]
                told = name
            lines.append(f"narrowcast_{name}{labels} {value:.17g}")
        return "\n".join(lines) + "\n"

    def _samples(self) -> Iterator[Sample]:
        facts, last, totals = self.facts, self.last, self.totals
        if facts is None or last is None:
            return
        yield "rounds_done", "", last.round + 1
        yield "rounds_planned", "", facts.rounds
        yield "parameters", "", facts.parameters
        if last.epsilon is None:
            yield "clients_counted", "", last.clients
        else:
            yield "epsilon", "", last.epsilon
        if last.loss is not None:
            yield "loss", "", last.loss
        for where, found in sorted(self.metrics.items()):
            for name, value in sorted(found.items()):
                yield "metric", _labels(name=name, at=where), value
        if last.epsilon is None:  # else none of these is told, and nothing is not zero
            for way in ("up", "down", "evaluate"):
                yield f"{way}_bytes_total", "", totals[way]
            for why, count in sorted(self.dropped.items()):
                yield "dropped_total", _labels(why=why), count
            yield "lost_states_total", "", totals["lost"]
            yield "round_seconds", "", last.seconds
        yield "rolled_back_total", "", totals["rolled_back"]
        yield "last_round_timestamp_seconds", "", self.ended


def _labels(**labels: str) -> str:
    """{name="value"}, with what the format reserves spelt out."""

    def spelt(value: str) -> str:
        return value.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")

    return "{" + ",".join(f'{name}="{spelt(value)}"' for name, value in labels.items()) + "}"


class Watch:
    """Told of every round: the file is written, and a line of JSON."""

    def __init__(self, folder: Path, log: logging.Handler | None) -> None:
        self.folder, self.log, self.metrics = folder, log, Metrics()

    def goes_on(self, facts: Facts, told: Sequence[RoundRecord], ended: float) -> None:
        """With the rounds of before a restart, the last of which ended then: the log has them already."""
        if told:
            self.metrics.add(facts, *told, ended=ended)
            self._write()

    def _write(self) -> None:
        files.write_atomically(self.folder / FILE, self.metrics.text().encode())

    def __call__(self, facts: Facts, record: RoundRecord) -> None:
        self.metrics.add(facts, record)
        self._write()
        if self.log is not None:
            fields = {"event": "round", **msgspec.to_builtins(record), "round": record.round + 1}
            told = {"name": "narrowcast", "levelno": logging.INFO, "levelname": "INFO", "fields": fields}
            self.log.handle(logging.makeLogRecord({**told, "msg": f"round {record.round + 1}"}))


class _Json(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        line: dict[str, Any] = {
            "time": f"{time.strftime('%Y-%m-%dT%H:%M:%S', time.gmtime(record.created))}Z",
            "level": record.levelname.lower(),
            "message": record.getMessage(),
            **getattr(record, "fields", {}),
        }
        if record.exc_info:
            line["error"] = self.formatException(record.exc_info)
        return json.dumps(line)


@contextmanager
def watching(settings: FleetSettings, folder: Path) -> Iterator[Watch]:
    """A watch on a run, until it ends: with a log and a port where the settings name them."""
    with ExitStack() as stack:
        handler = stack.enter_context(_logging(Path(settings.json_log))) if settings.json_log else None
        watch = Watch(folder, handler)
        if settings.metrics_port:
            stack.enter_context(_serving(watch.metrics, settings.metrics_port))
        yield watch


@contextmanager
def _logging(path: Path) -> Iterator[logging.Handler]:
    path.parent.mkdir(parents=True, exist_ok=True)
    handler = RotatingFileHandler(path, maxBytes=LOG_BYTES, backupCount=LOG_FILES, encoding="utf-8")
    handler.setFormatter(_Json())
    logger = logging.getLogger("flwr")
    logger.addHandler(handler)
    try:
        yield handler
    finally:
        logger.removeHandler(handler)
        handler.close()


@contextmanager
def _serving(metrics: Metrics, port: int) -> Iterator[None]:
    """GET /metrics on loopback: a scraper elsewhere comes through whatever guards this machine."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            found = self.path == "/metrics"
            data = metrics.text().encode() if found else b"only /metrics is here\n"
            self.send_response(200 if found else 404)
            self.send_header("Content-Type", "text/plain; version=0.0.4; charset=utf-8")
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        def log_message(self, *_: object) -> None:
            return

    server = ThreadingHTTPServer(("127.0.0.1", port), Handler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
