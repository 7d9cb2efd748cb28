"""`narrowcast methods` and the page made from the same table."""

import re

import pytest
from typer.testing import CliRunner, Result

from narrowcast.cli import methods_page
from narrowcast.cli.app import app
from narrowcast.methods import METHODS, method
from places import DOCS

PAGE = DOCS / "methods.md"


def narrowcast(*args: str) -> Result:
    return CliRunner().invoke(app, ["methods", *args], env={"COLUMNS": "80"})


def flat(text: str) -> str:
    return re.sub(r"\s+", " ", text)


def test_the_list_says_everything_of_every_method_in_80_columns() -> None:
    done = narrowcast()
    assert done.exit_code == 0, done.output
    assert max(map(len, done.output.splitlines())) <= 80
    text = flat(done.output)
    for name, row in METHODS.items():
        kind = "linear" if method(name).linear else "not linear"
        assert f"{name}: {kind}" in text
        a = row.about
        for part in (a.up, a.down, f"keeps {a.client}", f"keeps {a.server}", a.formula, a.source):
            assert flat(part) in text


@pytest.mark.parametrize("name", METHODS)
def test_one_method_is_shown_in_full(name: str) -> None:
    done = narrowcast(name)
    assert done.exit_code == 0, done.output
    words = re.findall(r"[a-z]{4,}", METHODS[name].about.text)
    assert len(words) >= 5, "a method has a text"
    assert all(word in flat(done.output) for word in words)


def test_the_settings_shown_are_those_that_concern_the_method() -> None:
    settings = {row.name: set(row.settings) for row in methods_page.rows()}
    assert settings["topk"] == {"optimiser", "momentum", "k", "error_feedback", "uplink"}
    assert "refresh" in settings["time-varying"] - settings["static"]
    assert "subspaces" in settings["k-subspace"] - settings["static"]
    assert settings["signsgd"] == set()
    both = "--error-feedback/--no-error-feedback clients keep what they could not send"
    assert both in flat(narrowcast("topk").output)


def test_an_unknown_method_is_said() -> None:
    done = narrowcast("zip")
    assert done.exit_code == 2
    assert "unknown method 'zip': choose one of static" in flat(done.output)


def test_the_page_is_up_to_date() -> None:
    page = PAGE.read_text()
    assert methods_page.fill(page) == page, "docs/methods.md is stale: run `python docs/make.py`"
    assert all(f"\n### {name}\n" in page for name in METHODS)


def test_filling_changes_only_what_is_between_the_marks() -> None:
    page = f"by hand\n{methods_page.BEGIN}\nold\n{methods_page.END}\nby hand too\n"
    filled = methods_page.fill(page)
    assert filled.startswith("by hand\n")
    assert filled.endswith("\nby hand too\n")
    assert "\nold\n" not in filled
    with pytest.raises(ValueError, match="no place"):
        methods_page.fill("nothing here")
