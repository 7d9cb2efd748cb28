"""What a simulated round costs beside its gradient: CIFAR-10, ResNet-9 at full width, 100 clients x 5 images.

    python benchmarks/resnet_round.py [--quick] [--json FILE] [--threads N]

Overhead is everything in a round but the gradient and the evaluation, as a share of one bare gradient of the
500 images. With --threads 1 the seconds are those of the CPU, which other processes do not lengthen much.
Without the data random images go the same way. The second table asks whether channels_last is quicker.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from machine import Stopwatch, arguments, clock, describe, table, write
from torch import Tensor, nn

from narrowcast import Plan, Simulation, TorchTask, method
from narrowcast.rounds.task import Batch
from narrowcast.tasks import cifar10
from narrowcast.tasks.judging import cross_entropy
from narrowcast.tasks.nets import resnet9
from narrowcast.tasks.options import TaskOptions, split
from narrowcast.tasks.places import DATA_VARIABLE

COHORT, IMAGES, DIM = 100, 5, 16_000
PARTS = ("project", "expand", "wire", "digest", "step", "rest")
METHODS: dict[str, tuple[str, dict[str, Any]]] = {
    "static": ("static", {"dim": DIM}),
    "time-varying": (
        "time-varying",
        {"dim": DIM, "refresh": 1},
    ),  # the dearest case
    "k-subspace": ("k-subspace", {"dim": DIM, "subspaces": 8}),
    "uncompressed": ("uncompressed", {}),
}


def build() -> tuple[TorchTask, str]:
    """The task, and which images it has."""
    shared = Path(__file__).resolve().parents[2] / "shared" / "data"
    options = TaskOptions(key=1, data=Path(os.environ.get(DATA_VARIABLE, shared)))
    try:
        return cifar10.build_small(options), "cifar10-small"
    except FileNotFoundError:
        generator = torch.Generator().manual_seed(1)
        images = torch.randint(256, (5000, 3, 32, 32), dtype=torch.uint8, generator=generator)
        labels = torch.arange(5000) % 10
        return TorchTask(
            resnet9(options.key),
            train=(images, labels),
            test=(images[:100], labels[:100]),
            clients=split(options, labels.numpy()),
            augment=cifar10.augment,
            prepare=cifar10.normalise,
            chunk=cifar10.CHUNK,
        ), "random images"


def bare_gradient(task: TorchTask, now: Callable[[], float]) -> float:
    """Seconds of one gradient of a round's images, in one batch."""
    count = COHORT * IMAGES
    batch = Batch(np.arange(count), torch.full((count,), 1 / count), 1)
    started = now()
    TorchTask.gradient(task, task.buffer(), batch)
    return now() - started


def measure(task: TorchTask, label: str, watch: Stopwatch, rounds: int) -> dict[str, Any]:
    """The round with the least overhead of several, by part."""
    name, options = METHODS[label]
    # One round more than is taken, so that none of them evaluates.
    plan = Plan(cohort=COHORT, lr=0.01, rounds=rounds + 1, key=1)
    simulation = Simulation(task, method(name, key=1, **options), plan)
    measured = []
    for _ in range(rounds):
        watch.take()
        with watch.part("rest"):
            simulation.step()
        measured.append(watch.take()[0])
    best = min(measured, key=lambda parts: sum(parts.values()) - parts["gradient"])
    return {"gradient": best["gradient"], **{p: best.get(p, 0.0) for p in PARTS}}


def channels_last(now: Callable[[], float], width: int, images: int, repeats: int) -> dict[str, float]:
    """Least seconds of a forward and backward pass by layout, the layouts taking turns."""
    x = cifar10.normalise(torch.randint(256, (images, 3, 32, 32), dtype=torch.uint8)).contiguous()
    y = torch.arange(images) % 10
    plain, last = resnet9(1, width), resnet9(1, width)
    last.to(memory_format=torch.channels_last)  # type: ignore[call-overload]  # torch's stub lacks it
    inputs = x.contiguous(memory_format=torch.channels_last)
    ways: dict[str, tuple[nn.Module, Tensor]] = {
        "contiguous": (plain, x),
        "inputs channels_last": (plain, inputs),
        "weights and inputs channels_last": (last, inputs),
    }
    seconds: dict[str, float] = {}
    for _ in range(repeats + 1):
        for label, (model, given) in ways.items():
            started = now()
            cross_entropy(model(given), y).mean().backward()
            elapsed = now() - started
            seconds[label] = min(seconds.get(label, elapsed), elapsed)
    return seconds


def main() -> None:
    options = arguments("resnet_round", __doc__)
    machine = describe()
    now, unit = clock(options.threads)
    task, data = build()
    layouts = {}
    for width in (16, 64):
        found = channels_last(now, width, 16 if options.quick else 50, 1 if options.quick else 5)
        table(
            [f"gradient of ResNet-9 of width {width}, by layout", "seconds", "against contiguous"],
            [[k, f"{s:.3f}", f"{s / found['contiguous']:.3f}"] for k, s in found.items()],
        )
        layouts[str(width)] = found
    watch = Stopwatch(now)
    watch.watch_narrowcast()
    for kind in {type(method(name)) for name, _ in METHODS.values()}:
        watch.watch(kind, "step", "step")
    watch.watch(task, "gradient", "gradient")
    rounds = 1 if options.quick else 2
    results: dict[str, dict[str, float]] = {}
    bare: list[float] = []
    for label in METHODS:
        bare.append(bare_gradient(task, now))
        results[label] = measure(task, label, watch, rounds)
        print(f"{label}: gradient {results[label]['gradient']:.2f} s, bare {bare[-1]:.2f} s", flush=True)
    gradient = min(bare)
    for r in results.values():
        r["overhead"] = sum(r[p] for p in PARTS)
        r["overhead_percent_of_bare"] = 100 * r["overhead"] / gradient
        r["overhead_percent_of_own"] = 100 * r["overhead"] / r["gradient"]
        r["round"] = r["gradient"] + r["overhead"]
    print(f"\n{unit} a round of {COHORT} x {IMAGES} images ({data}); bare gradient {gradient:.2f} s")
    table(
        ["method", "round", "gradient", *PARTS, "overhead", "% of bare", "% of own gradient"],
        [
            [
                label,
                f"{r['round']:.2f}",
                f"{r['gradient']:.2f}",
                *(f"{r[p]:.3f}" for p in PARTS),
                f"{r['overhead']:.3f}",
                f"{r['overhead_percent_of_bare']:.2f}",
                f"{r['overhead_percent_of_own']:.2f}",
            ]
            for label, r in results.items()
        ],
    )
    setting = {
        "data": data,
        "clock": unit,
        "cohort": COHORT,
        "images_a_client": IMAGES,
        "dim": DIM,
        "rounds": rounds,
        "parameters": task.layout.size,
    }
    written: dict[str, Any] = {
        "setting": setting,
        "bare_gradient": bare,
        "methods": results,
        "channels_last": layouts,
    }
    write(options.json, machine, options.quick, written)


if __name__ == "__main__":
    main()
