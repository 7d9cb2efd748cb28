"""What the engine costs, measured on real runs: a SuperLink, SuperNodes, a counting proxy between them.

    python studies/experiments/engine.py              # everything that results/engine/ lacks, then the tables
    python studies/experiments/engine.py --quick      # a small one of each, into a temporary folder

Pieces: wire (payload against wire by d), idle (polling), amortise (clients a node, local steps), sizes
(seconds and memory of large messages, by the size of a piece). Each is a JSON file, and measured once.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import shutil
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from narrowcast.flower import CountingProxy, LocalFleet, write_app
from narrowcast.rounds import RoundRecord, records
from narrowcast.runs import run_folder

HERE = Path(__file__).parent
WIDE = HERE / "wide_app"
RESULTS = HERE / "results" / "engine"
PAGE = HERE.parents[1] / "docs" / "flower.md"  # has the table of payload and wire
NODES = 2
Row = dict[str, Any]


@contextlib.contextmanager
def counted(folder: Path, nodes: int) -> Iterator[tuple[LocalFleet, CountingProxy]]:
    """Nodes behind a proxy, all joined."""
    with LocalFleet(folder) as fleet, CountingProxy(fleet.port) as proxy:
        for part in range(nodes):
            fleet.start_node(part, nodes, through=proxy.port)
        while not all("SuperNode ID" in fleet.log(f"node-{part}") for part in range(nodes)):
            time.sleep(0.1)
        yield fleet, proxy


def train(
    fleet: LocalFleet, proxy: CountingProxy, app: Path, folder: Path
) -> list[tuple[RoundRecord, int, int]]:
    """Every round's record, and the bytes up and down that the proxy had counted when it ended."""
    submitted = fleet.run(app)
    seen: list[tuple[RoundRecord, int, int]] = []
    while not (run_folder.finished(folder) or submitted.poll() is not None):
        path = folder / "records.jsonl"
        for record in records.read(path)[len(seen) :] if path.is_file() else []:
            seen.append((record, proxy.up, proxy.down))
        time.sleep(0.02)
    if not run_folder.finished(folder):
        raise RuntimeError(f"the run failed:\n{fleet.log('run')[-3000:]}")
    for record in records.read(folder / "records.jsonl")[len(seen) :]:
        seen.append((record, proxy.up, proxy.down))
    submitted.wait()
    return seen


def per_round(seen: list[tuple[RoundRecord, int, int]], nodes: int) -> Row:
    """Means a node and round over all rounds but the first, in which nodes are asked who they are."""
    rounds = [record for record, _, _ in seen[1:]]
    each = len(rounds) * nodes
    (_, up0, down0), (_, up1, down1) = seen[0], seen[-1]
    return {
        "rounds": len(rounds),
        "payload_up": sum(r.up for r in rounds) / each,
        "payload_down": sum(r.down for r in rounds) / each,
        "wire_up": (up1 - up0) / each,
        "wire_down": (down1 - down0) / each,
        "seconds": sum(r.seconds for r in rounds) / len(rounds),
    }


def wide_app(folder: Path, size: int, chunk: int | None = None, **settings: object) -> Path:
    """A copy of wide_app with this many parameters and these settings."""
    import tomllib

    import tomli_w

    app = shutil.copytree(WIDE, folder / "app", ignore=shutil.ignore_patterns("__pycache__"))
    project = tomllib.loads((app / "pyproject.toml").read_text())
    config = project["tool"]["flwr"]["app"]["config"]
    config["size"] = size
    own = {} if "method" in settings else {"method": "static", "dim": config["narrowcast"]["dim"]}
    kept = {name: value for name, value in config["narrowcast"].items() if name not in ("method", "dim")}
    config["narrowcast"] = {**kept, **own, "folder": str(folder / "run"), **settings}
    (app / "pyproject.toml").write_text(tomli_w.dumps(project))
    if chunk is not None:
        with (app / "app" / "__init__.py").open("a") as f:
            f.write(f"\nfrom narrowcast.flower import messages\n\nmessages.CHUNK = {chunk}\n")
    return app


def wire(scratch: Path, quick: bool) -> list[Row]:
    dims = [256, 4096] if quick else [256, 4096, 65_536, 1_048_576]
    rows = []
    with counted(scratch / "fleet", NODES) as (fleet, proxy):
        for d in dims:
            folder = scratch / f"d{d}"
            app = wide_app(folder, 2**20 + 1, dim=d, rounds=3 if quick else 6)
            rows.append({"d": d, **per_round(train(fleet, proxy, app, folder / "run"), NODES)})
            print(rows[-1], flush=True)
    return rows


def idle(scratch: Path, quick: bool) -> list[Row]:
    seconds = 15.0 if quick else 180.0
    with counted(scratch / "fleet", NODES) as (_, proxy):
        joined = (proxy.up + proxy.down) / NODES
        time.sleep(5)
        up, down, start = proxy.up, proxy.down, time.monotonic()
        time.sleep(seconds)
        minutes = (time.monotonic() - start) / 60 * NODES
        return [
            {
                "seconds": seconds,
                "up_a_minute": (proxy.up - up) / minutes,
                "down_a_minute": (proxy.down - down) / minutes,
                "joining": joined,
            }
        ]


def amortise(scratch: Path, quick: bool) -> list[Row]:
    cases = [(1, 1), (10, 1)] if quick else [(1, 1), (10, 1), (50, 1), (1, 20), (10, 20), (50, 20)]
    rows = []
    with counted(scratch / "fleet", NODES) as (fleet, proxy):
        for clients, steps in cases:
            folder, total = scratch / f"c{clients}-{steps}", clients * NODES
            settings = {
                "task": "digits", "method": "time-varying", "dim": 512, "clients": total, "cohort": total,
                "partition": "iid", "rounds": 3 if quick else 5, "lr": 1.0, "refresh": "2",
                "evaluate-every": 0, "local-steps": steps, "local-batch": 8, "local-lr": 0.05,
                "min-clients": total, "timeout": 300.0, "folder": str(folder / "run"),
            }  # fmt: skip
            app = write_app(folder / "app", settings)
            found = per_round(train(fleet, proxy, app, folder / "run"), NODES)
            rows.append(
                {
                    "clients": clients,
                    "steps": steps,
                    "clients_a_second": total / found["seconds"],
                    "steps_a_second": total * steps / found["seconds"],
                    "wire_a_client": (found["wire_up"] + found["wire_down"]) / clients,
                    "payload_a_client": (found["payload_up"] + found["payload_down"]) / clients,
                    **found,
                }
            )
            print(rows[-1], flush=True)
    return rows


def sizes(scratch: Path, quick: bool) -> list[Row]:
    """One node; the whole model each way, in pieces of several sizes, then 124 million parameters."""
    MiB = 1 << 20
    cases = [(2**20, 2, 4 * MiB)] if quick else [(2**25, 3, c * MiB) for c in (1, 4, 16, 64)]
    cases += [] if quick else [(124_000_000, 2, 4 * MiB)]
    rows = []
    for size, rounds, chunk in cases:
        folder = scratch / f"s{size}-{chunk}"
        one = {"clients": 1, "cohort": 1, "min-clients": 1, "method": "uncompressed", "rounds": rounds}
        app = wide_app(folder, size, chunk, **one)
        with counted(folder / "fleet", 1) as (fleet, proxy), memory(fleet) as peak:
            found = per_round(train(fleet, proxy, app, folder / "run"), 1)
        rows.append({"size": size, "chunk": chunk, **found, "memory": dict(peak)})
        print(rows[-1], flush=True)
        shutil.rmtree(folder)
    return rows


@contextlib.contextmanager
def memory(fleet: LocalFleet) -> Iterator[dict[str, int]]:
    """The most memory that any process of each kind had, by the name of its command."""
    peak: dict[str, int] = {}
    stop = threading.Event()

    def watch() -> None:
        while not stop.wait(0.1):
            for name, high in _family({p.pid for p in fleet.processes}):
                peak[name] = max(peak.get(name, 0), high)

    thread = threading.Thread(target=watch, daemon=True)
    thread.start()
    try:
        yield peak
    finally:
        stop.set()
        thread.join()


def _family(roots: set[int]) -> list[tuple[str, int]]:
    """(command, peak memory) of these processes and all that descend from them."""
    parent, about = dict[int, int](), dict[int, tuple[str, int]]()
    for path in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError, KeyError, ValueError, IndexError):
            status = dict(line.split(":", 1) for line in (path / "status").read_text().splitlines())
            words = (path / "cmdline").read_bytes().split(b"\0")
            ours = [w for w in words[:2] if b"flwr" in w or b"flower" in w]
            name = os.path.basename(ours[0]).decode()  # an IndexError where it is none of Flower's
            parent[int(path.name)] = int(status["PPid"])
            about[int(path.name)] = (name, int(status["VmHWM"].split()[0]) * 1024)
    found = set(roots)
    while more := {pid for pid, up in parent.items() if up in found} - found:
        found |= more
    return [about[pid] for pid in found if pid in about]


PIECES: dict[str, Callable[[Path, bool], list[Row]]] = {
    "wire": wire, "idle": idle, "amortise": amortise, "sizes": sizes
}  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true", help="a small one of each")
    parser.add_argument("--only", nargs="*", choices=list(PIECES), default=list(PIECES))
    parser.add_argument("--again", action="store_true", help="measure also what is there")
    parser.add_argument("--out", type=Path, default=None, help="folder of the results")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        out = arguments.out or (Path(scratch) / "results" if arguments.quick else RESULTS)
        out.mkdir(parents=True, exist_ok=True)
        for name in arguments.only:
            path = out / f"{name}.json"
            if arguments.again or not path.exists():
                rows = PIECES[name](Path(scratch) / name, arguments.quick)
                path.write_text(json.dumps(rows, indent=1) + "\n")
        from engine_tables import fill, write

        write(out)
        if out == RESULTS and (out / "wire.json").exists():
            PAGE.write_text(fill(PAGE.read_text(), json.loads((out / "wire.json").read_text())))
        for path in sorted(out.glob("*.md")):
            print(path.read_text())


if __name__ == "__main__":
    main()
