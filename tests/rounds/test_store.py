"""The ClientStore: a plain dictionary of states, whatever lies in memory, on disk or in a checkpoint."""

import subprocess
import sys

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from narrowcast.rounds.store import ClientStore


def state(number, size=8):
    return {"error": torch.full((size,), float(number)), "momentum": torch.arange(3.0) + number}


def same(a, b):
    if a is None or b is None:
        return a is b
    return a.keys() == b.keys() and all(torch.equal(a[name], b[name]) for name in a)


ACTIONS = st.lists(
    st.tuples(
        st.sampled_from(["put"] * 6 + ["get"] * 3 + ["forget", "snapshot", "settle", "go back"]),
        st.integers(0, 9),
    ),
    max_size=60,
)  # fmt: skip


@pytest.mark.parametrize("memory", [0, 100, 1 << 20])
@pytest.mark.parametrize("kept", [True, False], ids=["folder", "no folder"])
@settings(deadline=None, max_examples=60)
@given(actions=ACTIONS)
def test_it_is_a_dictionary_that_can_go_back_to_the_last_settled_checkpoint(
    tmp_path_factory, memory, kept, actions
):
    """The twin is a dictionary, its snapshots are copies. Going back means a new process: a new store."""
    folder = tmp_path_factory.mktemp("store") / "private" if kept else None
    store, twin = ClientStore(folder, memory), {}
    taken, safe = [], (store.snapshot(), {})
    store.settle(safe[0])
    for number, (action, client) in enumerate(actions):
        if action == "put":
            store.put(client, state(number))
            twin[client] = state(number)
        elif action == "forget":
            store.forget(client)
            twin.pop(client, None)
        elif action == "snapshot":
            taken.append((store.snapshot(), dict(twin)))
        elif action == "settle" and taken:
            safe, taken = taken[-1], []
            store.settle(safe[0])
        elif action == "go back":
            store, twin, taken = ClientStore(folder, memory), dict(safe[1]), []
            store.restore(safe[0])
        assert same(store.get(client), twin.get(client))
        assert len(store) == len(twin)
    assert store.lost == 0
    for client in range(10):
        assert same(store.get(client), twin.get(client))


def test_files_that_nobody_needs_are_removed(tmp_path):
    store = ClientStore(tmp_path, memory=0)
    for generation in range(5):
        for client in range(4):
            store.put(client, state(generation))
    assert len(list(tmp_path.iterdir())) == 4
    first = store.snapshot()
    for client in range(4):
        store.put(client, state(9))
    assert len(list(tmp_path.iterdir())) == 8  # the snapshot's, and the present
    store.settle(store.snapshot())
    assert len(list(tmp_path.iterdir())) == 4
    (tmp_path / "7-12").write_bytes(b"of a later round")
    (tmp_path / "notes-of-mine").write_text("left alone")
    again = ClientStore(tmp_path, memory=0)
    again.restore(first)
    assert {path.name for path in tmp_path.iterdir()} == {"notes-of-mine"}
    assert again.get(0) is None
    assert again.lost == 1  # its file went when the later checkpoint was settled


@pytest.mark.parametrize(
    "damage", [lambda d: b"", lambda d: d[:-1], lambda d: d[:9] + b"?" + d[10:], lambda d: d + b"0"]
)
def test_a_damaged_file_is_a_lost_state(tmp_path, damage):
    store = ClientStore(tmp_path, memory=0)
    store.put(3, state(1))
    (path,) = tmp_path.iterdir()
    path.write_bytes(damage(path.read_bytes()))
    assert store.get(3) is None
    assert (store.lost, len(store)) == (1, 0)
    assert store.get(3) is None
    assert store.lost == 1  # counted once
    store.put(3, state(2))
    assert same(store.get(3), state(2))


CHILD = """
import resource, sys, torch
from pathlib import Path
from narrowcast.rounds.store import ClientStore
store, clients = ClientStore(Path(sys.argv[1]), memory=64 << 20), int(sys.argv[2])
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
for client in range(clients):
    store.put(client, {"error": torch.full((1_000_000,), float(client))})
assert all(float(store.get(c)["error"][-1]) == c for c in range(0, clients, 17))
print((resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) // 1024)
"""


@pytest.mark.parametrize("clients", [150, pytest.param(1000, marks=pytest.mark.slow)])
def test_clients_of_a_million_parameters_do_not_exhaust_memory(tmp_path, clients):
    """0.6 or 4 GB of states, 64 MiB of memory for them."""
    command = [sys.executable, "-c", CHILD, str(tmp_path), str(clients)]
    out = subprocess.run(command, capture_output=True, text=True)
    assert out.returncode == 0, out.stderr
    assert int(out.stdout) < 200  # MiB
