"""What fits a budget of bytes: for each method, K and refresh the largest d, counted before anything is run.

Which client comes in which round is known (`sampling.Cohorts`), and so is what it then lacks; a message's
bytes are those of the planner.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from narrowcast.methods.sizes import shape_of
from narrowcast.methods.table import METHODS
from narrowcast.rounds.sampling import Cohorts
from narrowcast.runs.config import RunConfig
from narrowcast.runs.own import config_class


class Candidate(NamedTuple):
    method: str
    subspaces: int = 1  # K
    refresh: str = "epoch"  # of the time-varying ones
    own: tuple[tuple[str, Any], ...] = ()  # settings that only this method has

    @property
    def varies(self) -> bool:
        return "refresh" in METHODS[self.method].options

    @property
    def label(self) -> str:
        routes = [f"K = {self.subspaces}"] if self.subspaces > 1 else []
        return ", ".join([self.method, *routes, *([f"refresh {self.refresh}"] if self.varies else [])])

    def settings(self) -> dict[str, object]:
        """What of a configuration it sets; what it does not use is left as it is."""
        routes = {"subspaces": self.subspaces} if self.method.startswith("k-subspace") else {}
        varies = {"refresh": self.refresh} if self.varies else {}
        return {"method": self.method, **routes, **varies, **dict(self.own)}

    def stage(self, per_epoch: int) -> int | None:
        """Rounds of a stage; None: there is only one."""
        if not self.varies:
            return None
        return per_epoch if self.refresh == "epoch" else int(self.refresh)


class Traffic(NamedTuple):
    """Messages of a mean client over a run."""

    uploads: float
    downloads: list[float]  # entry m: those while it lacks m finished stages


def variants(per_epoch: int, rounds: int, plain: bool = True) -> list[Candidate]:
    """The modest set that is tried; one whose first stage outlasts the run would be another's twin."""
    refreshes = ["epoch", str(2 * per_epoch), *([str(per_epoch // 2)] if per_epoch > 1 else [])]
    made = [Candidate("static"), *(Candidate("time-varying", 1, r) for r in refreshes)]
    made += [Candidate("k-subspace", K) for K in (2, 4, 8)]
    made += [Candidate("k-subspace-time-varying", K) for K in (2, 4)]
    made += [Candidate("narrow")] if plain else []  # else it is no other than time-varying
    return [c for c in made if (c.stage(per_epoch) or 0) < rounds]


def brought(config: RunConfig) -> list[Candidate]:
    """The method that the configuration names, where it is none of ours: with the settings of its own."""
    if config.method in METHODS.own:
        return []
    own = config_class(config.task, config.method).model_fields.keys() - RunConfig.model_fields.keys()
    theirs = tuple(
        (name, getattr(config, name)) for name in sorted(own & set(METHODS[config.method].options))
    )
    K = config.subspaces if "subspaces" in METHODS[config.method].options else 1
    return [Candidate(config.method, K, config.refresh, theirs)]


def traffic(cohorts: Cohorts, rounds: int, c: Candidate) -> Traffic:
    """Who comes, and how many stages each lacks then. Stages end as those of `Intrinsic` do."""
    seen = np.zeros(cohorts.clients, np.int64)  # the stage a client knows; a newcomer has theta0, the first
    counts = np.zeros(rounds + 1, np.int64)
    stage = uploads = updates = began = 0  # `began`: the epoch in which the stage did
    for number in range(rounds):
        came = cohorts.come(number)
        answered = len(cohorts.answer(number, came))
        counts += np.bincount(stage - seen[came], minlength=len(counts))
        seen[came] = stage
        uploads += answered
        if not answered:  # no update, and no stage ends without one
            continue
        updates += 1
        epoch, last = cohorts.epoch(number), cohorts.epoch_end(number)
        over = last or epoch > began if c.refresh == "epoch" else updates >= int(c.refresh)
        if c.varies and over:
            stage, updates, began = stage + 1, 0, epoch + last
    lags = np.trim_zeros(counts, "b") / cohorts.clients
    return Traffic(uploads / cohorts.clients, lags.tolist())


def bytes_of(c: Candidate, d: int, D: int, visits: Traffic, config: RunConfig) -> float:
    """Bytes up and down of a mean client, as the messages are encoded."""
    names = ("uplink", "downlink", "up_bits", "down_bits")
    given = {name: value for name in names if (value := getattr(config, name)) is not None}
    asked = {"dim": d, "subspaces": c.subspaces, **given, **dict(c.own)}
    entry = METHODS[c.method]
    shape = shape_of(entry.make(**entry.fitting(asked)), D, 1, 1)
    down = sum(n * shape.down(m).bytes for m, n in enumerate(visits.downloads) if n)
    return visits.uploads * shape.up.bytes + down


def largest(fits: Callable[[int], bool], most: int) -> int:
    """The largest d of 1 .. most that fits, cut to two digits; 0: none does. Above it none fits."""
    low, high = 0, most + 1
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if fits(middle) else (low, middle)
    step: int = 10 ** max(0, len(str(low)) - 2)
    return low // step * step
