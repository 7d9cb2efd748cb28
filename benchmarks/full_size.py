"""Training at full size: 124 443 648 parameters in GPT-2's shape, d = 16 384, on one machine.

    python benchmarks/full_size.py [--quick] [--json FILE] [--threads N]

GPT-2 small has 124 439 808 parameters. The five tokens that dialogue fine-tuning adds to its vocabulary (the
PersonaChat task: begin, end, two speakers, padding) have 5 x 768 more: 124 443 648. Weights and tokens are
random: memory and seconds do not depend on what they say.
"""

from __future__ import annotations

import statistics
import time
from typing import Any

import torch
from machine import Stopwatch, arguments, describe, table, write
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, gelu, linear, scaled_dot_product_attention

from narrowcast import Plan, Simulation, TorchTask, method
from narrowcast.tasks.init import initialise
from narrowcast.tasks.partition import iid

PARAMETERS = 124_443_648
LAYERS, WIDTH, HEADS, POSITIONS = 12, 768, 12, 1024
VOCABULARY = 50_257 + 5
DIM, REFRESH, SUBSPACES = 16_384, 5, 8
CLIENTS, COHORT, TOKENS = 8, 2, 32
PARTS = ("gradient", "project", "expand", "wire", "digest")
METHODS: dict[str, dict[str, Any]] = {
    "static": {},
    "time-varying": {"refresh": REFRESH},
    "k-subspace": {"subspaces": SUBSPACES},
}


class Block(nn.Module):
    """Attention and a perceptron, each behind a norm and beside a residual path."""

    def __init__(self) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.attention, self.mix = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        query, key, value = self.attention(self.norm1(x)).unflatten(-1, (3, HEADS, -1)).permute(2, 0, 3, 1, 4)
        y = scaled_dot_product_attention(query, key, value, is_causal=True)
        x = x + self.mix(y.transpose(1, 2).flatten(2))
        changed: Tensor = self.down(gelu(self.up(self.norm2(x)), approximate="tanh"))
        return x + changed


class GPT2(nn.Module):
    """(B, T) tokens -> (B, T, vocabulary) logits; the output head is the token embedding, counted once."""

    def __init__(self) -> None:
        super().__init__()
        self.tokens, self.positions = nn.Embedding(VOCABULARY, WIDTH), nn.Embedding(POSITIONS, WIDTH)
        self.blocks = nn.Sequential(*(Block() for _ in range(LAYERS)))
        self.norm = nn.LayerNorm(WIDTH)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.tokens(tokens) + self.positions(torch.arange(tokens.shape[1]))
        return linear(self.norm(self.blocks(x)), self.tokens.weight)


def per_sequence(logits: Tensor, targets: Tensor) -> Tensor:
    """(B,) mean loss of the tokens of each sequence."""
    return cross_entropy(logits.transpose(1, 2), targets, reduction="none").mean(1)


def build() -> TorchTask:
    tokens = torch.randint(VOCABULARY, (CLIENTS, TOKENS + 1), generator=torch.Generator().manual_seed(1))
    examples = tokens[:, :-1], tokens[:, 1:]
    with torch.device("meta"):
        model = GPT2()
    model = model.to_empty(device="cpu")
    for part in model.modules():
        if isinstance(part, nn.LayerNorm):
            part.reset_parameters()
    task = TorchTask(
        initialise(model, key=1, gain=1.0),
        per_sequence,
        train=examples,
        test=(examples[0][:1], examples[1][:1]),
        clients=iid(CLIENTS, CLIENTS),
        metrics=lambda outputs, targets: {},
        metric="loss",
        higher_is_better=False,
    )
    assert task.layout.size == PARAMETERS
    return task


def measure(task: TorchTask, name: str, watch: Stopwatch, rounds: int) -> dict[str, Any]:
    # One round more than is taken, so that none of them evaluates.
    plan = Plan(cohort=COHORT, lr=0.1, rounds=rounds + 1, key=1)
    started = time.perf_counter()
    simulation = Simulation(task, method(name, dim=DIM, key=1, **METHODS[name]), plan)
    start_up = time.perf_counter() - started
    watch.take()
    records, parts, equal = [], [], 0
    for _ in range(rounds):
        records.append(simulation.step())
        seconds, digests = watch.take()
        parts.append(seconds)
        equal += len(digests) == 2 and digests[0] == digests[1]  # the server's, then the client's
        r = records[-1]
        print(f"{name}: round {r.round}, {r.seconds:.1f} s, loss {r.loss:.4f}", flush=True)
    total = [r.seconds for r in records]
    by_part = {p: [s.get(p, 0.0) for s in parts] for p in PARTS}
    by_part["rest"] = [t - sum(by_part[p][i] for p in PARTS) for i, t in enumerate(total)]
    visits = rounds * COHORT
    return {
        "rounds": rounds,
        "start_up_seconds": start_up,
        "seconds_a_round": {"median": statistics.median(total), "least": min(total)},
        "seconds_by_part_median": {p: statistics.median(s) for p, s in by_part.items()},
        "seconds_by_part_least": {p: min(s) for p, s in by_part.items()},
        "peak_memory_gib": max(r.peak_memory for r in records) / 2**30,
        "bytes_up_a_client": sum(r.up for r in records) / visits,
        "bytes_down_a_client": sum(r.down for r in records) / visits,
        "bytes_uncompressed": 4 * PARAMETERS,
        "rounds_with_equal_digests": equal,
        "first_loss": records[0].loss,
        "last_loss": records[-1].loss,
    }


def main() -> None:
    options = arguments("full_size", __doc__)
    machine = describe()
    watch = Stopwatch()
    watch.watch_narrowcast()
    started = time.perf_counter()
    task = build()
    print(f"{task.layout.size:,} parameters, built in {time.perf_counter() - started:.1f} s", flush=True)
    watch.watch(task, "gradient", "gradient")
    rounds = 2 if options.quick else 20
    results = {name: measure(task, name, watch, rounds) for name in METHODS}
    print(
        f"\nseconds a round (median of {rounds}); D = {PARAMETERS:,}, d = {DIM:,}, {COHORT} clients a round"
    )
    table(
        ["method", "round", *PARTS, "rest", "peak GiB", "up B/client", "down B/client", "digests equal"],
        [
            [
                name,
                f"{r['seconds_a_round']['median']:.2f}",
                *(f"{r['seconds_by_part_median'][p]:.3f}" for p in (*PARTS, "rest")),
                f"{r['peak_memory_gib']:.2f}",
                f"{r['bytes_up_a_client']:,.0f}",
                f"{r['bytes_down_a_client']:,.0f}",
                f"{r['rounds_with_equal_digests']}/{r['rounds']}",
            ]
            for name, r in results.items()
        ],
    )
    shape = {"parameters": PARAMETERS, "dim": DIM, "cohort": COHORT, "tokens_a_client": TOKENS}
    write(options.json, machine, options.quick, {"setting": shape, "methods": results})


if __name__ == "__main__":
    main()
