"""What `lr = auto` would choose for the app template, by one step and by trials, and what each rate leads to.

    python studies/experiments/fleet_rates.py

The template's model, data, nodes and settings, in one process: the updates are those of a fleet.
"""

from __future__ import annotations

import sys
from functools import partial
from pathlib import Path

import numpy as np

import narrowcast as nc
from narrowcast.errors import Diverged
from narrowcast.rounds import rates
from narrowcast.runs import Prepared, make_config, prepare, using_threads

TEMPLATE = Path(nc.__file__).parent / "flower" / "template"
sys.path.insert(0, str(TEMPLATE))
from app import task as own  # noqa: E402  # the template's

SETTINGS = {
    "task": "custom", "method": "time-varying", "dim": 512, "refresh": "4", "cohort": 2, "local_steps": 8,
    "local_batch": 64, "local_lr": 0.2, "evaluate_every": 0, "seed": 0,
}  # fmt: skip


def run(rounds: int, lr: float | str) -> Prepared:
    images, labels = own._digits()
    train, test = (images[:1500], labels[:1500]), (images[1500:], labels[1500:])
    clients = [np.arange(part, 1500, 2) for part in (0, 1)]
    task = nc.TorchTask(own.make_model(), train=train, test=test, clients=clients)
    return prepare(make_config({**SETTINGS, "rounds": rounds, "lr": lr}), task)


def accuracy(rounds: int, lr: float) -> str:
    try:
        *_, last = run(rounds, lr).simulation()
    except Diverged:
        return "diverged"
    return f"{last.metrics['accuracy']:.3f}"


def main() -> None:
    for rounds in (12, 48, 120):
        asked = run(rounds, "auto")
        begin = partial(nc.Simulation, asked.task, asked.method)
        step = rates.first_step(asked.plan, asked.method, begin)
        tried = rates.by_trials(asked.plan, asked.method, 2, begin, quick=True)
        row = [rounds, step.rate, accuracy(rounds, step.rate), tried.rate, accuracy(rounds, tried.rate)]
        print(
            "|", " | ".join(map(str, [*row, *(accuracy(rounds, lr) for lr in (20, 40, 80))])), "|", flush=True
        )


if __name__ == "__main__":
    rates.LONGEST = rates.SHORTEST  # trials of eight rounds: what they cost on a fleet is time
    with using_threads(1):
        main()
