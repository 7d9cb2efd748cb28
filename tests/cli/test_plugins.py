"""Commands of other packages: found by their entry points, never in the way of ours."""

from typing import Annotated

import pytest
import typer
from typer.testing import CliRunner

from doors import Doors
from narrowcast.cli import app as table


def hello(name: Annotated[str, typer.Option(help="of whom")] = "you") -> None:
    """Say hello, from another package."""
    print(f"hello {name}")


group = typer.Typer(help="Several at once.")


@group.command()
def one() -> None:
    """The first."""
    print("one")


@group.command()
def two() -> None:
    """The second."""
    print("two")


@pytest.fixture
def installed(doors: Doors) -> None:
    here = f"{__name__}:"
    doors.install(
        "commands", hello=here + "hello", several=here + "group", run=here + "hello", broken="nonsense:it"
    )
    doors.uninstall("commands", *table.STUDIES)


def call(*words: str) -> tuple[int, str]:
    done = CliRunner().invoke(table.app, list(words), env={"COLUMNS": "120"})
    return done.exit_code, done.output


@pytest.mark.usefixtures("installed")
def test_commands_of_other_packages_are_listed_and_run() -> None:
    code, text = call("--help")
    assert code == 0
    assert "Say hello, from another package." in text
    assert "Several at once." in text
    assert call("hello", "--name", "me") == (0, "hello me\n")
    assert call("several", "two") == (0, "two\n")


@pytest.mark.usefixtures("installed")
def test_ours_cannot_be_replaced_and_a_broken_one_breaks_nothing_else() -> None:
    assert "Train: a task by name" in call("run", "--help")[1]
    assert "cannot be loaded from nonsense:it" in call("--help")[1]
    code, text = call("broken")
    assert code == 2
    assert "No module named 'nonsense'" in text


@pytest.mark.usefixtures("installed")
def test_without_the_studies_the_command_says_how_to_get_them() -> None:
    assert "pip install ./studies" in call("--help")[1]
    code, text = call("reproduce", "table1")
    assert code == 2
    assert "pip install ./studies" in text


def test_with_them_it_does_not() -> None:
    pytest.importorskip("narrowcast_studies", reason="needs the studies: pip install ./studies")
    text = call("--help")[1]
    assert "pip install ./studies" not in text
    assert all(f"\n  {name} " in text for name in table.STUDIES)
