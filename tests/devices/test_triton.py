"""Triton's kernels without a GPU: its interpreter against numba, bit for bit, and what its compiler makes."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytestmark = [
    pytest.mark.xdist_group("devices"),
    pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="needs the extra narrowcast[gpu]"),
]
MOST = {"expand": 128, "rotate": 128, "fold": 64, "sum_mixed": 64}  # registers: four programs of four warps


def told(tmp_path: Path, *words: str, **environment: str) -> list[dict[str, Any]]:
    done = subprocess.run(
        [sys.executable, Path(__file__).with_name("triton_worker.py"), *words],
        env={**os.environ, "TRITON_CACHE_DIR": str(tmp_path), **environment},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    rows: list[dict[str, Any]] = json.loads(done.stdout)
    return rows


def test_the_interpreter_has_numbas_bits(tmp_path: Path) -> None:
    rows = told(tmp_path, "interpret", TRITON_INTERPRET="1")
    assert {row["n"] for row in rows if "n" in row} == {1, 2, 4, 8, 16, 32, 64}
    for row in rows:
        assert row["same"], row
        assert row["error"] < 1e-6, row
        assert row["half"] < 1e-6, row


def check(rows: list[dict[str, Any]], most: dict[str, int] = MOST) -> None:
    assert {row["target"] for row in rows} == {"80", "90", "gfx942"}
    for row in rows:
        assert row["fused"] == [], row
        assert row["forbidden"] == [], row
        assert row["spilled"] == 0, row
        assert row["registers"] <= most[row["case"].split()[0]], row


def test_what_is_compiled_adds_as_the_cpu_does_and_stays_in_registers(tmp_path: Path) -> None:
    check(rows := told(tmp_path, "compile"))
    assert {row["case"].split()[0] for row in rows} == set(MOST)
    assert {row["case"].split()[-1] for row in rows if "rotate" in row["case"]} == {"fp32", "bf16", "fp16"}
    added = {row["case"].split()[0]: row["additions"] for row in rows if "additions" in row}
    assert added["expand"] == 6 * 32 + 32  # of 32 numbers a thread: six levels, and the base
    assert added["rotate"] == 6 * 32


@pytest.mark.slow
def test_so_does_every_size_of_a_tile(tmp_path: Path) -> None:
    check(
        told(tmp_path, "compile", "1", "2", "4", "8", "16", "32"), MOST | {"rotate": 168}
    )  # three programs fit


def test_nothing_of_triton_is_imported_before_a_gpu_asks_for_it() -> None:
    words = "import sys, narrowcast.rounds.devices, narrowcast.runs.runner; print('triton' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", words], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"
