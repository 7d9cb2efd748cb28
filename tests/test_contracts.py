"""Everything in our own tables obeys the contract suites of `narrowcast.testing`, as anybody's does."""

from __future__ import annotations

import subprocess
import sys
from functools import partial
from typing import Any

import pytest

import outside
from narrowcast.methods import METHODS, Adam
from narrowcast.subspaces import KINDS, subspace
from narrowcast.tasks import TaskOptions, build
from narrowcast.testing import FormatContract, MethodContract, SubspaceContract, TaskContract, check
from narrowcast.wire import FORMATS
from worlds import small

# Of our own methods some laws are put to the test with other options beside.
OTHERWISE: dict[str, tuple[dict[str, Any], set[str]]] = {
    "-adam": (
        {"optimiser": Adam(), "carry": True},
        {
            "test_an_empty_round_leaves_the_state_as_it_was",
            "test_a_restored_state_goes_on_bit_for_bit",
            "test_a_step_that_overflows_is_diverged",
        },
    ),
    "-f16": (
        {"downlink": "f16", "uplink": "f16", "refresh": 1},
        {
            "test_a_step_that_overflows_is_diverged",
            "test_whatever_is_done_to_an_upload_only_wire_errors_come_of_it",
            "test_a_tampered_download_gives_the_servers_theta_or_a_wire_error",
        },
    ),
}


def suites() -> dict[str, tuple[type, Any, set[str]]]:
    """name -> (suite, what it makes, the laws it is held to)."""
    found: dict[str, tuple[Any, Any]] = {
        **{name: (MethodContract, partial(small, name)) for name in METHODS.own},
        **{name: (SubspaceContract, partial(subspace, name)) for name in KINDS.own},
        **{name: (FormatContract, partial(FORMATS.find, name)) for name in FORMATS.own},
        "digits": (TaskContract, partial(build, "digits", TaskOptions(3, width=16))),
        "quadratic": (TaskContract, partial(build, "quadratic", TaskOptions(3, width=50))),
        "outside-method": (MethodContract, outside.Clipped),
        "outside-kind": (SubspaceContract, outside.Backwards),
        "outside-format": (FormatContract, outside.Brain16),
        "outside-task": (TaskContract, outside.blobs),
    }
    whole = {name: (suite, make, set(suite.laws())) for name, (suite, make) in found.items()}
    more = {
        f"{name}{how}": (MethodContract, partial(small, name, **options), laws)
        for name in METHODS.own
        for how, (options, laws) in OTHERWISE.items()
        if set(options) & set(METHODS[name].options)
    }
    return {**whole, **more}


SUITES = suites()
CASES = [(name, law) for name, (suite, _, laws) in SUITES.items() for law in suite.laws() if law in laws]


@pytest.mark.parametrize(("name", "law"), CASES, ids=lambda part: part.removeprefix("test_"))
def test_the_law_holds(name: str, law: str) -> None:
    suite, make, _ = SUITES[name]
    getattr(type("Ours", (suite,), {"make": staticmethod(make)})(), law)()


def test_the_suites_are_imported_and_run_without_pytest() -> None:
    program = """
import sys
sys.modules["pytest"] = sys.modules["hypothesis"] = None
from narrowcast.testing import FormatContract, check
from narrowcast.wire import FORMATS
class Halves(FormatContract):
    def make(self):
        return FORMATS["f16"]
check(Halves())
print(len(Halves.laws()))
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.stdout.strip() == str(len(FormatContract.laws())), done.stderr


def test_check_names_every_law_that_is_broken() -> None:
    from narrowcast.testing import Broken

    class Loud(outside.Brain16):
        exact = True

    suite = type("Loud formats", (FormatContract,), {"make": staticmethod(Loud)})()
    with pytest.raises(
        Broken, match="Loud formats breaks 1 of its laws\n  it is exact as declared: "
    ) as found:
        check(suite)
    assert list(found.value.found) == ["test_it_is_exact_as_declared"]
