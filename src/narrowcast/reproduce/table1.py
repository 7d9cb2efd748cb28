"""Table 1 of the paper, measured: numbers a client sends and gets, and the dimensions that training explores.

Every client comes once an epoch. Numbers are those in encoded messages; dimensions are the rank of all the
models of a run, theta_t - theta_0, by singular values.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from narrowcast import exchange, wire
from narrowcast.config import make_config
from narrowcast.exchange import Round
from narrowcast.files import write_atomically
from narrowcast.methods.base import RoundInfo
from narrowcast.sampling import Cohorts
from narrowcast.tasks import build

E, d, K, N, W, SEED = 4, 8, 3, 60, 1, 0  # a round an epoch and client: rounds enough to span every subspace
ROWS = ("uncompressed", "static", "time-varying", "k-subspace", "k-subspace-time-varying")
RANK = 1e-5  # singular values below this share of the largest are rounding


@dataclass(frozen=True)
class Measured:
    method: str
    up: float  # numbers a client
    down: float
    dimensions: int
    bytes_up: float  # a client, headers and all
    bytes_down: float


def measure(name: str) -> tuple[Measured, int]:
    """(what the method took, D), by the exchange's own four half-steps with a model for each client."""
    config = make_config(
        {"task": "digits", "method": name, "dim": d, "subspaces": K, "width": 4, "clients": N, "cohort": W,
         "epochs": E, "partition": "iid", "lr": 0.5, "seed": SEED}
    )  # fmt: skip
    task = build("digits", config.task_options())
    method, cohorts, run = config.build_method(N), Cohorts(N, W, config.key), b"table-1."
    theta0 = task.theta0()
    server = method.server(theta0, task.layout)
    models = [method.newcomer(theta0, task.layout) for _ in range(N)]
    walked, counts = [], np.zeros(4)
    noise = torch.Generator().manual_seed(SEED)
    for number in range(E * cohorts.rounds_per_epoch):
        theta = method.theta(server)
        round = Round(run, config.key, number, server.version, wire.digest(theta))
        acc, seen = method.zero(server), set[int]()
        for client in cohorts.come(number).tolist():
            down = exchange.send_down(method, server, round, models[client].version)
            models[client], theta, _ = exchange.receive_down(method, models[client], down, run, config.key)
            v = torch.randn(theta.numel(), generator=noise)  # a gradient that favours no direction
            _, up = exchange.send_up(method, None, v, models[client], round, client, 1)
            acc = exchange.receive_up(method, acc, up, round, client, seen)
            counts += [_numbers(up), _numbers(down), len(up), len(down)]
        info = RoundInfo(number, cohorts.epoch(number), cohorts.epoch_end(number), 0.5)
        server = method.step(server, acc, info)
        walked.append((method.theta(server) - theta0).double().numpy())
    values = np.linalg.svd(np.stack(walked), compute_uv=False)
    up, down, bytes_up, bytes_down = counts / N
    return Measured(name, up, down, int((values > RANK * values[0]).sum()), bytes_up, bytes_down), len(theta0)


def _numbers(data: bytes) -> int:
    return sum(len(block.data) for block in wire.decode(data).payload.blocks) // 4


def reproduce(folder: Path) -> str:
    """The table beside the paper's formulas, also written to folder/README.md."""
    rows = [measure(name) for name in ROWS]
    D = rows[0][1]
    bounds = {
        "uncompressed": (D * E, D * E, "D"),
        "static": (d * E, d * E, d),
        "time-varying": (d * E, 2 * d * E, d * E),
        "k-subspace": (d * E, d * E * K, d * K),
        "k-subspace-time-varying": (d * E, 2 * d * E * K, d * E * K),
    }
    formulas = {
        "uncompressed": ("D E", "D E", "D"),
        "static": ("d E", "d E", "d"),
        "time-varying": ("d E", "2 d E", "d E"),
        "k-subspace": ("d E", "d E K", "d K"),
        "k-subspace-time-varying": ("d E", "2 d E K", "d E K"),
    }
    lines = [
        "# Table 1: bandwidth a client over training, and dimensions explored",
        "",
        f"`narrowcast reproduce table1`: D = {D:,}, d = {d}, K = {K}, E = {E} epochs, {N} clients, each once "
        "an epoch, gradients of pure noise. Numbers counted in the encoded messages; dimensions by the rank "
        f"of the {E * N} models of a run.",
        "",
        "| method | upload: paper | measured | download: paper | measured | dimensions: paper | measured | "
        "bytes up | bytes down |",
        "| --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: |",
    ]
    for row, _ in rows:
        (up, down, dims), (f_up, f_down, f_dims) = bounds[row.method], formulas[row.method]
        lines.append(
            f"| {row.method} | {f_up} = {up:,} | {row.up:,.0f} | {f_down} = {down:,} | {row.down:,.0f} | "
            f"{f_dims}{'' if dims == f_dims else f' = {dims:,}'} | {row.dimensions:,} | "
            f"{row.bytes_up:,.0f} | {row.bytes_down:,.0f} |"
        )
    lines += [
        "",
        "Sending exactly what a client lacks, time-varying needs (2E - 1) d downward, not 2 d E: in the "
        "first epoch there is no finished subspace to send. Uncompressed training explores as many "
        f"dimensions as it has steps ({E * N}), of D.",
    ]  # fmt: skip
    page = "\n".join(lines) + "\n"
    folder.mkdir(parents=True, exist_ok=True)
    write_atomically(folder / "README.md", page.encode())
    return page
