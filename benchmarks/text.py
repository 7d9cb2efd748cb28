"""A language model on this CPU: tokens a second, and what each way of saving is worth.

    python benchmarks/text.py [--model smollm2] [--quick] [--json FILE] [--threads N]

A gradient over 12 sequences of the lengths that PersonaChat's have, random tokens, taken as the tasks take it
and then with one thing changed at a time. `tiny` needs no files.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from machine import RESULTS, clock, describe, table, write

from narrowcast.numerics import pool
from narrowcast.rounds.task import Batch
from narrowcast.tasks.options import TaskOptions
from narrowcast.tasks.text.models import language_model
from narrowcast.tasks.text.task import LanguageModel

SEQUENCES = 12


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--model", default="smollm2", help="a folder, smollm2, or tiny")
    parser.add_argument("--quick", action="store_true", help="once each")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--json", type=Path, default=RESULTS / "text.json", metavar="FILE")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    pool.set_threads(options.threads)
    now, unit = clock(options.threads)
    machine = describe()

    def gradient(
        count: int = SEQUENCES, at_once: int = 512, all_scored: bool = False, padded: bool = False, **how: Any
    ) -> Callable[[], object]:
        module = language_model(TaskOptions(0, model=options.model, **how), "smollm2").module
        task = LanguageModel(
            module,
            train=(ids if not padded else _longest(ids), lengths - 1 if all_scored else scored),
            test=(ids[:1], scored[:1]),
            clients=[np.arange(SEQUENCES)],
            name="bench",
            bf16=how.get("precision") == "bf16",
            at_once=at_once,
        )
        batch = Batch(np.arange(count), torch.full((count,), 1 / count), 0)
        return lambda: task.gradient(task.buffer(), batch)

    draw = np.random.default_rng(0)
    lengths = torch.from_numpy(np.clip(draw.normal(85, 20, SEQUENCES), 40, 128).astype(int))
    scored = torch.from_numpy(np.clip(draw.normal(13, 5, SEQUENCES), 3, 30).astype(int))
    ids = [draw.integers(3, 250, int(n)).tolist() for n in lengths]
    ways: dict[str, dict[str, Any]] = {
        "as the tasks do": {},
        "a sequence at a time": {"at_once": 1},
        "passes of 2048 tokens": {"at_once": 2048},
        "padded to the longest": {"padded": True},
        "the vocabulary at every position": {"all_scored": True},
        "activations computed twice": {"checkpointing": True},
        "LoRA, r = 4": {"trainable": "lora"},
        "one sequence": {"count": 1},
        "one sequence in bf16": {"count": 1, "precision": "bf16"},
    }
    rows: list[dict[str, Any]] = []
    for name, how in ways.items():
        call = gradient(**how)
        seconds = min(_timed(call, now) for _ in range(1 if options.quick else 2))
        tokens = int(lengths[: how.get("count")].sum())
        rows.append({"how": name, "seconds": seconds, "tokens_a_second": tokens / seconds})
        print(f"{name}: {seconds:.2f} {unit}", flush=True)
        del call
    base = rows[0]["seconds"]
    cells = [
        [r["how"], f"{r['seconds']:.2f}", f"{r['seconds'] / base:.2f}", f"{r['tokens_a_second']:.1f}"]
        for r in rows
    ]
    table([f"gradient of {options.model}, {lengths.sum()} tokens", unit, "ratio", "tokens a second"], cells)
    result = {"model": options.model, "clock": unit, "tokens": int(lengths.sum()), "rows": rows}
    write(options.json, machine, options.quick, result)


def _longest(ids: list[list[int]]) -> list[list[int]]:
    """Every sequence as long as the longest, by more tokens at its start."""
    longest = max(map(len, ids))
    return [[3] * (longest - len(s)) + s for s in ids]


def _timed(call: Callable[[], object], now: Callable[[], float]) -> float:
    started = now()
    call()
    return now() - started


if __name__ == "__main__":
    main()
