"""docs/security.md names a test for what it says, and those tests are there."""

import re

from places import ROOT

PAGE = (ROOT / "docs" / "security.md").read_text()


def test_every_test_on_the_page_exists() -> None:
    named = re.findall(r"`(tests/[\w/]+\.py)::(\w+)`", PAGE)
    assert len(named) > 10
    for path, test in named:
        assert f"def {test}(" in (ROOT / path).read_text(), f"{path}::{test}"
    for path in re.findall(r"`(tests/\w+\.py)`", PAGE):
        assert (ROOT / path).is_file()
