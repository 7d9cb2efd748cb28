"""Where FetchSGD is stable: rates, momenta, sketch sizes and k, zeroing against the printed subtraction.

    python studies/experiments/fetchsgd_stability.py digits          (or fashion-mnist, or cells)

Trains on the training set less a held-out tenth, seed 100, 240 rounds of the triangle schedule, one thread,
and prints a line of results/fetchsgd-stability.md a run. Downloads are not counted, which changes no accuracy
and saves most of the time. `cells` trains nothing: it subtracts from the sketch of one random
vector again and again, and prints how its norm goes.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import replace

import torch

from narrowcast.errors import Diverged
from narrowcast.methods import SGD, FetchSGD, Momentum, Uncompressed
from narrowcast.numerics import CountSketch, largest, pool
from narrowcast.rounds import Simulation, exchange
from narrowcast.runs import make_config
from narrowcast.tasks import build

ROUNDS = 240


class Quick(Simulation):
    """A simulation that sends one download a round."""

    def _download(self, came, round, record):  # type: ignore[no-untyped-def]
        return exchange.send_down(self.method, self.server, round, self._client.version)


def settings(D: int) -> Iterator[dict[str, float]]:
    """The published setting first, then one or two things changed at a time."""
    published = {"lr": 0.4, "momentum": 0.9, "sketch_columns": D // 20, "k": D // 130, "printed": False}
    yield published
    for columns in (D // 20, D // 200, D // 1000):
        for printed in (True, False):
            for momentum in (0.9, 0.0):
                yield published | {"sketch_columns": columns, "printed": printed, "momentum": momentum}
    for lr in (0.1, 1.6):
        for momentum in (0.9, 0.0):
            yield published | {"lr": lr, "momentum": momentum}
    for k in (D // 650, D // 10):
        for printed in (True, False):
            yield published | {"k": k, "printed": printed}
    for lr in (0.1, 0.025):
        for k in (D // 650, D // 130):
            yield published | {"k": k, "lr": lr}
    yield published | {"k": D // 650, "momentum": 0.0}
    for k in (D // 10, D // 650):
        yield published | {"sketch_columns": D // 200, "k": k}
        yield published | {"sketch_columns": D // 200, "k": k, "lr": 0.1}


def outcome(task, base, lr, method):  # type: ignore[no-untyped-def]
    config = base.model_copy(update={"lr": lr})
    run = Quick(task, method, replace(config.plan(len(task.clients), b"12345678"), evaluate_every=0))
    try:
        *_, last = run
    except Diverged:
        return f"diverged in round {run.round} | "
    return f"{last.metrics['accuracy']:.3f} | {last.loss:.2f}"


def cells(D: int = 118_282, steps: tuple[int, ...] = (1, 5, 10, 20)) -> None:
    """|e| after so many e <- e - S(top_k(estimate(e))), over |e| at first."""
    print("| columns | k | chosen that equal another in size | " + " | ".join(map(str, steps)) + " |")
    print("|---:|---:|---:|" + "---:|" * len(steps))
    for columns in (D // 20, D // 200, D // 1000):
        for k in (D // 650, D // 130, D // 10):
            sketch = CountSketch(D, 5, columns, 7)
            e = sketch.sketch(torch.randn(D, generator=torch.Generator().manual_seed(0)))
            first, equal, norms = e.norm().item(), 0.0, []
            for step in range(1, steps[-1] + 1):
                found = sketch.estimate(e)
                where = largest.largest(found, k)
                if step == 1:
                    equal = 1 - len(found[where].abs().unique()) / k
                e = e - sketch.sketch(torch.zeros(D).index_copy_(0, where, found[where]))
                if step in steps:
                    norms.append(f"{e.norm().item() / first:.3g}")
            print(f"| {columns} | {k} | {equal:.0%} | " + " | ".join(norms) + " |", flush=True)


def main(name: str) -> None:
    torch.set_num_threads(1)
    pool.set_threads(1)
    if name == "cells":
        return cells()
    base = make_config(
        {"task": name, "method": "fetchsgd", "validation": True, "seed": 100, "rounds": ROUNDS}
    )
    task = build(name, base.task_options())
    D, seen = task.layout.size, []
    print(
        f"{name}, D = {D:,}\n\n| rows x columns | k | momentum | peak lr | after a step | accuracy | loss |"
    )
    print("|---|---:|---:|---:|---|---:|---:|", flush=True)
    for s in settings(D):
        if s not in seen:
            seen.append(s)
            rule = "subtract" if s["printed"] else "zero"
            line = f"| 5 x {s['sketch_columns']} | {s['k']} | {s['momentum']} | {s['lr']} | {rule} |"
            method = FetchSGD(key=base.key, **{name: s[name] for name in s if name != "lr"})
            print(line, outcome(task, base, s["lr"], method), "|", flush=True)
    for lr in (0.1, 0.4, 1.6):
        for momentum in (0.0, 0.9):
            method = Uncompressed(Momentum(momentum) if momentum else SGD())
            line = f"| uncompressed | | {momentum} | {lr} | |"
            print(line, outcome(task, base, lr, method), "|", flush=True)


if __name__ == "__main__":
    main(sys.argv[1])
