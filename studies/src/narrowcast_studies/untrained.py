"""What the models of a study are worth before their first round: measured once a seed, for all rows of it."""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path

import msgspec

from narrowcast import files
from narrowcast.cli import give_back
from narrowcast.runs import RunConfig, using_threads
from narrowcast.tasks import TaskOptions, build
from narrowcast_studies.ran import Metrics, Ran


def decisive() -> set[str]:
    """The settings that decide data and model."""
    return {f.name for f in fields(TaskOptions)} | {"task", "seed"}


def file_of(config: RunConfig) -> str:
    """The name of the file: the task and the seed, and a digest of all that decides data and model."""
    return f"untrained-{config.task}-s{config.seed}-{config.digest(decisive())}.json"


def known(config: RunConfig, out: Path) -> Metrics:
    """What was measured; {}: nothing yet."""
    try:
        return msgspec.json.decode((out / file_of(config)).read_bytes(), type=Metrics)
    except (FileNotFoundError, msgspec.DecodeError):
        return {}


def measured(config: RunConfig, out: Path) -> Metrics:
    """The metrics of theta0, measured here unless they are known."""
    if found := known(config, out):
        return found
    task = build(config.task, config.task_options())
    with using_threads(config.threads or 1):
        metrics = task.evaluate(task.theta0())
    out.mkdir(parents=True, exist_ok=True)
    files.write_atomically(out / file_of(config), msgspec.json.encode(metrics))
    del task
    give_back()  # the runs may be processes of their own
    return metrics


def harmed(run: Ran, before: Metrics) -> bool:
    """Whether training did harm: the headline metric is worse than before, and the loss is higher.

    Either alone may be luck: a run that learned next to nothing ends a test example below its start, one that
    learned too surely has a high loss. What is not known does not count.
    """
    metric = run.metric
    if metric not in before or metric not in run.last:
        return False
    gain = run.last[metric] - before[metric]
    worse = gain < 0 if run.higher_is_better else gain > 0
    return worse and run.last.get("loss", 0.0) >= before.get("loss", 0.0)
