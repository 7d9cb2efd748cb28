"""Chromium, driven over its DevTools protocol: as much of it as looking at a page takes."""

from __future__ import annotations

import base64
import json
import shutil
import subprocess
import time
import urllib.request
from collections.abc import Callable
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

from websockets.exceptions import ConnectionClosed
from websockets.sync.client import connect

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
FLAGS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--remote-debugging-port=0",
)
PATIENCE = 240.0  # seconds: the machine may be busy


class Browser:
    """One browser; pages are opened in it one after the other."""

    def __init__(self, folder: Path) -> None:
        self.process = subprocess.Popen(
            [str(CHROMIUM), *FLAGS, f"--user-data-dir={folder}", "about:blank"],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        told = folder / "DevToolsActivePort"
        wait(lambda: told.is_file() and told.read_text().count("\n") > 0, "chromium's port")
        self.port = int(told.read_text().splitlines()[0])

    def open(self, url: str, width: int = 1200, height: int = 900, scheme: str = "light") -> Page:
        ask = urllib.request.Request(f"http://127.0.0.1:{self.port}/json/new?about:blank", method="PUT")
        with urllib.request.urlopen(ask, timeout=PATIENCE) as answer:
            page = Page(json.load(answer)["webSocketDebuggerUrl"])
        size = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 600}
        page.send("Emulation.setDeviceMetricsOverride", **size)
        page.send("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])
        page.send("Page.navigate", url=url)
        page.until("document.documentElement?.dataset.drawn")
        return page

    def close(self) -> None:
        self.process.terminate()
        self.process.wait(PATIENCE)


class Page:
    """A tab. `complaints` are exceptions, errors on the console, and dialogs."""

    def __init__(self, url: str) -> None:
        self.opened = ExitStack()
        self.socket = self.opened.enter_context(connect(url, max_size=None, open_timeout=PATIENCE))
        self.number, self.complaints = 0, list[str]()
        for domain in ("Page", "Runtime", "Log"):
            self.send(f"{domain}.enable")

    def send(self, method: str, **parameters: Any) -> dict[str, Any]:
        self.number += 1
        number = self.number
        self.socket.send(json.dumps({"id": number, "method": method, "params": parameters}))
        while True:
            message = json.loads(self.socket.recv(timeout=PATIENCE))
            if message.get("id") == number:
                assert "error" not in message, (method, message["error"])
                return dict(message["result"])
            self._heard(message)

    def _heard(self, message: dict[str, Any]) -> None:
        name, what = message.get("method"), message.get("params", {})
        if name == "Page.javascriptDialogOpening":
            self.complaints.append(f"dialog: {what['message']}")
            self.send("Page.handleJavaScriptDialog", accept=True)
        elif name == "Runtime.exceptionThrown":
            self.complaints.append(json.dumps(what["exceptionDetails"])[:500])
        elif name == "Log.entryAdded" and what["entry"]["level"] == "error":
            self.complaints.append(what["entry"]["text"])

    def __call__(self, expression: str) -> Any:
        """The value of an expression in the page; a promise's is waited for."""
        found = self.send("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in found, (expression, found["exceptionDetails"])
        return found["result"].get("value")

    def until(self, expression: str) -> Any:
        """Wait until it is true."""
        return wait(lambda: self(expression), expression)

    def press(self, key: str, code: int) -> None:
        for kind in ("keyDown", "keyUp"):
            self.send("Input.dispatchKeyEvent", type=kind, key=key, code=key, windowsVirtualKeyCode=code)

    def scroll_to(self, name: str) -> None:
        """Bring an element to the screen: pictures are drawn when they are near it."""
        self(f"document.getElementById({name!r}).scrollIntoView()")

    def screenshot(self, to: Path, whole: bool = True) -> None:
        shot = self.send("Page.captureScreenshot", captureBeyondViewport=whole)
        to.write_bytes(base64.b64decode(shot["data"]))

    def close(self) -> None:
        with self.opened, suppress(ConnectionClosed):
            self.send("Page.close")


def wait(condition: Callable[[], Any], what: str) -> Any:
    end = time.monotonic() + PATIENCE
    while time.monotonic() < end:
        if found := condition():
            return found
        time.sleep(0.05)
    raise TimeoutError(f"waited {PATIENCE:g} s for {what}")
