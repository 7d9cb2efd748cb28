"""Methods from one list of options for all of them: each takes those that concern it.

Where it is not said how many clients there are, there is one: a run would refuse a method that is not told.
"""

from typing import Any

from narrowcast.methods import METHODS, Method


def made(name: str, **options: Any) -> Method[Any]:
    entry = METHODS[name]
    return entry.make(**entry.fitting({"clients": 1, **options}))
