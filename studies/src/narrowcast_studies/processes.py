"""Runs as processes of their own, each with one thread: several at a time, and none can take others down."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
import threading
from pathlib import Path

from narrowcast.errors import Diverged, Interrupted
from narrowcast.runs import RunConfig
from narrowcast_studies.worker import DIVERGED

ONE_THREAD = dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"), "1")
INTERRUPTED = (130, -2, -15)  # as the command says it, or as the system does


class Processes:
    """Call it as `attempts.in_process`, from any thread. `stop` lets the running ones write a checkpoint.

    They are asked once, and by this process alone: to a second signal a run ends at once, without one. So
    they have a session of their own, where Ctrl-C in a terminal does not reach them.
    """

    def __init__(self) -> None:
        self._unasked: set[subprocess.Popen[str]] = set()  # those that run, and were not told to stop
        self._stopped = False
        self._lock = threading.Lock()

    def __call__(self, config: RunConfig, folder: Path) -> None:
        words = [sys.executable, "-m", "narrowcast_studies.worker", str(folder)]
        with self._lock:
            if self._stopped:
                raise Interrupted("stopped before it began")
            process = subprocess.Popen(
                words,
                stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.PIPE,
                text=True,
                env={**os.environ, **ONE_THREAD},
                start_new_session=True,
            )
            self._unasked.add(process)
        try:
            _, said = process.communicate(config.model_dump_json())
        except BaseException:  # this process is asked to stop, and its child may not have been
            with self._lock:
                self._ask(process)
            process.communicate()
            raise
        finally:
            with self._lock:
                self._unasked.discard(process)
        _judge(process.returncode, said.strip(), words)

    def stop(self) -> None:
        """Ask those that run to stop, and begin no more."""
        with self._lock:
            self._stopped = True
            for process in list(self._unasked):
                self._ask(process)

    def _ask(self, process: subprocess.Popen[str]) -> None:
        if process in self._unasked:
            self._unasked.discard(process)
            process.terminate()


def _judge(code: int, said: str, words: list[str]) -> None:
    if code == 0:
        return
    if code in INTERRUPTED:
        raise Interrupted(said or "stopped")
    if code == DIVERGED:
        raise Diverged(said.removeprefix("error: "))
    raise RuntimeError(f"{shlex.join(words)} ended with {code}: {said[-2000:]}")
