"""The planner in the page against `narrowcast plan`: one formula, evaluated in both languages over a grid."""

import json
import shutil
import subprocess
from html import escape
from itertools import product
from pathlib import Path

import pytest

import narrowcast.page
from narrowcast.bandwidth.planner import NARROW, ROWS, plan
from narrowcast.page.planning import constants
from narrowcast.rounds.network import NETWORKS
from narrowcast.units import format_bytes, format_count, format_seconds

ASSETS = Path(narrowcast.page.__file__).parent / "assets"
NODE = shutil.which("node") or shutil.which("nodejs")
needs_node = pytest.mark.skipif(NODE is None, reason="needs node")
SAME = (
    "messages",
    "bytes_up",
    "bytes_down",
    "seconds_up",
    "seconds_down",
    "seconds",
    "bytes_all_clients",
    "compression",
    "training_seconds",
)


def in_node(program: str, data: object, scripts: tuple[str, ...] = ("units.js", "planner.js")) -> object:
    files = "".join((ASSETS / name).read_text() for name in scripts)
    read = "const data = JSON.parse(require('fs').readFileSync(0, 'utf8'));"
    done = subprocess.run(
        [str(NODE), "-e", f"{files}\n{read}\nprocess.stdout.write(JSON.stringify({program}))"],
        input=json.dumps(data),
        capture_output=True,
        text=True,
        check=True,
    )
    return json.loads(done.stdout)


def grid() -> list[dict]:
    """Corners and middles: blocks above and below 64 kB, the dense fallback, few bits, several visits."""
    sizes = [(21, 4), (301_066, 512), (6_570_880, 20_000), (124_443_648, 1_048_576)]
    fleets = [(1, 1, 1, "epoch"), (287, 29, 5, "epoch"), (287, 29, 24, 3), (1000, 7, 7, 200), (50, 50, 30, 4)]
    bits = [(None, None), (1, 2), (0.25, 16), (32, 4)]
    asked = []
    for (params, dim), (clients, cohort, epochs, refresh), p, (up, down) in product(
        sizes, fleets, (0.05, 0.6, 1.0, 2.5), bits
    ):
        asked.append(
            {
                "params": params,
                "dim": dim,
                "epochs": epochs,
                "subspaces": 3 if dim == 4 else 8,
                "participation": p,
                "clients": clients,
                "cohort": cohort,
                "refresh": refresh,
                "local_steps": 5,
                "up_bps": 1e6,
                "down_bps": 3e7,
                "up_bits": up,
                "down_bits": down,
                "network": [None, *NETWORKS][len(asked) % (len(NETWORKS) + 1)],
                "examples": 3,
            }
        )
    return asked


@needs_node
def test_the_page_plans_as_the_command_does() -> None:
    asked = grid()
    to_js = [{**one, "refresh": None if one["refresh"] == "epoch" else one["refresh"]} for one in asked]
    found = in_node(
        "data.asked.map((one) => planner.plan(one, data.constants))",
        {"asked": to_js, "constants": constants()},
    )
    for one, rows in zip(asked, found, strict=True):
        network = NETWORKS.get(one["network"])
        for row, drawn in zip(plan(**{**one, "network": network}, names=(*ROWS, NARROW)), rows, strict=True):
            assert drawn["method"] == row.method
            for name in SAME:
                assert drawn[name] == pytest.approx(getattr(row, name), rel=1e-9), (one, row.method, name)


@needs_node
@pytest.mark.parametrize(
    ("name", "format"), [("bytes", format_bytes), ("count", format_count), ("seconds", format_seconds)]
)
def test_numbers_are_written_as_everywhere(name, format) -> None:
    values = [
        0,
        1,
        9.994,
        9.996,
        59.94,
        59.96,
        99.95,
        999.4,
        999.6,
        1000,
        12_345,
        65_590,
        999_600,
        3.3e5,
        86_399,
        124_443_648,
        7e12,
        2e16,
        0.0123,
        0.5,
    ]
    assert in_node(f"data.map(units.{name})", values) == [format(value) for value in values]


# A page without a browser: what is drawn against the network, as it is given to Plotly.
STUBS = """(() => {
  const part = { setAttribute() {}, dataset: {}, closest: () => part }, page = { runs: [data] }, drawn = [];
  Object.assign(globalThis, {
    innerWidth: 800, getComputedStyle: () => ({ getPropertyValue: () => "" }),
    document: {
      getElementById: () => part, querySelector: (q) => ({ value: q.includes("-x") ? "network" : "loss" }),
    },
    state: { page, shown: () => page.runs, look: () => ({}) },
    Plotly: { react: (place, traces, made) => { drawn.push(made.xaxis.title.text); throw part; } },
    IntersectionObserver: class { observe() {} },
    addEventListener: (name, then) => { globalThis.print = then; },
  });
  (0, eval)(require("fs").readFileSync(data.script, "utf8"));
  try { print(); } catch (ended) { if (ended !== part) throw ended; }
  return drawn;
})()"""


@needs_node
def test_a_networks_name_is_read_and_not_obeyed() -> None:
    name = "<a href=https://evil.example>4g</a> & more"
    curve = {"network": [1, 2], "y": [2, 1]}
    run = {"label": "a", "seed": 0, "network_name": name, "metric": "loss", "curves": {"loss": curve}}
    (title,) = in_node(STUBS, {**run, "script": str(ASSETS / "charts.js")}, ("units.js",))  # type: ignore[misc]
    assert title == f"time on the network ({escape(name, quote=False)})"
