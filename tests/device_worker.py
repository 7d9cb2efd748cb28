"""What tests/devices runs in a process of its own, for torch knows a fake device as long as a process lives:

    python tests/device_worker.py fake|cuda FOLDER

Every part does something on the device and here, and says what came of it; the tests judge.
"""

from __future__ import annotations

import json
import os
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

import fake_device
import narrowcast as nc
from narrowcast.errors import ConfigError
from narrowcast.methods.table import METHODS
from narrowcast.numerics.devices import names
from narrowcast.rounds import devices, exchange
from narrowcast.runs import make_config, runner
from narrowcast.runs.run_folder import load_facts
from narrowcast.subspaces.base import add_family
from narrowcast.subspaces.table import subspace
from narrowcast.tasks.digits import load
from narrowcast.tasks.nets import mlp
from narrowcast.tasks.table import build
from narrowcast.wire.messages import digest

TABLE = [
    (kind, D, d, K)
    for kind in ("rotation", "grouping")
    for D, d, K in [
        (1, 1, 1), (10, 3, 2), (1000, 17, 2), (4999, 63, 1), (5000, 64, 1), (130, 128, 2), (700, 699, 1),
        (4096, 4096, 1), (4097, 4097, 1), (16707, 300, 3), (27281, 5000, 2), (24575, 8192, 1),
    ]
]  # fmt: skip
RUNS: dict[str, dict[str, Any]] = {
    "static": {"dim": 4200},
    "k-subspace": {"dim": 1000, "subspaces": 2},
    "time-varying": {"dim": 1000, "refresh": 2, "carry": True, "optimiser": "momentum"},
    "narrow": {"dim": 600, "cohort": 2},
    "uncompressed": {},
    "fedavg": {"local_steps": 2},
}
COMMON = {"cohort": 8, "rounds": 5, "lr": 0.3, "evaluate_every": 2, "seed": 3}


def bits(x: Tensor) -> Tensor:
    return x.cpu().view(torch.int32)


def task_on(device: str) -> nc.TorchTask:
    train, test = load()
    module = mlp(3, 64, 96, 96, 10).to(device)
    return nc.TorchTask(module, train=train, test=test, clients=nc.by_class(train[1], clients=40))


def table(device: str, folder: Path) -> list[dict[str, Any]]:
    """base + sum A x, A x and A^T g of every size, denormals, -0.0 and vectors in the middle of others."""
    rows = []
    for kind, D, d, K in TABLE:
        generator = torch.Generator().manual_seed(D + d)
        family = [subspace(kind, D, d, 12345678901234567 + 999 * k) for k in range(K)]
        base, xs = torch.randn(D, generator=generator), torch.randn(K, d, generator=generator)
        base[: D // 2 : 3], base[1::7], xs[0, : d // 2 : 5] = -0.0, 1e-42, 3e-41
        there = torch.cat([torch.zeros(1), base]).to(device)[1:]  # no longer aligned
        made, out = add_family(family, there, xs), torch.empty(D, device=device)
        A, g = family[0], torch.randn(D, generator=generator)
        exact, near = A.project(g), A.project(g.to(device))
        half = A.project(g.to(device, torch.bfloat16)) - A.project(g.bfloat16().float())
        rows.append({
            "case": f"{kind} {D} {d} {K}",
            "same": torch.equal(bits(made), bits(add_family(family, base, xs))),
            "in place": torch.equal(bits(add_family(family, there, xs, there)), bits(made)),
            "expand": torch.equal(bits(A.expand(xs[0], out)), bits(A.expand(xs[0]))),
            "digest": digest(made) == digest(made.cpu()) and digest(out[:-1]) == digest(out[:-1].cpu()),
            "again": torch.equal(near, A.project(g.to(device))),
            "error": float((near - exact).norm() / exact.norm()),
            "half": float(half.norm() / exact.norm()),
            "here": str(near.device),
        })  # fmt: skip
    return rows


def trained(device: str, folder: Path) -> dict[str, Any]:
    """Runs here and there: what a record says, what crossed, whether a client here has the model of there."""
    found = {}
    for name, options in RUNS.items():
        settings = {**COMMON, **options}
        told = {}
        for where in ("cpu", device):
            task, rows = task_on(where), []
            crossed()
            for record in nc.simulate(task, name, **settings):
                row = {"loss": record.loss, "metrics": record.metrics, "up": record.up, "down": record.down}
                rows.append({**row, "crossed": crossed(), "memory": record.device_memory})
            told["here" if where == "cpu" else "there"] = rows
        found[name] = {**told, "dim": settings.get("dim"), "D": task.layout.size, "where": str(task.device)}
    return found


def reconciled(device: str, folder: Path) -> dict[str, Any]:
    """A server here, clients there; and the other way round. `receive_down` compares digests itself."""
    found = {}
    for name in ("static", "k-subspace", "time-varying"):
        options = {k: v for k, v in RUNS[name].items() if k != "optimiser"}
        for server, client in (("cpu", device), (device, "cpu")):
            method = METHODS.find(name).make(key=11, **options)
            run = nc.Simulation(task_on(server), method, nc.Plan(cohort=8, lr=0.3, rounds=5, run=b"12345678"))
            list(run)
            data = exchange.send_down(method, run.server, run.now(), None)
            start = method.newcomer(task_on(client).theta0())
            _, theta, _ = exchange.receive_down(method, start, data, b"12345678", 0)
            found[f"{name} {server} to {client}"] = torch.equal(bits(theta), bits(run.theta))
    return found


def resumed(device: str, folder: Path) -> dict[str, Any]:
    """A run begun on one device and gone on with on the other, against one that stayed here."""
    settings = {"task": "digits", "method": "time-varying", "dim": 300, "width": 40, "rounds": 6, "cohort": 8,
                "clients": 40, "lr": 0.3, "refresh": "2", "carry": True, "optimiser": "momentum"}  # fmt: skip
    found: dict[str, Any] = {}
    for name, first, then in (("stayed", "cpu", "cpu"), ("went", "cpu", device), ("came", device, "cpu")):
        place, asked = folder / name, iter([False, False, True])
        runner.start(make_config({**settings, "device": first}), place, until=lambda asked=asked: next(asked))
        runner.resume(place, device=then)
        lines = [json.loads(line) for line in (place / "records.jsonl").read_bytes().splitlines()]
        _, theta = runner.rebuild(place)
        found[name] = {
            "rounds": len(lines),
            "bytes": [(line["up"], line["down"]) for line in lines],
            "losses": [line["loss"] for line in lines],
            "fields": sorted({field for line in lines for field in line}),
            "theta0": load_facts(place).theta0,
            "theta": theta.tolist(),
        }
    return found


def on_nodes(device: str, folder: Path) -> dict[str, Any]:
    """A fleet whose server is here and whose nodes have a device in their config, and the same simulated."""
    import federations
    from fake_grid import FakeGrid
    from narrowcast.flower import client_app
    from narrowcast.flower.node import Hosted, Node
    from narrowcast.flower.shelf import Folder

    config = federations.settings("time-varying")
    grid = FakeGrid(client_app(config=config), 12, {"device": device})
    fleet = federations.federation(config, grid)
    records = list(fleet)
    alone = list(federations.simulation(config))
    topk = federations.settings("topk").model_copy(update={"device": device})
    try:
        Node(Hosted(build(topk.task, topk.task_options()), {0: 0}), topk, Folder(folder / "shelf"))
        why = ""
    except ConfigError as error:
        why = str(error)
    return {
        "dropped": [record.dropped for record in records],
        "losses": [[record.loss for record in rows] for rows in (records, alone)],
        "bytes": [[(record.up, record.down) for record in rows] for rows in (records, alone)],
        "refused": why,
    }


class _Alone:
    """Workers of a process group of one."""

    count, rank, bytes = 1, 0, 0

    def __init__(self, *group: Any) -> None: ...

    def add(self, x: Tensor) -> Tensor:
        return x.clone()

    def most(self, *x: float) -> list[float]:
        return list(x)


class _Bucket:
    """All parameters of a module in one of DDP's buckets."""

    def __init__(self, module: nn.Module, flat: Tensor) -> None:
        self._parameters, self._buffer = list(module.parameters()), flat

    def buffer(self) -> Tensor:
        return self._buffer

    def parameters(self) -> list[nn.Parameter]:
        return self._parameters

    def gradients(self) -> list[Tensor]:
        parts = torch.split(self._buffer, [p.numel() for p in self._parameters])
        return [part.view(p.shape) for part, p in zip(parts, self._parameters, strict=True)]


def hooked(device: str, folder: Path) -> dict[str, Any]:
    """What the DDP hook makes of a gradient, here and there: errors fed back, few bits, half precision."""
    from narrowcast.ddp import IntrinsicState, hook

    hook.Group = _Alone  # type: ignore[assignment,misc]
    IntrinsicState.group = None  # type: ignore[assignment]
    found = {}
    for name, dtype, options in (
        ("plain", torch.float32, {}),
        ("error", torch.float32, {"error_feedback": True}),
        ("bits", torch.float32, {"bits": 6, "refresh": 5, "error_feedback": "rounding"}),
        ("half", torch.bfloat16, {}),
    ):
        made, went = {}, []
        for where in ("cpu", device):
            module = mlp(3, 20, 100, 50).to(where)
            state, outs = IntrinsicState(module, dim=1024, key=5, **options), []
            for step in range(3):
                size = state.D
                g = torch.from_numpy(np.sin(np.arange(size) * (step + 1.0))).to(where, dtype)
                crossed()
                state.waiting = [hook.collect(state, _Bucket(module, g))]
                hook.finish(state, g.device)
                went.append(crossed())
                outs.append(g.float().cpu())
            made[where] = torch.cat(outs)
            again = IntrinsicState(module, dim=1024, key=5, **options)
            again.load_state_dict(state.state_dict())
        difference = (made["cpu"] - made[device]).norm() / made["cpu"].norm()
        found[name] = {"difference": float(difference), "crossed": went[3:], "D": size, "dim": 1024}
    return found


def refused(device: str, folder: Path) -> dict[str, Any]:
    """What each method says to a model on the device, and where "auto" leaves its task."""
    told = {}
    for name in METHODS.own:
        method = METHODS.find(name).make()
        try:
            nc.Simulation(task_on(device), method, nc.Plan(cohort=4, lr=0.1, rounds=1))
            told[name] = ""
        except ConfigError as error:
            told[name] = str(error)
        except ValueError as error:  # a dim that does not fit says nothing of the device
            told[name] = "" if "dim" in str(error) else repr(error)
    others = {}
    for what, ask in {
        "fastfood": lambda: make_config(
            {"task": "digits", "rounds": 1, "subspace": "fastfood", "device": device}
        ),
        "quadratic": lambda: make_config({"task": "quadratic", "rounds": 1, "device": device}),
        "nowhere": lambda: make_config({"task": "digits", "rounds": 1, "device": f"{device}:7"}),
        "unknown": lambda: make_config({"task": "digits", "rounds": 1, "device": "gpu"}),
        "misspelt": lambda: make_config({"task": "digits", "rounds": 1, "device": "CUDA 1"}),
    }.items():
        try:
            runner.start(ask(), folder / what)
            others[what] = ""
        except ConfigError as error:
            others[what] = str(error)
    names.automatic = lambda: torch.device(device, 0)
    auto = {}
    for name in ("static", "topk"):
        task = build("digits", make_config({"task": "digits", "rounds": 1}).task_options())
        devices.placed(task, METHODS.find(name).make(), "auto")
        auto[name] = task.theta0().device.type
    written = sorted(p.name for p in folder.iterdir() if p.is_dir())
    return {"methods": told, "others": others, "auto": auto, "written": written}


def wrong(device: str, folder: Path) -> str:
    """A device whose last bits differ is found out before anything is trained."""
    from narrowcast.numerics.devices import by_torch, passes

    class Off:
        project_tiles, sum_mixed = staticmethod(by_torch.project_tiles), staticmethod(by_torch.sum_mixed)

        @staticmethod
        def add_tiles(tiling: Any, metas: Tensor, base: Tensor, xs: Tensor, out: Tensor) -> None:
            by_torch.add_tiles(tiling, metas, base, xs, out)
            out[100] = torch.nextafter(out[100].cpu(), torch.tensor(9.0)).to(out.device)

    devices.check.cache_clear()
    before, passes.on = passes.on, lambda device, V=64: Off  # type: ignore[assignment,return-value]
    try:
        task_ = task_on(device)
        nc.Simulation(task_, nc.method("static", dim=64), nc.Plan(cohort=4, lr=0.1, rounds=1))
        return ""
    except ConfigError as error:
        return str(error)
    finally:
        passes.on = before
        devices.check.cache_clear()


def pictures(device: str, folder: Path) -> dict[str, bool]:
    """CIFAR-10's crops and mirrors are the same there; a walk with dropout is drawn from the run's key."""
    from narrowcast.tasks import cifar10

    images = torch.from_numpy(np.arange(4 * 3 * 32 * 32).reshape(4, 3, 32, 32) % 251).to(torch.uint8)
    index = torch.tensor([5, 0, 9, 3])
    made = [cifar10.normalise(cifar10.augment(x, index, 77)).cpu() for x in (images, images.to(device))]
    train, test = load()
    twice = []
    for _ in range(2):
        module = nn.Sequential(nn.Linear(64, 32), nn.Dropout(0.5), nn.Linear(32, 10))
        for i, p in enumerate(module.parameters()):
            p.data = torch.from_numpy(np.cos(np.arange(p.numel()) + i).astype(np.float32)).view(p.shape) / 8
        task = nc.TorchTask(
            module.to(device), train=train, test=test, clients=nc.by_class(train[1], clients=20)
        )
        losses = [r.loss for r in nc.simulate(task, "static", dim=64, rounds=3, lr=0.1, cohort=4, seed=1)]
        twice.append(losses)
    return {"crops": torch.allclose(made[0], made[1], atol=1e-6), "dropout": twice[0] == twice[1]}


def texts(device: str, folder: Path) -> dict[str, Any]:
    """A classifier and a language model over text."""
    from text_data import write_lines, write_sst2

    found = {}
    write_sst2(folder / "sst2")
    write_lines(folder / "personachat")
    for name in ("sst2", "personachat"):
        rows = []
        for where in ("cpu", device):
            options = {"data": str(folder / name), "model": "tiny", "clients": 4, "rounds": 2, "dim": 200}
            config = make_config({"task": name, "lr": 0.1, "cohort": 2, **options, "device": where})
            place = runner.start(config, folder / f"{name}-{where}")
            rows.append([json.loads(line) for line in (place / "records.jsonl").read_bytes().splitlines()])
        found[name] = [[(row["loss"], row.get("metrics", {})) for row in each] for each in rows]
    return found


def benched(device: str, folder: Path) -> list[dict[str, Any]]:
    from narrowcast.bench import device as there

    return list(there.on_device(names.find(device), [(20_000, 500)]))


def crossed() -> int:
    return fake_device.crossed() if fake_device.NAME in sys.argv else 0


PARTS: dict[str, Callable[[str, Path], Any]] = {
    f.__name__: f
    for f in (table, trained, reconciled, resumed, on_nodes, hooked, benched, wrong, pictures, texts, refused)
}


def main() -> None:
    device, folder = sys.argv[1], Path(sys.argv[2])
    torch.set_num_threads(1)
    if device == fake_device.NAME:
        fake_device.register()
    for name, part in PARTS.items():
        if sys.argv[3:] and name not in sys.argv[3:]:
            continue
        (folder / name).mkdir()
        try:
            told = {"told": part(device, folder / name)}
        except Exception:
            told = {"failed": traceback.format_exc()}
        (folder / f"{name}.json").write_text(json.dumps(told))
    sys.stdout.flush()
    os._exit(0)  # a device of ours has no end of its own


if __name__ == "__main__":
    main()
