"""Run folders that nobody ran: the files that a reader finds, with numbers made up by a formula."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import msgspec

from narrowcast import __version__
from narrowcast.rounds import records
from narrowcast.rounds.records import RoundRecord
from narrowcast.runs import run_folder
from narrowcast.runs.reading import make_config
from narrowcast.runs.run_folder import Facts

METHODS = ("static", "time-varying", "k-subspace", "uncompressed")


def write_run(
    folder: Path, rounds: int = 24, done: int | None = None, label: str = "", seed: int = 0, **settings: Any
) -> Path:
    """A run of `rounds` rounds of which `done` (all, unless said) are there."""
    folder.mkdir(parents=True, exist_ok=True)
    every = settings.pop("evaluate_every", 4)
    method = settings.pop("method", "static")
    table = {
        "task": "digits",
        "method": method,
        "rounds": rounds,
        "seed": seed,
        "name": label,
        "clients": 287,
    }
    config = make_config({**table, "cohort": 29, **settings})
    (folder / run_folder.CONFIG).write_bytes(run_folder.to_toml(config))
    facts = Facts(
        label or method,
        "digits",
        method,
        301_066,
        287,
        rounds,
        10,
        "accuracy",
        True,
        "",
        seed,
        __version__,
        "",
    )
    (folder / run_folder.FACTS).write_bytes(msgspec.json.encode(facts))
    made = [
        _record(i, seed, (i + 1) % every == 0 or i + 1 == rounds)
        for i in range(rounds if done is None else done)
    ]
    (folder / run_folder.RECORDS).write_bytes(b"".join(map(records.to_line, made)))
    if done is None:
        (folder / run_folder.MODEL).write_bytes(b"")
    return folder


def append_rounds(folder: Path, first: int, last: int) -> None:
    """What a run writes as it goes on."""
    with (folder / run_folder.RECORDS).open("ab") as file:
        for i in range(first, last):
            file.write(records.to_line(_record(i, 0, True)))


def _record(i: int, seed: int, evaluated: bool) -> RoundRecord:
    wave = math.sin(i * 12.9898 + seed) * 0.05
    return RoundRecord(
        round=i,
        epoch=i // 10,
        version=i + 1,
        rate=1.0,
        loss=2.3 * math.exp(-i / 200) + abs(wave),
        clients=28,
        up=60_000 + i,
        down=70_000,
        down_first=9_000 if i < 10 else 0,
        down_dense=800,
        down_dense_again=800,
        down_catch_up=5_000,
        dropped={"no answer": 1} if i % 7 == 3 else {},
        metrics={"accuracy": 0.95 - 0.8 * math.exp(-i / 90) + wave / 5, "loss": 1 / (i + 1)}
        if evaluated
        else {},
        seconds=0.01,
    )
