"""The page as one file: the data, the plotting library and our own scripts in it, nothing from elsewhere.

What comes from run folders is a stranger's. It is in the page as JSON alone, in which no `<` stands, and is
shown as text. Should that fail, the page's policy lets only those scripts run whose digests it names, and
lets nothing be fetched but from where the page is.
"""

from __future__ import annotations

import base64
import hashlib
import html
import re
from collections.abc import Sequence
from datetime import UTC, datetime
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Any

import msgspec

from narrowcast import __version__, files
from narrowcast.extras import require
from narrowcast.page.gathering import gather
from narrowcast.page.planning import planner
from narrowcast.texts import printable
from narrowcast.units import format_count

SCRIPTS = ("units.js", "planner.js", "state.js", "charts.js", "runs.js", "sliders.js", "main.js")
POLICY = (
    "default-src 'none'; script-src {digests}; style-src 'unsafe-inline'; img-src data: blob:; "
    "connect-src {connect}; base-uri 'none'; form-action 'none'"
)


def write(folders: Sequence[Path], to: Path, title: str | None = None) -> Path:
    """The page of these runs, in a file."""
    text = document(gather(folders), title)
    to.parent.mkdir(parents=True, exist_ok=True)
    files.write_atomically(to, text.encode())
    return to


def document(found: dict[str, Any], title: str | None = None, live: int = 0) -> str:
    """The page of what was gathered; `live` is how many milliseconds lie between two looks at the runs."""
    runs = found["runs"]
    scripts = [_library(), *(_asset(name) for name in SCRIPTS)]
    digests = " ".join(f"'sha256-{_digest(text)}'" for text in scripts)
    data = {**found, "planner": planner(runs), "live": live}
    made = datetime.now(UTC).strftime("%Y-%m-%d %H:%M")
    version = _version(scripts[0])
    parts = {
        "policy": POLICY.format(digests=digests, connect="'self'" if live else "'none'"),
        "title": html.escape(printable(title or _title(runs))),
        "subtitle": html.escape(_subtitle(runs)),
        "css": _asset("page.css"),
        "data": msgspec.json.encode(data).decode().replace("<", "\\u003c"),
        "scripts": "\n".join(f"<script>{text}</script>" for text in scripts),
        "footer": f"narrowcast {__version__}, {made} UTC. Drawn with plotly.js {version} (MIT), here inside.",
    }
    # In one pass: what is put in is not looked at again.
    return re.sub(r"\{\{(\w+)\}\}", lambda found: parts[found[1]], _asset("page.html"))


def _title(runs: list[dict[str, Any]]) -> str:
    tasks = ", ".join(dict.fromkeys(run["task"] for run in runs))
    return f"narrowcast: {tasks}" if tasks else "narrowcast"


def _subtitle(runs: list[dict[str, Any]]) -> str:
    models = ", ".join(dict.fromkeys(f"{format_count(run['parameters'])} parameters" for run in runs))
    return f"{len(runs)} run{'' if len(runs) == 1 else 's'}{f', {models}' if models else ''}."


@cache
def _asset(name: str) -> str:
    return (resources.files("narrowcast.page") / "assets" / name).read_text(encoding="utf-8")


@cache
def _library() -> str:
    """plotly.js, as its Python package has it."""
    require("plotly", "page", "a page")
    text = (resources.files("plotly") / "package_data" / "plotly.min.js").read_text(encoding="utf-8")
    return text.replace("</script", "<\\/script")


def _version(library: str) -> str:
    found = re.search(r"plotly\.js v([\d.]+)", library[:400])
    return found[1] if found else ""


def _digest(text: str) -> str:
    return base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
