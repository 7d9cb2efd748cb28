"""The page, served on this machine while the runs go on: it asks again every two seconds.

Two addresses, `/` and `/data.json`, read alone, from the loopback alone. A request that names another host is
refused: a stranger's page that has its own name point here (DNS rebinding) gets nothing. Folders that cannot
be read, or not yet, are said on the page, and the others are shown.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from functools import partial
from http import HTTPStatus
from http.client import HTTP_PORT
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import msgspec
import xxhash

from narrowcast.page.document import document
from narrowcast.page.gathering import gather
from narrowcast.runs.run_folder import CONFIG, DIVERGED, FACTS, MODEL, RECORDS, is_run

EVERY = 2000  # milliseconds between two looks of the page
DEPTH = 3  # folders below those named in which runs are looked for
LOOPBACK = "127.0.0.1"
READ = (CONFIG, FACTS, RECORDS, MODEL, DIVERGED)  # of a run's files: those that say what the page shows


class Followed:
    """The runs below some folders, gathered again when a file of theirs has changed."""

    def __init__(self, roots: Sequence[Path]) -> None:
        self.roots = list(roots)
        self._lock = threading.Lock()
        self._seen: Any = None
        self._found: dict[str, Any] = {}
        self._json, self._tag = b"", ""

    def look(self) -> tuple[dict[str, Any], bytes, str]:
        """(what is there, the same as JSON, its tag)."""
        with self._lock:
            folders = self.folders()
            seen = [_stamp(folder / name) for folder in folders for name in READ]
            if (folders, seen) != self._seen:
                self._found = gather(folders, tolerant=True)
                self._json = msgspec.json.encode(self._found)
                self._tag = f'"{xxhash.xxh3_64_hexdigest(self._json)}"'
                self._seen = folders, seen
            return self._found, self._json, self._tag

    def folders(self) -> list[Path]:
        """Where runs have begun."""
        patterns = ["/".join(["*"] * depth + [FACTS]) for depth in range(DEPTH + 1)]
        found = {path.parent for root in self.roots for pattern in patterns for path in root.glob(pattern)}
        return sorted(filter(is_run, found))


def server(roots: Sequence[Path], port: int = 0, title: str | None = None) -> ThreadingHTTPServer:
    """Ready to serve on the loopback; `port` 0 takes a free one."""
    return ThreadingHTTPServer((LOOPBACK, port), partial(_Handler, Followed(roots), title))


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    timeout = 30

    def __init__(self, followed: Followed, title: str | None, *arguments: Any) -> None:
        self.followed, self.title = followed, title
        super().__init__(*arguments)

    def do_GET(self) -> None:
        if not self._from_here():
            return self._answer(HTTPStatus.FORBIDDEN, b"this page is for this machine alone\n", "text/plain")
        if self.path == "/":
            found, _, _ = self.followed.look()
            page = document(found, self.title or "narrowcast, live", live=EVERY)
            return self._answer(HTTPStatus.OK, page.encode(), "text/html; charset=utf-8")
        if self.path == "/data.json":
            _, data, tag = self.followed.look()
            if self.headers.get("If-None-Match") == tag:
                return self._answer(HTTPStatus.NOT_MODIFIED, b"", "application/json", tag)
            return self._answer(HTTPStatus.OK, data, "application/json", tag)
        return self._answer(HTTPStatus.NOT_FOUND, b"there is / and /data.json\n", "text/plain")

    do_HEAD = do_GET

    def _from_here(self) -> bool:
        """Whether the request names this machine as the one it is for."""
        port = self.connection.getsockname()[1]
        here = {f"{name}{end}" for name in (LOOPBACK, "localhost") for end in _written(port)}
        return self.headers.get_all("Host", []) in [[name] for name in here]

    def _answer(self, status: HTTPStatus, body: bytes, kind: str, tag: str = "") -> None:
        self.send_response(status)
        headers = {
            "Content-Type": kind,
            "Content-Length": str(len(body)),
            "Cache-Control": "no-store",
            "X-Content-Type-Options": "nosniff",
            "Referrer-Policy": "no-referrer",
            "Cross-Origin-Resource-Policy": "same-origin",
            **({"ETag": tag} if tag else {}),
        }
        for name, value in headers.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD" and status != HTTPStatus.NOT_MODIFIED:
            self.wfile.write(body)

    def log_message(self, format: str, *values: Any) -> None:
        """Nothing: the page asks every two seconds."""


def _written(port: int) -> list[str]:
    """How a browser writes the port after the host: not at all where it is HTTP's own."""
    return [f":{port}", *([""] if port == HTTP_PORT else [])]


def _stamp(path: Path) -> tuple[int, int] | None:
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_mtime_ns, found.st_size
