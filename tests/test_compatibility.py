"""What earlier versions wrote is read as docs/compatibility.md promises: it is in tests/compatibility."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import pytest
from torch import Tensor

from narrowcast.flower.node import Hosted, Node
from narrowcast.flower.shelf import Folder
from narrowcast.rounds import records
from narrowcast.runs import modelfile, run_folder, runner
from narrowcast.runs.summary import summarise
from narrowcast.tasks import build
from narrowcast.wire import FORMAT_VERSION, WireError, decode
from places import DOCS

OLD = Path(__file__).with_name("compatibility")
FORMATS = sorted(OLD.iterdir())
every_format = pytest.mark.parametrize("old", FORMATS, ids=lambda path: path.name)
every_method = pytest.mark.parametrize("method", ["time-varying", "topk"])
ENDS = {"time-varying": "f8d1fb3b43500bbb982ea3bbe989aebc", "topk": "fc685a3d9ae63bbc81a752bb824da6bd"}
LOSSES = {
    "time-varying": 4.308906312884947,
    "topk": 4.261636811518525,
}  # of the last round, as they were then


def trained_then(old: Path, method: str) -> Tensor:
    config = run_folder.load_config(old / method)
    task = build(config.task, config.task_options())
    return modelfile.load_model(old / f"{method}.narrowcast", task.theta0())


@every_format
@every_method
def test_a_run_that_was_stopped_then_goes_on_now_to_the_same_model(
    old: Path, method: str, tmp_path: Path
) -> None:
    """Clients' private states and all (topk's errors); three rounds were done, three are left.

    Gradients round as the CPU's products do, so what was trained elsewhere is met but for that.
    """
    folder = tmp_path / "run"
    shutil.copytree(old / method, folder)
    before = records.read(folder / "records.jsonl")
    assert len(before) == 3
    assert summarise(folder).rounds == 3
    runner.resume(folder)
    after = records.read(folder / "records.jsonl")
    assert after[:3] == before
    assert after[-1].loss == pytest.approx(LOSSES[method], rel=1e-7)
    assert sum(record.lost for record in after) == 0
    then, now = trained_then(old, method), runner.rebuild(folder)[1]
    assert float((now - then).norm()) < 1e-6 * float(then.norm())


@every_format
@every_method
def test_a_model_of_then_is_loaded_now(old: Path, method: str) -> None:
    assert trained_then(old, method).numpy().tobytes().hex()[:32] == ENDS[method]


@every_format
def test_what_a_node_kept_then_is_used_now(old: Path, tmp_path: Path) -> None:
    """Its model's version, and the private state of every client after the round that was counted."""
    shutil.copytree(old / "shelf", tmp_path / "shelf")
    config = run_folder.load_config(old / "topk")
    task = build(config.task, config.task_options())
    (run,) = (tmp_path / "shelf").iterdir()
    for part in (0, 1):
        shelf = Folder(run / f"from-{part}")
        node = Node(Hosted(task, {c: c for c in range(part, 6, 2)}, 6), config, shelf)
        assert node.here().have.version is not None
        kept = [name for name in shelf.names() if name.startswith("client-")]
        assert kept
        for name in kept:
            _, client, round = name.split("-")
            assert node._private(int(client), int(round)) is not None


@every_format
def test_a_message_of_another_format_is_refused_with_a_word(old: Path) -> None:
    data = (old / "upload").read_bytes()
    if old.name == f"format-{FORMAT_VERSION}":
        assert len(decode(data).payload.blocks) == 2
        return
    with pytest.raises(WireError, match=f"message format .* this version speaks {FORMAT_VERSION}"):
        decode(data)


def test_every_format_that_there_was_is_here_and_on_the_page() -> None:
    """Who raises FORMAT_VERSION commits what the version before wrote: `python tests/older.py OUT`."""
    assert [path.name for path in FORMATS] == [f"format-{n + 1}" for n in range(FORMAT_VERSION)]
    page = (DOCS / "compatibility.md").read_text()
    assert re.search(rf"format {FORMAT_VERSION}\b", page)
    for what in ("run's folder", "model file", "shelf", "messages"):
        assert what in page
