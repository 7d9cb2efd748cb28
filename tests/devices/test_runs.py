"""Runs on a device against the same here: on the fake one (fake_device.py), and on a GPU where there is one.

`pytest tests/devices -m gpu` is for whoever has one (docs/gpu.md).
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import fake_device
from device_worker import PARTS, TABLE
from narrowcast.methods.table import METHODS
from places import ROOT

Told = Callable[[str], Any]
PATH = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")])  # ninja may be there
CLOSE = 1e-5  # of losses and numbers that two orders of summation give


@pytest.fixture(scope="module", params=["fake", pytest.param("cuda", marks=pytest.mark.gpu)])
def told(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Told:
    """What each part of device_worker.py has to say, all from one process."""
    if request.param == "fake" and not (fake_device.compiler() and shutil.which("ninja", path=PATH)):
        pytest.skip("the fake device needs a C++ compiler and ninja")
    if request.param == "cuda" and not torch.cuda.is_available():
        pytest.skip("there is no GPU here that torch could use")
    folder = tmp_path_factory.mktemp("device")
    done = subprocess.run(
        [sys.executable, ROOT / "tests" / "device_worker.py", request.param, folder],
        env={**os.environ, "PYTHONPATH": str(ROOT / "tests"), "PATH": PATH},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr[-3000:]

    def answer(part: str) -> Any:
        found = json.loads((folder / f"{part}.json").read_text())
        assert "told" in found, found["failed"]
        return found["told"]

    answer.device = request.param  # type: ignore[attr-defined]
    return answer


pytestmark = pytest.mark.xdist_group("devices")


def test_every_part_is_looked_at() -> None:
    judged = Path(__file__).read_text()
    assert all(f'told("{part}")' in judged for part in PARTS)


def test_a_matrix_has_the_same_bits(told: Told) -> None:
    rows = told("table")
    assert len(rows) == len(TABLE)
    for row in rows:
        assert row["same"], row
        assert row["in place"], row
        assert row["expand"], row
        assert row["digest"], row
        assert row["again"], row
        assert row["error"] < 1e-6, row
        assert row["half"] < 1e-6, row
        assert row["here"] == "cpu", row


@pytest.mark.parametrize("name", ["static", "k-subspace", "time-varying", "narrow", "uncompressed", "fedavg"])
def test_a_run_is_what_it_is_here_and_d_numbers_cross(told: Told, name: str) -> None:
    found = told("trained")[name]
    assert not found["where"].startswith("cpu")
    assert len(found["there"]) == len(found["here"]) == 5
    for here, there in zip(found["here"], found["there"], strict=True):
        assert there["loss"] == pytest.approx(here["loss"], rel=1e-3)
        assert (there["up"], there["down"]) == (here["up"], here["down"])
        assert there["metrics"].keys() == here["metrics"].keys()
        assert here["crossed"] == 0
    if told.device == "fake" and found["dim"]:  # type: ignore[attr-defined]
        crossed = [row["crossed"] / (4 * found["dim"]) for row in found["there"][1:]]
        assert 1 < max(crossed) <= 10, crossed  # the first round moved the data
    if told.device == "cuda":  # type: ignore[attr-defined]
        assert all(row["memory"] > 4 * found["D"] for row in found["there"])


def test_a_client_has_the_servers_theta_whichever_is_on_the_device(told: Told) -> None:
    found = told("reconciled")
    assert len(found) == 6
    assert all(found.values()), found


def test_a_run_goes_on_on_another_device(told: Told) -> None:
    found = told("resumed")
    stayed = found.pop("stayed")
    for name, went in found.items():
        assert went["rounds"] == 6, name
        assert went["bytes"] == stayed["bytes"], name
        assert set(went["fields"]) - {"device_memory"} == set(stayed["fields"]), name
        assert went["losses"] == pytest.approx(stayed["losses"], rel=1e-3), name
        assert went["theta0"] == stayed["theta0"], name
        assert went["theta"] == pytest.approx(stayed["theta"], abs=1e-3), name


def test_nodes_on_a_device_and_a_server_here(told: Told) -> None:
    found = told("on_nodes")
    assert not any(found["dropped"])
    assert found["losses"][0] == pytest.approx(found["losses"][1], rel=1e-3)
    assert found["bytes"][0] == found["bytes"][1]
    assert "topk has kernels for the CPU alone" in found["refused"]


def test_the_ddp_hook_where_the_gradients_are(told: Told) -> None:
    for name, found in told("hooked").items():
        assert found["difference"] < (2e-3 if name == "half" else CLOSE), name
        if told.device == "fake":  # type: ignore[attr-defined]
            most = 8 if name == "error" else 5  # and once, the error itself
            assert all(bytes <= most * 4 * found["dim"] for bytes in found["crossed"][1:]), (name, found)


def test_methods_with_kernels_for_the_cpu_alone_say_so_before_anything_is_trained(told: Told) -> None:
    found = told("refused")
    able = {name for name, word in found["methods"].items() if not word}
    family = {"static", "time-varying", "k-subspace", "k-subspace-time-varying", "narrow"}
    assert able == family | {"uncompressed", "fedavg", "fedprox"}
    for name in set(METHODS.own) - able:
        word = found["methods"][name]
        assert f"{name} has kernels for the CPU alone" in word
        assert "--device cpu" in word
        assert "one of static, time-varying, k-subspace, k-subspace-time-varying, narrow, uncomp" in word
        assert not any(f" {other}," in word for other in set(METHODS.own) - able)
    others = found["others"]
    assert "--subspace fastfood has kernels for the CPU alone" in others["fastfood"]
    assert "the task quadratic computes on the CPU alone" in others["quadratic"]
    assert "this machine has" in others["nowhere"]
    assert "gpu" in others["unknown"]
    assert "--device" in others["misspelt"]
    assert found["written"] == []
    assert found["auto"] == {"static": told.device, "topk": "cpu"}  # type: ignore[attr-defined]


def test_a_device_that_adds_otherwise_is_found_out(told: Told) -> None:
    assert "does not compute what a CPU does" in told("wrong")


def test_the_benchmark_gives_ratios_to_a_copy_there(told: Told) -> None:
    [row] = told("benched")
    for name in ("project", "add_expanded", "digest"):
        assert row[f"{name}_over_copy"] == pytest.approx(row[f"{name}_s"] / row["copy_s"])
        assert row[f"{name}_s"] > 0


def test_pictures_and_dropout_are_the_same_there(told: Told) -> None:
    assert told("pictures") == {"crops": True, "dropout": True}


def test_models_over_text_train_there(told: Told) -> None:
    for name, (here, there) in told("texts").items():
        assert len(here) == len(there) == 2
        for (loss, metrics), (loss_there, metrics_there) in zip(here, there, strict=True):
            assert loss_there == pytest.approx(loss, rel=1e-3), name
            assert metrics_there == pytest.approx(metrics, rel=1e-2), name
