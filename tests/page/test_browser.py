"""The page in a real browser: what is drawn, moved, hidden, followed; read by eyes, keys and axe."""

import os
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from narrowcast.bandwidth.planner import NARROW, ROWS, plan
from narrowcast.page import live, write
from narrowcast.rounds.network import NETWORKS
from narrowcast.units import format_bytes, format_seconds
from page_runs import append_rounds, write_run

pytest.importorskip("plotly", reason="needs the extra narrowcast[page]")
pytest.importorskip("websockets", reason="drives chromium")
from browser import CHROMIUM, Browser, Page

pytestmark = [
    pytest.mark.skipif(CHROMIUM is None, reason="no chromium on PATH: the page was not looked at"),
    pytest.mark.xdist_group("browser"),
]
HOSTILE = "<img src=x onerror=alert(1)></script><script>alert(2)</script>"
AXE = os.environ.get("AXE_CORE", "")  # axe.min.js, of `npm pack axe-core`
Open = Callable[..., Page]


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    started = Browser(tmp_path_factory.mktemp("chromium"))
    yield started
    started.close()


@pytest.fixture(scope="module")
def page_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("runs")
    folders = [
        write_run(root / "a", 24, method="static", label="static", dim=512),
        write_run(root / "b", 24, method="time-varying", label=HOSTILE, dim=256),
        write_run(root / "c", 24, method="uncompressed", label="uncompressed", seed=1),
        write_run(root / "d", 24, method="uncompressed", label="uncompressed", seed=2),
    ]
    return write(folders, root / "page.html", "Four runs")


@pytest.fixture
def look(browser: Browser, page_file: Path) -> Iterator[Open]:
    opened = []

    def open(url: str = "", **more: object) -> Page:
        opened.append(browser.open(url or page_file.as_uri(), **more))
        return opened[-1]

    yield open
    for page in opened:
        assert page.complaints == []
        page.close()


def traces(page: Page, chart: str) -> int:
    return page(f"document.querySelectorAll('#{chart} .trace').length")


def legend(page: Page, chart: str) -> list[str]:
    return page(f"[...document.querySelectorAll('#{chart} .legendtext')].map((one) => one.textContent)")


def draw_all(page: Page) -> None:
    for section in ("what", "how", "bytes", "clients", "with", "planner"):
        page.scroll_to(section)
        chart = {
            "what": "frontier",
            "how": "curves",
            "bytes": "kinds",
            "clients": "dropped",
            "planner": "plan",
        }
        if section in chart:
            page.until(f"!!document.querySelector('#{chart[section]} .main-svg')")


def test_everything_is_drawn_and_strangers_words_are_read_not_obeyed(look: Open) -> None:
    page = look()
    draw_all(page)
    assert legend(page, "frontier") == ["static", HOSTILE, "uncompressed"]  # two seeds are one entry
    assert traces(page, "frontier") == 2 * 3  # ways and ends
    assert traces(page, "curves") == 3
    assert page("document.querySelectorAll('#kinds .barlayer .trace').length") == 5
    assert page("document.querySelectorAll('#dropped .barlayer .trace').length") == 1
    assert page("document.querySelectorAll('img').length") == 0
    assert page("document.querySelector('#runs tbody tr:nth-child(2) label').textContent") == HOSTILE
    differing = page("[...document.querySelectorAll('#settings .differs th')].map((th) => th.textContent)")
    assert "method ≠" in differing
    assert "task ≠" not in differing


def test_a_run_is_hidden_everywhere(look: Open) -> None:
    page = look()
    page("document.querySelector('#runs input[type=checkbox]').click()")
    assert page("document.getElementById('count').textContent") == "3 of 4 runs shown"
    draw_all(page)
    assert legend(page, "frontier") == [HOSTILE, "uncompressed"]
    page.scroll_to("how")  # where it may have been drawn before, and is drawn again when it is seen
    page.until("document.querySelectorAll('#curves .trace').length === 2")
    assert page("document.querySelectorAll('#settings thead th').length") == 1 + 3
    page("document.getElementById('filter').value = 'time-varying'")
    page("document.getElementById('filter').dispatchEvent(new Event('input'))")
    assert page("document.querySelectorAll('#runs tbody tr').length") == 1
    page("document.getElementById('hide-found').click()")
    assert page("document.getElementById('count').textContent") == "2 of 4 runs shown"


def test_curves_change_with_what_they_are_drawn_against(look: Open) -> None:
    page = look()
    draw_all(page)
    page.scroll_to("how")
    for axis, title in (("bytes", "bytes, up and down, all clients"), ("seconds", "time on this machine")):
        page(f"document.querySelector('input[name=curves-x][value={axis}]').click()")
        page.until(f"document.querySelector('#curves .xtitle').textContent === {title!r}")
    page("document.querySelector('input[name=curves-y][value=\"training loss\"]').click()")
    page.until("document.querySelector('#curves .ytitle').textContent === 'training loss, lower is better'")


def test_a_slider_is_moved_by_key_and_plans_as_the_command_does(look: Open) -> None:
    page = look()
    draw_all(page)
    before = page("document.getElementById('plan-table').textContent")
    page("document.getElementById('plan-dim').focus()")
    for _ in range(4):
        page.press("ArrowRight", 39)
    page.until(f"document.getElementById('plan-table').textContent !== {before!r}")
    asked = page("sliders.asked()")
    assert asked["dim"] > 512
    network = NETWORKS[asked.pop("network")]
    rows = plan(**asked, network=network, names=(*ROWS, NARROW))
    cells_of = "(tr) => [...tr.cells].map((cell) => cell.textContent)"
    shown = page(f"[...document.querySelectorAll('#plan-table tbody tr')].map({cells_of})")
    for row, cells in zip(rows, shown, strict=True):
        assert cells[:3] == [row.method, format_bytes(row.bytes_up), format_bytes(row.bytes_down)]
        assert cells[-2:] == [format_bytes(row.bytes_all_clients), format_seconds(row.training_seconds)]
    said = page("document.getElementById('plan-dim').getAttribute('aria-valuetext')")
    assert said.replace("\u202f", "") == str(asked["dim"])


@pytest.mark.parametrize(("width", "scheme"), [(1200, "dark"), (390, "light")])
def test_dark_and_narrow(look: Open, width: int, scheme: str) -> None:
    page = look(width=width, scheme=scheme)
    draw_all(page)
    assert page("document.documentElement.scrollWidth") <= width
    paper = page("getComputedStyle(document.body).backgroundColor")
    assert (paper == "rgb(255, 255, 255)") == (scheme == "light")
    page("document.getElementById('theme').click()")
    assert page("getComputedStyle(document.body).backgroundColor") != paper


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_axe_finds_no_serious_fault(look: Open, scheme: str) -> None:
    if not AXE:
        pytest.skip("AXE_CORE does not name axe.min.js: see CONTRIBUTING.md")
    page = look(scheme=scheme)
    draw_all(page)
    page("document.querySelectorAll('details').forEach((one) => { one.open = true; })")
    page(Path(AXE).read_text() + "; 0")
    found = page(
        "axe.run().then((r) => r.violations.map((v) => [v.impact, v.id, v.nodes[0].html.slice(0, 200)]))"
    )
    assert [fault for fault in found if fault[0] in ("serious", "critical")] == []


def test_live_follows_a_run_as_it_goes(look: Open, tmp_path: Path) -> None:
    folder = write_run(tmp_path / "run", 40, done=10)
    with live.server([tmp_path]) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
        thread.start()
        page = look(f"http://127.0.0.1:{server.server_address[1]}/")
        page.until("document.querySelector('#runs').textContent.includes('10 of 40')")
        append_rounds(folder, 10, 25)
        page.until("document.querySelector('#runs').textContent.includes('25 of 40')")
        write_run(tmp_path / "other", 8, label="a new one")
        page.until("document.querySelector('#runs').textContent.includes('a new one')")
        page.until("!!document.querySelector('#frontier .legendtext')")
        assert "a new one" in legend(page, "frontier")
        page.send("Page.navigate", url="about:blank")
        page.until("location.href === 'about:blank'")
        server.shutdown()
        thread.join()
