"""What a good open project has, and that it is true: hooks, CI, templates, citation, security."""

from __future__ import annotations

import re
import shutil
import tomllib

import pytest
import yaml

import narrowcast
from places import ROOT

WORKFLOW = yaml.safe_load((ROOT / ".github/workflows/test.yml").read_text())
HOOKS = yaml.safe_load((ROOT / ".pre-commit-config.yaml").read_text())


def test_ci_calls_the_two_commands_of_the_readme_on_all_that_is_promised() -> None:
    job = WORKFLOW["jobs"]["test"]
    assert job["strategy"]["matrix"] == {
        "os": ["ubuntu-latest", "macos-latest"],
        "python": ["3.11", "3.12", "3.13"],
    }
    runs = [step["run"] for step in job["steps"] if "run" in step]
    assert runs == ["make test", "make demo"]
    assert WORKFLOW["permissions"] == {"contents": "read"}
    assert "pull_request" in WORKFLOW[True]  # YAML reads `on` so
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert project["requires-python"] == ">=3.11"


def test_hooks_are_what_make_lint_runs() -> None:
    lint = (ROOT / "Makefile").read_text().split("\nlint:")[1].split("\n\n")[0]
    for hook in HOOKS["repos"][0]["hooks"]:
        tool = hook["entry"].removeprefix(".venv/bin/").split()[0]
        assert f"$(BIN)/{tool}" in lint, tool
        assert shutil.which(ROOT / ".venv/bin" / tool) or shutil.which(tool)
        assert hook["language"] == "system"


@pytest.mark.parametrize("name", ["bug.yml", "idea.yml"])
def test_templates_of_issues_ask_for_something(name: str) -> None:
    form = yaml.safe_load((ROOT / ".github/ISSUE_TEMPLATE" / name).read_text())
    assert form["name"]
    assert form["description"]
    assert any(part.get("validations", {}).get("required") for part in form["body"])
    assert len({part["id"] for part in form["body"]}) == len(form["body"])


def test_a_pull_request_is_asked_for_what_contributing_says() -> None:
    text = (ROOT / ".github/PULL_REQUEST_TEMPLATE.md").read_text()
    assert "make test" in text
    assert "CHANGELOG" in text


def test_the_citation_is_of_this_version_and_names_the_paper() -> None:
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    assert citation["cff-version"] == "1.2.0"
    assert citation["version"] == narrowcast.__version__
    assert citation["license"] == "Apache-2.0"
    paper = citation["preferred-citation"]
    assert paper["title"] == "Intrinsic Gradient Compression for Federated Learning"
    assert [author["family-names"] for author in paper["authors"]] == ["Melas-Kyriazi", "Wang"]
    assert paper["title"] in re.sub(r"\s+", " ", (ROOT / "README.md").read_text())


def test_the_changelog_says_first_what_a_user_must_change() -> None:
    log = (ROOT / "CHANGELOG.md").read_text()
    newest = log.split("\n## ")[1]
    assert newest.startswith(narrowcast.__version__)
    assert 0 < newest.index("must change") < newest.index("What is in it")
