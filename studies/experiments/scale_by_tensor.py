"""Does A do better when it knows the model's tensors? theta = theta0 + S A Sigma, one power of two a tensor.

    python studies/experiments/scale_by_tensor.py          (Fashion-MNIST; three minutes of one core)

The model is trained in phi = theta / S, whose gradient is S g: a change of the task alone, exact since S has
powers of two, so the methods need not know of it. Three rules for S: none; `init`, in proportion to the size
of a tensor's first values (those of its layer, where they are zero); `count`, to the fourth root of one over
their number, so that small tensors move more. Each rule and d has its rate searched by factors of two, on a
held-out tenth with seed 100, and is then run with three seeds. Writes results/scale-by-tensor.md.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

import narrowcast as nc
from narrowcast.errors import Diverged
from narrowcast.intervals import student
from narrowcast.numerics import pool
from narrowcast.runs import make_config
from narrowcast.tasks import build

PAGE = Path(__file__).parent / "results" / "scale-by-tensor.md"
HEAD = """# Scale by tensor: theta = theta0 + S A Sigma

`python studies/experiments/scale_by_tensor.py`: static on Fashion-MNIST (MLP, 118 282 parameters, 12 000
clients of one class, 100 a round, two epochs). S has one power of two a tensor: `init` in proportion to the
size of its first values, `count` to the fourth root of one over their number, both relative to the first
tensor. Every row has its rate searched by factors of two (seed 100, a held-out tenth of the training set; the
chosen rate is bold; 0: diverged). Against none: the mean difference seed by seed, and the half width of
Student's 95 % interval.

"""
DIMS, SEEDS, TUNED, FIRST, MOST = (1024, 4096), (0, 1, 2), 100, 8.0, 5


def of_init(parts: dict[str, Tensor]) -> list[float]:
    sizes: list[float] = []
    for part in parts.values():
        size = float(part.norm()) / math.sqrt(part.numel())
        sizes.append(size or sizes[-1])
    return sizes


def of_count(parts: dict[str, Tensor]) -> list[float]:
    return [part.numel() ** -0.25 for part in parts.values()]


RULES: dict[str, Callable[[dict[str, Tensor]], list[float]]] = {
    "none": lambda parts: [1.0] * len(parts),
    "init": of_init,
    "count": of_count,
}


class Scaled(nc.Task):
    """A task in phi = theta / S."""

    def __init__(self, task: Any, rule: str) -> None:
        self.task, self.name, self.layout, self.clients = task, task.name, task.layout, task.clients
        self.metric, self.higher_is_better = task.metric, task.higher_is_better
        parts = task.layout.split(task.theta0())
        sizes = RULES[rule](parts)
        self.powers = [round(math.log2(size / sizes[0])) for size in sizes]
        self.S = torch.cat(
            [
                torch.full((p.numel(),), 2.0**power)
                for p, power in zip(parts.values(), self.powers, strict=True)
            ]
        )

    def theta0(self) -> Tensor:
        return self.task.theta0() / self.S

    def gradient(self, theta: Tensor, batch: nc.Batch) -> tuple[float, Tensor]:
        loss, g = self.task.gradient(theta * self.S, batch)
        return loss, g.mul_(self.S)

    def loss(self, theta: Tensor, batch: nc.Batch) -> float:
        return float(self.task.loss(theta * self.S, batch))

    def evaluate(self, theta: Tensor) -> dict[str, float]:
        found: dict[str, float] = self.task.evaluate(theta * self.S)
        return found

    def buffer(self) -> Tensor:
        buffer: Tensor = self.task.buffer()
        return buffer

    def state_dict(self, theta: Tensor) -> dict[str, Tensor]:
        state: dict[str, Tensor] = self.task.state_dict(theta * self.S)
        return state


def accuracy(rule: str, dim: int, lr: float, seed: int, validation: bool = False) -> float:
    """After two epochs; 0 where it diverged."""
    chosen = {"task": "fashion-mnist", "method": "static", "dim": dim, "lr": lr, "seed": seed, "epochs": 2}
    config = make_config({**chosen, "validation": validation, "evaluate_every": 0})
    task = Scaled(build(config.task, config.task_options()), rule)
    plan = replace(config.plan(len(task.clients), b"12345678"), evaluate_every=0)
    method = nc.method("static", dim=dim, key=seed)
    try:
        *_, last = nc.simulate(task, method, plan)
    except Diverged:
        return 0.0
    return last.metrics["accuracy"]


def tuned(rule: str, dim: int) -> dict[float, float]:
    """Rates and what they reached: three, then one more while the best lies on the border, MOST at most."""
    found = {lr: accuracy(rule, dim, lr, TUNED, True) for lr in (FIRST / 2, FIRST, FIRST * 2)}
    while len(found) < MOST:
        best = max(found, key=lambda lr: found[lr])
        more = best / 2 if best == min(found) else best * 2
        if more in found or best not in (min(found), max(found)):
            break
        found[more] = accuracy(rule, dim, more, TUNED, True)
    return dict(sorted(found.items()))


def shown(rates: dict[float, float], best: float) -> str:
    cells = {lr: f"{lr:g}: {value:.4f}" for lr, value in rates.items()}
    return ", ".join(f"**{cell}**" if lr == best else cell for lr, cell in cells.items())


def powers(rule: str) -> str:
    options = make_config({"task": "fashion-mnist", "epochs": 1}).task_options()
    return " ".join(map(str, Scaled(build("fashion-mnist", options), rule).powers))


def row(dim: int, rule: str, plain: list[float]) -> tuple[list[float], str, float | None]:
    """(accuracy by seed, the line of the table, by how much it is surely ahead of `plain`)."""
    rates = tuned(rule, dim)
    best = max(rates, key=lambda lr: rates[lr])
    got = [accuracy(rule, dim, best, seed) for seed in SEEDS]
    cells = [str(dim), rule, powers(rule), shown(rates, best), ", ".join(f"{a:.4f}" for a in got)]
    cells.append(f"{math.fsum(got) / len(got):.4f}")
    if not plain:
        return got, f"| {' | '.join(cells)} | |", None
    m, e = student([a - b for a, b in zip(got, plain, strict=True)])
    return got, f"| {' | '.join(cells)} | {m:+.4f} +- {e:.4f} |", m - e


def lines() -> Iterator[str]:
    """The table, and a verdict."""
    yield "| d | rule | powers of two | rates: held-out accuracy | accuracy by seed | mean | against none |"
    yield "|---:|---|---|---|---|---:|---:|"
    ahead: list[str] = []
    for dim in DIMS:
        plain: list[float] = []
        for rule in RULES:
            got, line, surely = row(dim, rule, plain)
            plain = plain or got
            yield line
            if surely is not None and surely > 0:
                ahead.append(f"`{rule}` at d = {dim}")
    yield ""
    yield f"Verdict: ahead of A as it is, by Student's 95 % interval: {', '.join(ahead) or 'none'}."


def main() -> None:
    torch.set_num_threads(1)
    pool.set_threads(1)
    rows = []
    for line in lines():
        print(line, flush=True)
        rows.append(line)
    PAGE.write_text(HEAD + "\n".join(rows) + "\n")


if __name__ == "__main__":
    main()
