"""A stand-in for the Hugging Face hub on loopback: repositories, commits and files, as its client asks.

Files go into a commit as they are, or, where `lfs` says so, through the store for large and binary ones, as
the real hub has it for bytes that are no text.
"""

from __future__ import annotations

import base64
import hashlib
import json
import re
import threading
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import TracebackType
from typing import Any

import pytest

COMMIT = "c" * 40


class FakeHub:
    def __init__(self, lfs: bool = False) -> None:
        self.lfs, self.files, self.store = lfs, dict[tuple[str, str], bytes](), dict[str, bytes]()
        self.repos, self.claims, self.asked = dict[str, Any](), dict[str, int](), list[str]()
        hub = self

        class Handler(_Handler):
            pass

        Handler.hub = hub
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.endpoint = f"http://127.0.0.1:{self._server.server_port}"
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)

    def __enter__(self) -> FakeHub:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


def stand_in(fake: FakeHub, monkeypatch: pytest.MonkeyPatch, cache: Path) -> None:
    """huggingface_hub asks this one instead of its own."""
    import huggingface_hub
    from huggingface_hub import constants

    for name, value in {
        "ENDPOINT": fake.endpoint,
        "HUGGINGFACE_CO_URL_TEMPLATE": fake.endpoint + "/{repo_id}/resolve/{revision}/{filename}",
        "HF_HUB_CACHE": str(cache),
        "HF_HUB_OFFLINE": False,
        "HF_HUB_DISABLE_XET": True,
    }.items():
        monkeypatch.setattr(constants, name, value)
    monkeypatch.setenv("HF_TOKEN", "hf_none")
    monkeypatch.setattr(huggingface_hub, "HfApi", partial(huggingface_hub.HfApi, endpoint=fake.endpoint))


class _Handler(BaseHTTPRequestHandler):
    hub: FakeHub
    protocol_version = "HTTP/1.1"

    def log_message(self, *_: object) -> None:
        return

    def do_HEAD(self) -> None:
        self._file(body=False)

    def do_GET(self) -> None:
        self._file(body=True)

    def do_PUT(self) -> None:
        data = self._read()
        self.hub.store[hashlib.sha256(data).hexdigest()] = data
        self._say(200, {})

    def do_POST(self) -> None:
        path, data = self.path.partition("?")[0], self._read()
        self.hub.asked.append(path)
        if path == "/api/repos/create":
            asked = json.loads(data)
            name = "/".join(filter(None, (asked.get("organization"), asked["name"])))
            self.hub.repos.setdefault(name, asked)
            self._say(200, {"url": f"{self.hub.endpoint}/{name}"})
        elif path.endswith("/preupload/main"):
            files = [f["path"] for f in json.loads(data)["files"]]
            modes = ["lfs" if self.hub.lfs and not f.endswith(".md") else "regular" for f in files]
            said = [
                {"path": f, "uploadMode": m, "shouldIgnore": False} for f, m in zip(files, modes, strict=True)
            ]
            self._say(200, {"files": said})
        elif path.endswith("/info/lfs/objects/batch"):
            objects = json.loads(data)["objects"]
            href = {"upload": {"href": f"{self.hub.endpoint}/put"}}
            self._say(200, {"transfer": "basic", "objects": [{**o, "actions": href} for o in objects]})
        elif found := re.fullmatch(r"/api/models/(.+)/commit/main", path):
            for line in map(json.loads, data.splitlines()):
                self._commit(found[1], line["key"], line["value"])
            url = f"{self.hub.endpoint}/{found[1]}/commit/{COMMIT}"
            self._say(200, {"commitUrl": url, "commitOid": COMMIT})
        else:
            self._say(200, {})

    def _commit(self, repo: str, key: str, value: dict[str, Any]) -> None:
        if key == "file":
            self.hub.files[repo, value["path"]] = base64.b64decode(value["content"])
        elif key == "lfsFile":
            self.hub.files[repo, value["path"]] = self.hub.store[value["oid"]]

    def _file(self, body: bool) -> None:
        found = re.fullmatch(r"/(.+)/resolve/([^/]+)/([^?]+).*", self.path)
        data = self.hub.files.get((found[1], found[3])) if found else None
        if data is None:
            self.send_response(404)
            self.send_header("X-Error-Code", "EntryNotFound")
            self.send_header("Content-Length", "0")
            self.end_headers()
            return
        self.send_response(200)
        self.send_header("X-Repo-Commit", COMMIT)
        self.send_header("ETag", f'"{hashlib.sha256(data).hexdigest()}"')
        claim = 0 if body else self.hub.claims.get(found[3], 0) if found else 0
        self.send_header("Content-Length", str(claim or len(data)))
        self.end_headers()
        if body:
            self.wfile.write(data)

    def _read(self) -> bytes:
        if self.headers.get("Transfer-Encoding") != "chunked":
            return self.rfile.read(int(self.headers.get("Content-Length") or 0))
        parts = list[bytes]()
        while size := int(self.rfile.readline(), 16):
            parts.append(self.rfile.read(size))
            self.rfile.readline()
        self.rfile.readline()
        return b"".join(parts)

    def _say(self, code: int, content: object) -> None:
        data = json.dumps(content).encode()
        self.send_response(code)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)
