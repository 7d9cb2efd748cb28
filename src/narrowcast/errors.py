"""What can go wrong with a run, said in its user's terms."""

from __future__ import annotations


class ConfigError(ValueError):
    """A configuration that cannot be run."""


class Diverged(ArithmeticError):
    """The loss or the sum of a round is not finite any more."""


class Interrupted(Exception):
    """The user asked to stop; the round was finished and a checkpoint written."""
