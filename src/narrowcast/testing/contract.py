"""What a suite is: laws as methods called `test_...`, and a way to run them without any framework."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from torch import Tensor


class Contract:
    """Laws of whatever `make` returns. A class that inherits from it has a name of its own, `Test...`."""

    def make(self) -> Any:
        """A new one, small enough for a test."""
        raise NotImplementedError("say what is to be tested: def make(self): return ...")

    @classmethod
    def laws(cls) -> list[str]:
        """The names of the laws, in the order in which they are written down."""
        bases = [base for base in reversed(cls.__mro__) if issubclass(base, Contract)]
        return list(dict.fromkeys(name for base in bases for name in vars(base) if name.startswith("test_")))


class Broken(AssertionError):
    """Laws that do not hold, each with what was found."""

    def __init__(self, what: str, found: dict[str, str]) -> None:
        self.found = found
        lines = "\n".join(
            f"  {law.removeprefix('test_').replace('_', ' ')}: {why}" for law, why in found.items()
        )
        super().__init__(f"{what} breaks {len(found)} of its laws\n{lines}")


def check(suite: Contract) -> None:
    """Hold what a suite makes to every law; a `Broken` says which do not hold.

    >>> import narrowcast as nc
    >>> from narrowcast.testing import SubspaceContract, check
    >>> class Rotations(SubspaceContract):
    ...     def make(self, D, d, key):
    ...         return nc.subspace("rotation", D, d, key)
    >>> check(Rotations())
    """
    found = {}
    for law in suite.laws():
        try:
            getattr(suite, law)()
        except Exception as error:  # a broken thing may raise whatever it likes
            found[law] = f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}"
    if found:
        raise Broken(type(suite).__name__, found)


@contextmanager
def raises(kind: type[Exception], what: str, says: str = "") -> Iterator[None]:
    """An AssertionError unless the block raises this, and says so."""
    try:
        yield
    except kind as error:
        if says not in str(error):
            raise AssertionError(f"{what}: it must say {says!r}, and says {str(error)!r}") from error
        return
    raise AssertionError(f"{what}: it must be a {kind.__name__}, and was let in")


def raw(value: Any) -> Any:
    """State as bytes, to be compared bit for bit."""
    if isinstance(value, Tensor):
        return tuple(value.shape), value.numpy().tobytes()
    if isinstance(value, dict):
        return {name: raw(v) for name, v in value.items()}
    return [raw(v) for v in value] if isinstance(value, list | tuple) else value
