"""docs/deploy.md shows the files of examples/deploy as they are."""

from pathlib import Path

import pytest

from places import ROOT

PAGE = (ROOT / "docs" / "deploy.md").read_text()


@pytest.mark.parametrize("path", sorted((ROOT / "examples" / "deploy").iterdir()), ids=lambda path: path.name)
def test_the_page_shows_the_file(path: Path) -> None:
    assert f"examples/deploy/{path.name}" in PAGE
    if path.name != "environment":
        assert f"\n{path.read_text()}```\n" in PAGE
