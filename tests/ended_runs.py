"""Runs for `children` that are ended on the way, each by itself: however busy the machine, never too late."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

from narrowcast.rounds.training import Training
from narrowcast.runs import checkpoints, runner
from narrowcast.runs.reading import make_config


def killed(folder: Path, settings: dict[str, object], number: int, seconds: float) -> None:
    """Begin or go on, with a checkpoint a round; so much CPU after this round the process is no more."""

    def kill() -> None:
        if seconds:
            signal.setitimer(signal.ITIMER_PROF, seconds)  # nobody handles its signal: the kernel ends us
        else:
            os.kill(os.getpid(), signal.SIGKILL)

    Training.checkpoint_seconds = checkpoints.COSTS = 0.0
    _go(folder, settings, number, kill)


def stopped(tell: Callable[[int], None], folder: Path, settings: dict[str, object], number: int) -> None:
    """Begin, tell, and stand still."""

    def stop() -> None:
        tell(number)
        os.kill(os.getpid(), signal.SIGSTOP)

    _go(folder, settings, number, stop)


def interrupted(words: list[str], number: int) -> None:
    """The command, with Ctrl-C in this round."""
    from narrowcast.cli.app import app
    from narrowcast.runs.progress import RunProgress

    shown = RunProgress.__call__

    def show(progress: RunProgress, facts: Any, record: Any) -> None:
        shown(progress, facts, record)
        if record.round == number:
            os.kill(os.getpid(), signal.SIGINT)

    RunProgress.__call__ = show  # type: ignore[method-assign]
    app(words)


def _go(folder: Path, settings: dict[str, object], number: int, end: Callable[[], None]) -> None:
    def seen(facts: Any, record: Any) -> None:
        if record.round == number:
            end()

    if (folder / "config.toml").exists():
        runner.resume(folder, seen)
    else:
        runner.start(make_config(settings), folder, seen)
