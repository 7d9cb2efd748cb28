"""`nc.simulate`: a run of the command without its folder: the same settings, defaults, seed and threads."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from narrowcast.methods.base import Method
from narrowcast.rounds.plan import Plan
from narrowcast.rounds.records import RoundRecord
from narrowcast.rounds.simulator import Simulation
from narrowcast.rounds.task import Task
from narrowcast.runs.prepared import default_threads, prepare
from narrowcast.runs.reading import make_config
from narrowcast.runs.threads import using_threads
from narrowcast.runs.used import only_here, refuse_unused
from narrowcast.tasks.own import lacks
from narrowcast.tasks.table import CUSTOM


def simulate(
    task: Task,
    method: str | Method[Any] = "static",
    plan: Plan | None = None,
    *,
    on_record: Callable[[RoundRecord], object] | None = None,
    **settings: Any,
) -> Iterator[RoundRecord]:
    """Train: one record a round, the first when the rate is found; the task's model then holds the weights.

    Settings are those of `narrowcast run`, with its defaults: a rate by trials that rises and falls, an
    evaluation an epoch, one thread for a small model, and one `seed` for everything that is random:

    >>> import narrowcast as nc
    >>> from narrowcast.testing import toy_task
    >>> records = list(nc.simulate(toy_task(), "time-varying", dim=64, cohort=6, lr=4.0, epochs=20, seed=1))
    >>> records[-1].loss < records[0].loss, sorted(records[-1].metrics)
    (True, ['accuracy', 'loss'])

    A method that is made already, `nc.method(name, key=...)`, brings its own options and key, and a `Plan` in
    place of settings says how the run goes in full: its rate is constant and the end alone is evaluated
    unless it says so. `on_record` is called with every record before it is yielded (`runs.Trackers`, say).
    """
    if missing := lacks(task):
        raise TypeError(
            f"simulate takes a task, got {type(task).__name__}, which lacks {', '.join(missing)}: "
            "nc.TorchTask(model, train=..., test=..., clients=...)"
        )
    if plan is None:
        run, threads = _asked(task, method, settings)
    else:
        if isinstance(method, str) or settings:
            what = f"the method's name {method!r}" if isinstance(method, str) else ", ".join(settings)
            raise TypeError(f"a Plan takes a method that is made, nc.method(...), no settings: got {what}")
        threads = default_threads(task)
        with using_threads(threads):
            run = Simulation(task, method, plan)
    return _rounds(run, threads, on_record)


def _asked(task: Task, method: str | Method[Any], settings: dict[str, Any]) -> tuple[Simulation, int]:
    """The simulation that these settings ask for, and its threads."""
    known = {"method": method} if isinstance(method, str) else {}
    config = make_config({"task": CUSTOM, **known, **settings})
    refuse_unused(settings, config)
    only_here(config)
    prepared = prepare(config, task)
    made = prepared.method if isinstance(method, str) else method
    threads = prepared.config.threads
    assert threads is not None
    with using_threads(threads):
        return Simulation(task, made, prepared.plan), threads


def _rounds(
    run: Simulation, threads: int, on_record: Callable[[RoundRecord], object] | None
) -> Iterator[RoundRecord]:
    """The threads are the run's while a round is computed, and the caller's in between."""
    while run.round < run.rounds:
        with using_threads(threads):
            record = run.step()
        if on_record is not None:
            on_record(record)
        yield record
