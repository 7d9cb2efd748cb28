"""A checkpoint is the one that was written, or it is refused; what a kill leaves can be gone on from."""

import io
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from narrowcast import files
from narrowcast.errors import ConfigError
from narrowcast.rounds.store import ClientStore
from narrowcast.runs import attempts, checkpoints, run_folder, runner
from narrowcast.runs.reading import make_config

SETTINGS = {
    "task": "digits",
    "method": "static",
    "dim": 16,
    "width": 4,
    "clients": 6,
    "rounds": 3,
    "lr": 0.5,
    "partition": "iid",
}


def stopped(folder: Path, after: int = 1) -> Path:
    """A run that was stopped after so many rounds."""
    left = iter(range(after - 1))
    runner.start(make_config(SETTINGS), folder, until=lambda: next(left, None) is None)
    return folder


def test_no_flipped_bit_goes_unnoticed(tmp_path: Path) -> None:
    path = stopped(tmp_path / "run") / run_folder.CHECKPOINT
    good = path.read_bytes()
    for place in range(0, 8 * len(good), 8 * len(good) // 60):
        data = bytearray(good)
        data[place // 8] ^= 1 << place % 8
        path.write_bytes(data)
        with pytest.raises(Exception, match=r"digest|damaged|CRC|corrupt|zip"):
            checkpoints.read(path)
    path.write_bytes(good)
    assert checkpoints.read(path)["simulation"]["round"] == 1


def test_a_checkpoint_of_the_first_version_is_read_and_checked(tmp_path: Path) -> None:
    """It had no digest: what seals it are the check sums of a zip file."""
    buffer = io.BytesIO()
    torch.save({"run": "00", "simulation": {"round": 2, "x": torch.arange(1000.0)}}, buffer)
    path = tmp_path / "checkpoint.pt"
    path.write_bytes(buffer.getvalue())
    assert checkpoints.read(path)["simulation"]["round"] == 2
    data = bytearray(buffer.getvalue())
    data[len(data) // 2] ^= 4
    path.write_bytes(data)
    with pytest.raises(ValueError, match="digest"):
        checkpoints.read(path)


def test_a_run_killed_between_its_first_two_files_is_begun_again(tmp_path: Path) -> None:
    folder = stopped(tmp_path / "run")
    for path in folder.iterdir():
        if path.name != run_folder.FACTS:
            path.unlink()
    with pytest.raises(ConfigError, match=r"has not begun: it has no config\.toml"):
        runner.resume(folder)
    assert attempts.outcome(folder) is None
    runner.start(make_config(SETTINGS), folder)  # without --force: nothing is lost
    assert run_folder.finished(folder)


def test_what_a_killed_write_has_left_is_removed_and_what_is_being_written_is_not(tmp_path: Path) -> None:
    folder = stopped(tmp_path / "run")
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    old, new = folder / f".checkpoint.pt.{ended.pid}.tmp", folder / f".other.{os.getpid()}.tmp"
    foreign = folder / ".something.tmp"
    for path in (old, new, foreign):
        path.write_bytes(b"half")
    runner.resume(folder)
    assert not old.exists()
    assert new.exists()
    assert foreign.exists()


def test_states_are_on_the_disk_before_the_checkpoint_that_counts_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced: list[str] = []
    real = files.sync_path
    monkeypatch.setattr(files, "sync_path", lambda path: (synced.append(path.name), real(path)))
    store = ClientStore(tmp_path / "private", memory=40)
    for client in range(3):
        store.put(client, {"error": torch.zeros(10)})  # all but the last go to the disk at once
    store.snapshot()
    assert set(synced) == {"0-0", "1-1", "2-2", "private"}
    assert synced[-1] == "private"  # the names, after the files
    synced.clear()
    store.snapshot()
    assert not synced


def test_two_runs_of_equal_settings_have_identities_of_their_own(tmp_path: Path) -> None:
    first, second = (stopped(tmp_path / name) for name in ("a", "b"))
    ids = [checkpoints.read(folder / run_folder.CHECKPOINT)["run"] for folder in (first, second)]
    assert ids[0] != ids[1]
    runner.resume(first)
    assert checkpoints.read(first / run_folder.CHECKPOINT)["run"] == ids[0]
