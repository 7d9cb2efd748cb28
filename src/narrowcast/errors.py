"""What can go wrong with a run, said in its user's terms."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager


class ConfigError(ValueError):
    """A configuration that cannot be run."""


class Diverged(ArithmeticError):
    """The loss or the sum of a round is not finite any more.

    >>> import narrowcast as nc
    >>> from narrowcast.testing import toy_task
    >>> try:
    ...     list(nc.simulate(toy_task(), nc.method("uncompressed"), nc.Plan(cohort=4, lr=3e38, rounds=9)))
    ... except nc.Diverged as why:
    ...     print("lower --lr" in str(why))
    True
    """


class Interrupted(Exception):
    """The user asked to stop; the round was finished and a checkpoint written."""


@contextmanager
def located(where: object) -> Iterator[None]:
    """Say of a ConfigError where it is: in which file, in which of its rows."""
    try:
        yield
    except ConfigError as error:
        raise ConfigError(f"{where}: {error}") from None
