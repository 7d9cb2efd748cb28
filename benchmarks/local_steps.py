"""Clients trained by themselves: a loop, torch.func.vmap, by factors. One thread, about a minute.

    python benchmarks/local_steps.py [--quick] [--json FILE]

100 clients of the MLP (118 282 parameters) and 40 of a conv net (55 338) take one gradient or five SGD steps
each on their five images. After its first step a client has weights of its own, and a chunk of C clients has
C times as many of them; by factors (tasks/factors.py) there are none. The last rows are whole rounds: several
methods in one process by turns, the best of each.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from machine import arguments, describe, table, write
from narrow import small_net
from peers import conv_net
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap
from torch.nn.functional import cross_entropy

from narrowcast import Plan, Simulation, method
from narrowcast.numerics import pool
from narrowcast.numerics.flat import FlatParameters
from narrowcast.tasks.factors import Factors, plain_layers
from narrowcast.tasks.nets import mlp

IMAGES, RATE = 5, 0.1
Way = Callable[[int], object]  # steps -> whatever


def ways_of(
    module: nn.Module, clients: int, sizes: tuple[int, ...], whole: tuple[int, ...]
) -> dict[str, Way]:
    flat = FlatParameters(module)
    theta = flat.theta.clone()
    x, y = torch.randn(clients, IMAGES, 784), torch.randint(0, 10, (clients, IMAGES))

    def objective(theta: Tensor, x: Tensor, y: Tensor) -> Tensor:
        return cross_entropy(functional_call(module, flat.layout.split(theta), (x,)), y)

    shared, own = vmap(grad(objective), in_dims=(None, 0, 0)), vmap(grad(objective))

    def loop(steps: int) -> None:
        for c in range(clients):
            flat.theta.copy_(theta)
            for _ in range(steps):
                flat.grad.zero_()
                cross_entropy(module(x[c]), y[c]).backward()
                flat.theta.sub_(flat.grad, alpha=RATE)

    def together(steps: int) -> None:
        for _ in range(steps):
            flat.grad.zero_()
            cross_entropy(module(x.flatten(0, 1)), y.flatten()).backward()

    def chunks(size: int, steps: int) -> None:
        for first in range(0, clients, size):
            part = slice(first, first + size)
            weights = theta - RATE * shared(theta, x[part], y[part])
            for _ in range(steps - 1):
                weights = weights - RATE * own(weights, x[part], y[part])

    def factors(size: int, summed: bool, steps: int) -> None:
        flat.load(theta)
        rows = torch.empty(10, flat.layout.size)
        for first in range(0, clients, size):
            inputs, targets = x[first : first + size], y[first : first + size].flatten()

            def losses(outputs: Tensor, targets: Tensor = targets) -> Tensor:
                each = cross_entropy(outputs.flatten(0, 1), targets, reduction="none")
                return each.view(-1, IMAGES).mean(1)

            made = Factors(plain_layers(module), flat.layout, [(inputs, losses)] * steps, RATE)
            if summed:
                made.sum(rows[0], slice(None), torch.ones(len(inputs)))
            for i in range(0, 0 if summed else len(inputs), len(rows)):
                made.fill(rows[: len(inputs) - i], i)

    found: dict[str, Way] = {"loop": loop}
    found |= {f"vmap, {size} at once": partial(chunks, size) for size in sizes}
    for size in whole:
        found[f"factors, {size} at once, each client's update"] = partial(factors, size, False)
        found[f"factors, {size} at once, their sum"] = partial(factors, size, True)
    return found | {"all images at theta, no clients": together}


def by_turns(calls: dict[str, Callable[[], object]], repeats: int) -> dict[str, float]:
    """The least CPU seconds of each, taking turns, the first turn not counted."""
    least: dict[str, float] = {}
    for turn in range(repeats + 1):
        for name, call in calls.items():
            clock = time.process_time()
            call()
            if turn:
                least[name] = min(least.get(name, 9e9), time.process_time() - clock)
    return least


def walks(module: nn.Module, net: str, repeats: int, *more: Any) -> list[dict[str, Any]]:
    made = ways_of(module, *more)
    times = {s: by_turns({n: partial(way, s) for n, way in made.items()}, repeats) for s in (1, 5)}
    return [{"net": net, "how": n, **{f"{s}_steps_ms": times[s][n] * 1e3 for s in (1, 5)}} for n in made]


def rounds(repeats: int) -> list[dict[str, Any]]:
    """Rounds of the MLP, 100 clients, d = 1 024, over one of static with one step."""
    task, steps = small_net(), {"local_steps": 5, "local_lr": RATE}
    asked: dict[str, tuple[str, dict[str, Any], dict[str, Any]]] = {
        "static": ("static", {"dim": 1024}, {}),
        "k-subspace, K = 8": ("k-subspace", {"dim": 1024, "subspaces": 8}, {}),
        "uncompressed": ("uncompressed", {}, {}),
        "uncompressed, per client": ("uncompressed", {}, {"per_client": True}),
        "static, five steps": ("static", {"dim": 1024}, steps),
        "fedavg, five steps, per client": (
            "fedavg",
            {},
            {**steps, "per_client": True},
        ),
    }
    runs = {
        name: Simulation(
            task, method(kind, key=1, **options), Plan(cohort=100, lr=RATE, rounds=999, key=1, **plan)
        )
        for name, (kind, options, plan) in asked.items()
    }
    least = by_turns({name: run.step for name, run in runs.items()}, repeats)
    return [{"round": n, "ms": s * 1e3, "over_static": s / least["static"]} for n, s in least.items()]


def main() -> None:
    options = arguments("local_steps", __doc__)
    torch.set_num_threads(1)
    pool.set_threads(1)
    few = 2 if options.quick else 5
    found = walks(mlp(0, 784, 128, 128, 10), "MLP", few, 100, (10, 50, 100), (10, 50, 100))
    found += walks(conv_net(), "conv net", few, 40, (5, 10, 40), ())
    whole = rounds(3 if options.quick else 30)
    cells = [[r["net"], r["how"], f"{r['1_steps_ms']:.0f}", f"{r['5_steps_ms']:.0f}"] for r in found]
    table(["net", "CPU ms", "1 step", "5 steps"], cells)
    table(
        ["a round of the MLP", "CPU ms", "over static"],
        [[r["round"], f"{r['ms']:.1f}", f"{r['over_static']:.2f}"] for r in whole],
    )
    write(options.json, describe(), options.quick, {"rows": found, "rounds": whole})


if __name__ == "__main__":
    main()
