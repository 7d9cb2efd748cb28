"""The docs build: generated parts are up to date; every public name has an example that runs."""

from __future__ import annotations

import doctest
import importlib.util
import re
from pathlib import Path
from types import ModuleType

import pytest

import narrowcast
from doors import Doors
from narrowcast.aggregates import geometric
from places import DOCS, ROOT


def _make() -> ModuleType:
    spec = importlib.util.spec_from_file_location("docs_make", DOCS / "make.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


make = _make()


def test_the_generated_parts_are_up_to_date() -> None:
    for path, text in make.pages().items():
        assert path.read_text() == text, f"{path.name} is stale: make docs"


def test_the_reference_has_every_public_name(tmp_path: Path) -> None:
    make.reference(tmp_path)
    for module in make.public():
        page = (tmp_path / f"{module.__name__}.html").read_text()
        missing = [name for name in module.__all__ if f'id="{name}"' not in page]
        assert missing == [] or set(missing) <= _submodules(module), f"{module.__name__}: {missing}"


def _submodules(module: ModuleType) -> set[str]:
    return {name for name in module.__all__ if isinstance(getattr(module, name), ModuleType)}


@pytest.mark.parametrize("name", narrowcast.__all__)
def test_every_public_name_has_an_example_that_runs(name: str, doors: Doors) -> None:
    text = getattr(narrowcast, name).__doc__
    examples = doctest.DocTestParser().get_doctest(text, {}, name, None, 0)
    assert examples.examples, f"narrowcast.{name} has no example"
    said: list[str] = []
    doctest.DocTestRunner().run(examples, out=said.append)
    assert not said, "".join(said)


def test_other_examples_run(doors: Doors) -> None:
    from narrowcast.measure import library
    from narrowcast.testing import contract

    for module in (contract, library):
        assert doctest.testmod(module).failed == 0


def test_the_page_of_the_mathematics_has_the_steps_that_the_geometric_median_takes() -> None:
    (said,) = re.findall(r"at most (\d+) steps of Weiszfeld", (DOCS / "methods.md").read_text())
    assert int(said) == geometric.STEPS


def test_the_walk_through_is_what_the_example_says() -> None:
    """Every block of docs/extend.md that names a file of the example is a part of that file."""
    page = (DOCS / "extend.md").read_text()
    blocks = re.findall(r"`examples/(my_method/[a-z_.]+)`[^\n]*\n\n```\w*\n(.*?)```", page, re.S)
    assert len(blocks) >= 4
    for file, text in blocks:
        whole = (ROOT / "examples" / file).read_text()
        for part in text.split("...\n"):
            assert part.strip("\n") in whole, f"{file} has no longer:\n{part}"
