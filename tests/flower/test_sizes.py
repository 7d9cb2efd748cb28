"""What is large passes through the engine: 124 million parameters whole, and four million numbers."""

import shutil
from pathlib import Path

import pytest

pytest.importorskip("flwr", reason="needs the extra narrowcast[flower]")
from flower_runs import finish
from narrowcast.flower.local_fleet import LocalFleet
from places import EXPERIMENTS

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("flower")]
APP = EXPERIMENTS / "wide_app"


@pytest.mark.parametrize(
    ("size", "settings", "least"),
    [
        (124_000_000, {"method": "uncompressed", "rounds": 2}, 4 * 124_000_000),
        (2**22 + 1, {"method": "static", "dim": 2**22, "rounds": 3}, 4 * 2**22),
    ],
    ids=["124 million parameters whole", "d = 4194304"],
)
def test_it_passes(size: int, settings: dict[str, object], least: int, tmp_path: Path) -> None:
    """An update counts only if it names the digest of the server's theta, so both sides have every number."""
    run, app = tmp_path / "run", shutil.copytree(APP, tmp_path / "app")
    project = app / "pyproject.toml"
    words = project.read_text().replace("size = 1048577", f"size = {size}")
    project.write_text(words if "dim" in settings else words.replace("dim = 256\n", ""))
    one = {"clients": 1, "cohort": 1, "min_clients": 1, "folder": str(run), **settings}
    with LocalFleet(tmp_path / "fleet") as fleet:
        fleet.start_node(0, 1)
        done = finish(fleet, run, fleet.run(app, **one))
    for record in done:
        assert (record.clients, record.dropped) == (1, {})
        assert record.up > least
        assert record.down > least
    seconds = ", ".join(f"{record.seconds:.1f}" for record in done)
    print(f"\n{size} parameters: rounds of {seconds} s; {max(r.peak_memory for r in done) >> 20} MiB at most")
