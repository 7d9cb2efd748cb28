"""What few bits a number cost: a round in which every client's own upload is made, over one of float32.
And what a guarantee costs that looks at every upload: noise for privacy, rules against liars.

    python benchmarks/narrow.py [--quick] [--json FILE] [--threads N]

The MLP (118 282 parameters), 100 clients of five images, d = 4 096; ResNet-9 at full width (6 570 880), 10
clients of five images, d = 16 000; 1 bit up and 2 down. Guarantees: the MLP, 100 clients, d = 1 024, and
uncompressed. All in one process by turns, the best round of each. Images are random ones where there are no
data.
"""

from __future__ import annotations

from typing import Any

import torch
from machine import arguments, clock, describe, table, write
from resnet_round import build as resnet

from narrowcast import Plan, Simulation, Task, TorchTask, method
from narrowcast.aggregates import AGGREGATES
from narrowcast.privacy.clipping import Adaptive, Fixed
from narrowcast.privacy.mean import PrivateMean
from narrowcast.tasks import by_class
from narrowcast.tasks.nets import mlp

BITS = {"up_bits": 1.0, "down_bits": 2.0}
GUARANTEES: dict[str, dict[str, Any]] = {
    **{name: {"aggregate": AGGREGATES[name]()} for name in AGGREGATES},
    "noise 1": {"aggregate": PrivateMean(Fixed(1.0), noise=1.0)},
    "noise 1, coins": {"aggregate": PrivateMean(Fixed(1.0), noise=1.0), "sampling": "poisson"},
    "noise 1, adaptive": {"aggregate": PrivateMean(Adaptive(), noise=1.0)},
}  # name -> settings of a plan


def small_net() -> Task:
    """Fashion-MNIST's net and shapes, on random images: the time of a round does not ask what is on them."""
    generator = torch.Generator().manual_seed(1)
    images, labels = torch.rand(60_000, 784, generator=generator), torch.arange(60_000) % 10
    clients = by_class(labels.numpy(), clients=12_000)
    return TorchTask(
        mlp(1, 784, 128, 128, 10), train=(images, labels), test=(images[:10], labels[:10]), clients=clients
    )


def compare(task: Task, cohort: int, dim: int, rounds: int, now: Any) -> dict[str, float]:
    """Least time of a round by method, the methods taking turns."""
    plan = Plan(cohort=cohort, lr=0.01, rounds=rounds + 2, key=1)
    runs = {
        "float32": Simulation(task, method("time-varying", key=1, dim=dim), plan),
        "narrow": Simulation(task, method("time-varying", key=1, dim=dim, **BITS), plan),
    }
    least = by_turns(runs, rounds, now)
    return {**least, "ratio": least["narrow"] / least["float32"], "parameters": float(task.layout.size)}


def guaranteed(task: Task, rounds: int, now: Any, name: str, **options: Any) -> dict[str, float]:
    """Least time of a round by what is guaranteed."""
    runs = {
        guarantee: Simulation(
            task, method(name, key=1, **options), Plan(cohort=100, lr=0.01, rounds=rounds + 2, key=1, **how)
        )
        for guarantee, how in GUARANTEES.items()
    }
    return by_turns(runs, rounds, now)


def by_turns(runs: dict[str, Simulation], rounds: int, now: Any) -> dict[str, float]:
    """Least time of a round."""
    least: dict[str, float] = {}
    for number in range(rounds + 1):
        for name, run in runs.items():
            started = now()
            run.step()
            elapsed = now() - started
            if number:  # the first compiles
                least[name] = min(least.get(name, elapsed), elapsed)
    return least


def main() -> None:
    options = arguments("narrow", __doc__)
    machine = describe()
    now, unit = clock(options.threads)
    found = {"MLP, 100 clients, d = 4 096": compare(small_net(), 100, 4096, 3 if options.quick else 40, now)}
    if not options.quick:
        task, _ = resnet()
        found["ResNet-9, 10 clients, d = 16 000"] = compare(task, 10, 16_000, 4, now)
    table(
        ["round", f"float32, {unit}", "narrow", "times"],
        [
            [name, f"{r['float32']:.4g}", f"{r['narrow']:.4g}", f"{r['ratio']:.2f}"]
            for name, r in found.items()
        ],
    )
    few = 5 if options.quick else 20
    costs = {
        "static, d = 1 024": guaranteed(small_net(), few, now, "static", dim=1024),
        "uncompressed": guaranteed(small_net(), few, now, "uncompressed"),
    }
    table(
        ["a round of the MLP with 100 clients", *(f"{name}, {unit}, times mean" for name in costs)],
        [
            [name, *(f"{r[name]:.4g}, {r[name] / r['mean']:.2f}" for r in costs.values())]
            for name in GUARANTEES
        ],
    )
    write(options.json, machine, options.quick, {"rounds": found, "guarantees": costs})


if __name__ == "__main__":
    main()
