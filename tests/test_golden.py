"""Bytes and bits are those of the commit that wrote golden.json (see golden.py)."""

import json

import pytest

import golden

pytest.importorskip("flwr", reason="needs the extra narrowcast[flower]")
KEPT = json.loads(golden.PATH.read_text())
HERE = golden.machine()


def test_nothing_is_left_out() -> None:
    assert set(KEPT["cases"]) == set(golden.cases())


@pytest.mark.parametrize("name", golden.cases())
def test_golden(name: str) -> None:
    kept, now = KEPT["cases"][name], golden.answer(name)
    if isinstance(kept, str):  # a matrix: equal on every machine
        assert now == kept
        return
    assert now["bytes"] == kept["bytes"]
    if KEPT["machine"] != HERE:
        pytest.skip(f"bytes are equal; bits were written with {KEPT['machine']}, this is {HERE}")
    assert now["theta"] == kept["theta"]
