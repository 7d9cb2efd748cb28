"""Settings as one would type them: a flag for every setting, with dashes."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from narrowcast.rounds.tune import Found
from narrowcast.runs.config import RunConfig
from narrowcast.units import format_bytes, format_seconds


def flag(name: str) -> str:
    """local_steps -> --local-steps"""
    return f"--{name.replace('_', '-')}"


def off(name: str) -> str:
    """The flag that turns off what is on by default: error_feedback -> --no-error-feedback."""
    return f"--no-{name.replace('_', '-')}"


def either(name: str, default: Any) -> str:
    """A setting as `--help` declares it: with both flags, if it is on by default."""
    return f"{flag(name)}/{off(name)}" if default is True else flag(name)


def arguments(config: RunConfig, only: Collection[str] | None = None) -> list[str]:
    """What to give `narrowcast run` for this configuration: its task, and a flag for all but the defaults.

    `only` are the settings to name, where not all of them are wanted.
    """
    words = [config.task]
    for name, value in config.model_dump(exclude_defaults=True, exclude={"task"}).items():
        if only is not None and name not in only:
            continue
        if isinstance(value, bool):
            words.append(flag(name) if value else off(name))
        else:
            words += [flag(name), str(value)]
    return words


def searched(found: Found) -> str:
    """What `--lr auto` came to, and what it took."""
    count = len(found.trials) + len(found.short)
    how = f"{count} trials" if count else "its first step"
    cost = f"{found.rounds} rounds, {format_bytes(found.up + found.down)}, {format_seconds(found.seconds)}"
    return f"lr {found.rate:g}, found by {how} ({cost}, not counted in the run)"
