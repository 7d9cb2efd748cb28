"""DDP over a slow link: no hook, torch's hooks and ours, seconds and bytes a step, and what is learnt.

    python benchmarks/ddp.py [--quick] [--json FILE] [--threads N] [--only ROW] [--tune] [--again]

Two workers in two network namespaces are joined by a veth pair; `tc` (tbf) limits both of its ends to 10, 100
and 1000 Mbit/s, and nothing is added to the delay. It needs Linux with unshare, ip and tc, but no root: it
starts itself anew in a user namespace, and all it sets up ends with it. Bytes are what a worker's interface
sent, headers and acknowledgements included. Loss (10 000 training images) and accuracy (the test set) are
those after STEPS steps, taken once for every hook and seed, since they do not depend on the link, with the
learning rate that had the least loss of seed 1 in a grid of factors of two. `--tune` runs and prints the
grid, by two workers without a limit. `--only` runs rows whose name begins so, and leaves those of FILE as
they are. The model is an MLP of 2 913 290 parameters on Fashion-MNIST.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Any

import link
import torch
import torch.distributed as dist
from machine import RESULTS, describe, table, write
from torch import Tensor, nn
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, powerSGD_hook
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel as DDP

from narrowcast.ddp import IntrinsicState, intrinsic_hook
from narrowcast.numerics import keyed, pool
from narrowcast.numerics.keyed import Purpose
from narrowcast.tasks import fashion_mnist
from narrowcast.tasks.nets import mlp
from narrowcast.tasks.options import TaskOptions

RATES = (10, 100, 1000)  # Mbit/s
SIZES, WORKERS, BATCH, STEPS, KEY = (784, 1024, 1024, 1024, 10), 2, 64, 200, 1
SEEDS = (KEY, 2, 3)  # of rows that are compared closely
UNTIMED = 3  # steps before the clock starts: PowerSGD begins at 2
PASSES, SECONDS, MOST = 3, 2.0, 20  # of steps under the clock, for each way and rate


Examples = tuple[Tensor, Tensor]
Register = Callable[[DDP, nn.Module, int], None]  # with a seed


@dataclass(frozen=True)
class Way:
    """A row: the learning rate, what is registered with the model, and how DDP is built."""

    name: str
    lr: float
    register: Register
    bucket_cap_mb: int | None = None
    momentum: float = 0.0
    seeds: tuple[int, ...] = (KEY,)


def nothing(ddp: DDP, model: nn.Module, seed: int) -> None:
    pass


def fp16(ddp: DDP, model: nn.Module, seed: int) -> None:
    ddp.register_comm_hook(None, default_hooks.fp16_compress_hook)


def power(rank: int) -> Register:
    def register(ddp: DDP, model: nn.Module, seed: int) -> None:
        state = powerSGD_hook.PowerSGDState(None, rank, start_powerSGD_iter=2, random_seed=seed - KEY)
        ddp.register_comm_hook(state, powerSGD_hook.powerSGD_hook)

    return register


def ours(dim: int, **options: Any) -> Register:
    def register(ddp: DDP, model: nn.Module, seed: int) -> None:
        ddp.register_comm_hook(IntrinsicState(model, dim, key=seed, **options), intrinsic_hook)

    return register


TERNARY: dict[str, Any] = {"bits": 2.37, "refresh": 20, "error_feedback": "rounding"}  # -1, 0, 1

# PowerSGD's hook starts its all-reduces from callbacks, and nothing fixes their order: with several buckets
# under gloo it ended in a collective mismatch. So it gets one bucket.
WAYS = [
    Way("no hook", 0.05, nothing),
    Way("no hook, momentum 0.9", 0.025, nothing, momentum=0.9, seeds=SEEDS),
    Way("fp16_compress (torch)", 0.05, fp16),
    Way("PowerSGD (torch), rank 1", 0.1, power(1), bucket_cap_mb=100, seeds=SEEDS),
    Way(
        "PowerSGD (torch), rank 1, momentum 0.5", 0.05, power(1), bucket_cap_mb=100, momentum=0.5, seeds=SEEDS
    ),
    Way("PowerSGD (torch), rank 1, momentum 0.9", 0.00625, power(1), bucket_cap_mb=100, momentum=0.9),
    Way("PowerSGD (torch), rank 2", 0.1, power(2), bucket_cap_mb=100),
    Way("PowerSGD (torch), rank 4", 0.1, power(4), bucket_cap_mb=100),
    Way("intrinsic, d = 1 024", 20.0, ours(1024)),
    Way("intrinsic, d = 16 384", 8.0, ours(16384)),
    Way("intrinsic, d = 16 384, static", 8.0, ours(16384, refresh=0)),
    Way("intrinsic, d = 16 384, K = 8", 8.0, ours(16384, refresh=0, subspaces=8)),
    Way("intrinsic, d = 16 384, error feedback", 0.64, ours(16384, error_feedback=True)),
    Way("intrinsic, d = 131 072", 2.0, ours(131072)),
    Way("intrinsic, d = 40 960, 8 bits, momentum 0.9", 0.5, ours(40960, bits=8), momentum=0.9, seeds=SEEDS),
    Way("intrinsic, d = 81 920, 4 bits", 2.0, ours(81920, bits=4)),
    Way("intrinsic, d = 81 920, 4 bits, error feedback", 0.2, ours(81920, bits=4, error_feedback=True)),
    Way("intrinsic, d = 81 920, 4 bits, momentum 0.9", 0.25, ours(81920, bits=4), momentum=0.9, seeds=SEEDS),
    Way(
        "intrinsic, d = 138 240, 2.37 bits, rounding fed back, momentum 0.9",
        0.25,
        ours(138240, **TERNARY),
        momentum=0.9,
        seeds=SEEDS,
    ),
]
LIKE = ("fp16_compress (torch)", "PowerSGD (torch), rank 1", "PowerSGD (torch), rank 4")  # another's rate


class Run:
    """A model in training; the workers share every batch."""

    def __init__(self, way: Way, data: Examples, lr: float | None = None, seed: int = KEY) -> None:
        self.model = mlp(seed, *SIZES)
        self.ddp = DDP(self.model, bucket_cap_mb=way.bucket_cap_mb)
        way.register(self.ddp, self.model, seed)
        self.optimiser = torch.optim.SGD(self.model.parameters(), lr or way.lr, momentum=way.momentum)
        self.batches = self._batches(*data, seed)

    def _batches(self, x: Tensor, y: Tensor, seed: int) -> Iterator[Examples]:
        for epoch in count():
            order = torch.from_numpy(keyed.permuted(keyed.derive(seed, Purpose.SAMPLE, epoch), len(y)))
            for batch in order.split(WORKERS * BATCH)[:-1]:
                index = batch.chunk(dist.get_world_size())[dist.get_rank()]
                yield fashion_mnist.normalise(x[index]), y[index]

    def step(self) -> None:
        x, y = next(self.batches)
        self.optimiser.zero_grad()
        cross_entropy(self.ddp(x), y).backward()
        self.optimiser.step()

    @torch.no_grad()
    def score(self, data: Examples) -> tuple[float, float]:
        """(mean loss, accuracy)."""
        outputs = torch.cat([self.model(fashion_mnist.normalise(x)) for x in data[0].split(2000)])
        return float(cross_entropy(outputs, data[1])), float((outputs.argmax(1) == data[1]).float().mean())


def clocked(run: Run) -> float:
    started = time.perf_counter()
    run.step()
    return time.perf_counter() - started


def timed(ways: list[Way], data: Examples, worker: int, passes: int) -> list[dict[str, float]]:
    """Seconds (least and median) and mean bytes of a step, under the limit in force.

    The ways take turns, so that a burst of other work on the machine does not fall on one of them alone; the
    least is what it disturbs least.
    """
    runs, sent = [Run(way, data) for way in ways], [0] * len(ways)
    seconds: list[list[float]] = [[] for _ in ways]
    trials = [min(clocked(run) for _ in range(UNTIMED)) for run in runs]
    steps = torch.tensor([max(1, min(MOST, int(SECONDS / trial))) for trial in trials])
    dist.broadcast(steps, 0)  # both workers must take as many
    for _ in range(passes):
        for i, run in enumerate(runs):
            time.sleep(0.1)  # the last acknowledgements of the one before
            before = link.sent(worker)
            seconds[i] += [clocked(run) for _ in range(int(steps[i]))]
            time.sleep(0.1)
            sent[i] += link.sent(worker) - before
    return [
        {"seconds": min(each), "median_seconds": statistics.median(each), "bytes": out / len(each)}
        for each, out in zip(seconds, sent, strict=True)
    ]


def learnt(
    way: Way, train: Examples, test: Examples, steps: int, lr: float | None = None, seed: int = KEY
) -> tuple[float, float]:
    """(loss, accuracy)."""
    run = Run(way, train, lr, seed)
    for _ in range(steps):
        run.step()
    loss, _ = run.score((train[0][:10_000], train[1][:10_000]))
    return loss, run.score(test)[1]


def of_seeds(way: Way, train: Examples, test: Examples, steps: int) -> dict[str, Any]:
    """Means over the way's seeds, and what each of them had."""
    found = [learnt(way, train, test, steps, seed=seed) for seed in way.seeds]
    losses, accuracies = (list(each) for each in zip(*found, strict=True))
    means = {"loss": statistics.fmean(losses), "accuracy": statistics.fmean(accuracies)}
    return {"lr": way.lr, "momentum": way.momentum, **means, "losses": losses, "accuracies": accuracies}


def tune(worker: int, ways: list[Way], train: Examples, test: Examples, steps: int) -> None:
    """Double the rate while the loss falls; where it does not at first, halve it while the loss falls."""
    for way in ways:
        if way.name in LIKE:
            continue
        lr, (least, _) = way.lr, learnt(way, train, test, steps)
        for factor in (2.0, 0.5):
            while True:
                loss, _ = learnt(way, train, test, steps, lr * factor)
                say(worker, f"{way.name}: {least:.4f} at {lr:g}, {loss:.4f} at {lr * factor:g}")
                if not loss < least:  # or NaN
                    break
                lr, least = lr * factor, loss
            if lr != way.lr:
                break


def work(options: argparse.Namespace) -> None:
    worker = options.worker
    machine = describe()
    link.come_up(worker)
    dist.init_process_group("gloo", init_method=f"file://{options.store}", rank=worker, world_size=WORKERS)
    train, test = fashion_mnist.load(fashion_mnist.find(TaskOptions(KEY)))
    link.limit(worker, None)
    dist.barrier()
    steps = 5 if options.quick else STEPS
    ways = [way for way in WAYS if not options.only or any(map(way.name.startswith, options.only))]
    if options.tune:
        tune(worker, ways, train, test, steps)
    else:
        measure(options, machine, ways, train, test, steps)
    dist.destroy_process_group()


def measure(
    options: argparse.Namespace,
    machine: dict[str, Any],
    ways: list[Way],
    train: Examples,
    test: Examples,
    steps: int,
) -> None:
    """What is learnt, then seconds and bytes at every rate of the link; the file is written after each."""
    worker, rows = options.worker, {}
    if options.again or options.only:
        rows = json.loads(options.json.read_text())["ways"]
    D = sum(p.numel() for p in mlp(KEY, *SIZES).parameters())
    setting = {"parameters": D, "batch": BATCH, "steps": steps, "workers": WORKERS, "rates": [*RATES]}

    def save() -> None:
        if worker == 0:
            ordered = {way.name: rows[way.name] for way in WAYS if way.name in rows}
            write(options.json, machine, options.quick, {"setting": setting, "ways": ordered})

    for way in ways if not options.again else []:
        rows[way.name] = rows.get(way.name, {}) | of_seeds(way, train, test, steps)
        say(worker, f"{way.name}: {rows[way.name]}")
        save()
    for rate in (1000,) if options.quick else RATES:
        link.limit(worker, rate)
        dist.barrier()
        for way, row in zip(ways, timed(ways, train, worker, 1 if options.quick else PASSES), strict=True):
            rows[way.name][f"{rate}"] = row
            say(worker, f"{rate} Mbit/s, {way.name}: {row}")
        save()
    dist.barrier()
    if worker == 0:
        show({way.name: rows[way.name] for way in ways})


def say(worker: int, line: str) -> None:
    if worker == 0:
        print(line, flush=True)


def show(rows: dict[str, dict[str, Any]]) -> None:
    rates = [rate for rate in map(str, RATES) if rate in next(iter(rows.values()))]
    head = ["hook", *(f"s at {rate} Mbit/s" for rate in rates), "bytes a step", "lr", "loss", "accuracy"]
    cells = []
    for name, row in rows.items():
        seconds = [f"{row[rate]['seconds']:.4f}" for rate in rates]
        learnt = [f"{row['lr']:g}", f"{row['loss']:.4f}", f"{row['accuracy']:.4f}"]
        cells.append([name, *seconds, f"{row[rates[0]]['bytes']:,.0f}", *learnt])
    table(head, cells)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--quick", action="store_true", help="a few steps at one rate only: does it run?")
    parser.add_argument("--json", type=Path, default=RESULTS / "ddp.json", metavar="FILE")
    parser.add_argument("--threads", type=int, default=1, help="of every worker (default: 1)")
    parser.add_argument("--only", action="append", metavar="ROW", help="rows whose name begins so")
    parser.add_argument("--tune", action="store_true", help="only look for learning rates")
    parser.add_argument("--again", action="store_true", help="only time; FILE says what was learnt")
    parser.add_argument("--worker", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--store", help=argparse.SUPPRESS)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    pool.set_threads(options.threads)
    if options.worker is not None:
        work(options)
    elif link.inside():
        link.start_workers(sys.argv)
    else:
        link.enter()


if __name__ == "__main__":
    main()
