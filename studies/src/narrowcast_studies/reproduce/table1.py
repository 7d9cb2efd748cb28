"""Table 1 of the paper, measured: numbers a client sends and gets, and the dimensions that training explores.

Every client comes once an epoch. Numbers are those in encoded messages; dimensions are the rank of all the
models of a run, theta_t - theta_0, by singular values.
"""

from __future__ import annotations

from pathlib import Path

import msgspec
import numpy as np
import torch

from narrowcast import wire
from narrowcast.files import write_atomically
from narrowcast.methods import RoundInfo
from narrowcast.rounds import Cohorts, Round, exchange
from narrowcast.runs import make_config
from narrowcast.tables import markdown_table
from narrowcast.tasks import build
from narrowcast_studies.reproduce.claims import Claim

E, d, K, N, W, SEED = 4, 8, 3, 60, 1, 0  # a round an epoch and client: rounds enough to span every subspace
ROWS = ("uncompressed", "static", "time-varying", "k-subspace", "k-subspace-time-varying")
RANK = 1e-5  # singular values below this share of the largest are rounding


class Measured(msgspec.Struct, frozen=True):
    method: str
    parameters: int  # D
    up: float  # numbers a client
    down: float
    dimensions: int
    bytes_up: float  # a client, headers and all
    bytes_down: float


def measure(name: str) -> Measured:
    """What the method took, by the exchange's own four half-steps with a model for each client."""
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
    up, down, bytes_up, bytes_down = (counts / N).tolist()
    rank = int((values > RANK * values[0]).sum())
    return Measured(name, len(theta0), up, down, rank, bytes_up, bytes_down)


def _numbers(data: bytes) -> int:
    return sum(len(block.data) for block in wire.decode(data).payload.blocks) // 4


def bounds(D: int) -> dict[str, tuple[int, int, int]]:
    """The paper's numbers up, down, and dimensions, of each method."""
    return {
        "uncompressed": (D * E, D * E, D),
        "static": (d * E, d * E, d),
        "time-varying": (d * E, 2 * d * E, d * E),
        "k-subspace": (d * E, d * E * K, d * K),
        "k-subspace-time-varying": (d * E, 2 * d * E * K, d * E * K),
    }


FORMULAS = {
    "uncompressed": ("D E", "D E", "D"),
    "static": ("d E", "d E", "d"),
    "time-varying": ("d E", "2 d E", "d E"),
    "k-subspace": ("d E", "d E K", "d K"),
    "k-subspace-time-varying": ("d E", "2 d E K", "d E K"),
}


CLAIM = Claim(
    says="What a client sends and gets, and the dimensions that training explores, are those of Table 1",
    where="the paper, Table 1",
    kind="within",
    by=0.0,
    pairs=[],
    why="Number by number, but that time-varying and the combination need (2E - 1) d, and K times that, "
    "downward: in the first epoch there is no finished subspace to send, and the paper's 2 d E is an upper "
    "bound. Uncompressed training explores as many dimensions as it has steps.",
)


def agrees(row: Measured) -> bool:
    """Whether it sent and got no more than the paper says, and explored as much as its steps could."""
    up, down, dimensions = bounds(row.parameters)[row.method]
    return row.up <= up and row.down <= down and row.dimensions == min(dimensions, E * N // W)


def reproduce(folder: Path) -> str:
    """The table beside the paper's formulas, also written to the folder, as README.md and results.json."""
    rows = [measure(name) for name in ROWS]
    page = markdown(rows)
    folder.mkdir(parents=True, exist_ok=True)
    write_atomically(folder / "README.md", page.encode())
    write_atomically(folder / "results.json", msgspec.json.format(msgspec.json.encode(rows), indent=1))
    return page


def read(folder: Path) -> list[Measured] | None:
    """What `reproduce` left in the folder; None: nothing yet."""
    path = folder / "results.json"
    return msgspec.json.decode(path.read_bytes(), type=list[Measured]) if path.is_file() else None


def markdown(rows: list[Measured]) -> str:
    D = rows[0].parameters
    return "\n\n".join(
        [
            "# Table 1: bandwidth a client over training, and dimensions explored",
            f"`narrowcast reproduce table1`: {settings(D)}",
            table(rows),
            "Sending exactly what a client lacks, time-varying needs (2E - 1) d downward, not 2 d E: in the "
            "first epoch there is no finished subspace to send. Uncompressed training explores as many "
            f"dimensions as it has steps ({E * N}), of D.\n",
        ]
    )


def settings(D: int) -> str:
    return (
        f"D = {D:,}, d = {d}, K = {K}, E = {E} epochs, {N} clients, each once an epoch, gradients of pure "
        f"noise. Numbers counted in the encoded messages; dimensions by the rank of the {E * N} models of a "
        "run."
    )


HEAD = "method,upload: paper,measured,download: paper,measured,dimensions: paper,measured,bytes up,bytes down"


def table(rows: list[Measured]) -> str:
    return markdown_table(HEAD.split(","), [_cells(row) for row in rows])


def _cells(row: Measured) -> list[str]:
    (up, down, dims), (f_up, f_down, f_dims) = bounds(row.parameters)[row.method], FORMULAS[row.method]
    return [
        row.method,
        f"{f_up} = {up:,}",
        f"{row.up:,.0f}",
        f"{f_down} = {down:,}",
        f"{row.down:,.0f}",
        f_dims if f_dims == "D" else f"{f_dims} = {dims:,}",
        f"{row.dimensions:,}",
        f"{row.bytes_up:,.0f}",
        f"{row.bytes_down:,.0f}",
    ]
