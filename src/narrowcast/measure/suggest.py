"""What to run with so many bytes a client: candidates that fit, each tried on held-out data, and ranked."""

from __future__ import annotations

import shlex
import statistics
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import msgspec

from narrowcast.measure import rules
from narrowcast.measure.candidates import Candidate, Traffic, brought, bytes_of, largest, traffic, variants
from narrowcast.measure.probing import UNCOMPRESSED, Say, Trial
from narrowcast.measure.trainers import InFolders, Watch
from narrowcast.runs import words
from narrowcast.runs.attempts import folder_of
from narrowcast.runs.config import RunConfig
from narrowcast.runs.prepared import prepare
from narrowcast.runs.summary import summarise
from narrowcast.runs.used import used
from narrowcast.units import format_bytes

RATES = 3


class Option(msgspec.Struct, frozen=True):
    """A candidate that was tried. Bytes are of a mean client, up and down, over the run."""

    method: str
    d: int
    subspaces: int
    refresh: str
    predicted: float  # bytes, before the run
    sent: float  # bytes, counted in it
    trials: dict[str, float | None]  # rate -> metric of the first seed; None: it diverged
    rate: float
    metrics: list[float]  # at the end, of the seeds that came to it, at the best rate
    own: dict[str, int | float | str | bool | None] = {}  # settings that only this method has
    diverged: int = 0  # seeds that did at the best rate

    @property
    def candidate(self) -> Candidate:
        return Candidate(self.method, self.subspaces, self.refresh, tuple(self.own.items()))

    @property
    def mean(self) -> float:
        return statistics.mean(self.metrics)

    @property
    def lost(self) -> str:
        """How many of its seeds diverged; empty: none."""
        return f"{self.diverged} of {self.diverged + len(self.metrics)} diverged" if self.diverged else ""


class Suggested(msgspec.Struct, frozen=True):
    task: str
    parameters: int
    clients: int
    epochs: float
    budget: int
    metric: str
    higher_is_better: bool
    seeds: list[int]
    options: list[Option]  # the best first
    whole: Option  # uncompressed, for comparison: it need not fit
    command: str  # runs the best one


@dataclass(frozen=True)
class Trials:
    """How candidates are tried: on a held-out part of the training set, evaluated at the end."""

    config: RunConfig
    folder: Path
    seeds: tuple[int, ...]
    higher_is_better: bool
    say: Say
    watch: Watch | None

    def attempt(self, c: Candidate, d: int, predicted: float, rates: list[float]) -> list[Option]:
        """At every rate with the first seed, at the best of them with the others; []: all diverged."""
        trainer = InFolders(self.config.but(**c.settings()), self.folder, self.watch)
        dim = None if c.method == UNCOMPRESSED else d

        def score(rate: float, seed: int) -> float | None:
            run = trainer.train(Trial(c.method, dim, rate, seed), None)
            return None if run.diverged or not run.curve else run.curve[-1][1]

        trials = {rate: score(rate, self.seeds[0]) for rate in rates}
        ended = {rate: value for rate, value in trials.items() if value is not None}
        if not ended:
            self.say(f"{c.label}, d = {d}: diverged at all rates")
            return []
        best = (max if self.higher_is_better else min)(ended, key=lambda rate: ended[rate])
        others = [score(best, seed) for seed in self.seeds[1:]]
        metrics = [ended[best], *(value for value in others if value is not None)]
        run = summarise(self.folder / folder_of(trainer.config_of(Trial(c.method, dim, best, self.seeds[0]))))
        sent = (run.up + run.down) / run.facts.clients
        named = {f"{rate:g}": value for rate, value in trials.items()}
        o = Option(
            c.method, d, c.subspaces, c.refresh, predicted, sent, named, best, metrics, dict(c.own),
            len(self.seeds) - len(metrics),
        )  # fmt: skip
        lost = f", {o.lost}" if o.lost else ""
        self.say(f"{c.label}, d = {d}: {o.mean:.4f}{lost} at lr {best:g}, {format_bytes(sent)} a client")
        return [o]


def propose(
    config: RunConfig,
    seeds: tuple[int, ...],
    budget: int,
    folder: Path,
    *,
    rates: int = RATES,
    full_rate: float = rules.FULL_RATE,
    say: Say = lambda line: None,
    watch: Watch | None = None,
) -> Suggested:
    """Try every candidate that fits; the test set stays unread."""
    run = prepare(config.but(method=UNCOMPRESSED))
    task, cohorts, rounds, D = run.task, run.cohorts, run.rounds, run.task.layout.size
    held_out = config.but(validation=True, evaluate_every=0)
    trials = Trials(held_out, folder, seeds, task.higher_is_better, say, watch)
    options: list[Option] = []
    formats = (config.uplink, config.downlink, config.up_bits, config.down_bits)
    tried = variants(cohorts.rounds_per_epoch, rounds, formats == ("f32", "f32", None, None))
    for c in [*tried, *brought(config)]:
        visits = traffic(cohorts, rounds, c)
        size = partial(_size, c, D, visits, config)
        d = largest(lambda d, size=size: size(d) <= budget, D // c.subspaces)  # type: ignore[misc]
        if not d:
            say(f"{c.label}: not even d = 1 fits, which is {format_bytes(size(1))}")
            continue
        centre = rules.rate(d, D, full_rate) * rules.route_factor(c.subspaces)
        options += trials.attempt(c, d, size(d), rules.rates(centre, rates))
    if not options:
        raise ValueError(
            f"nothing of the family fits {format_bytes(budget)} a client in {rounds} rounds, or all that "
            "does diverged: give a larger --budget, fewer --epochs or a smaller --full-lr"
        )
    options = ranked(options, task.higher_is_better)
    all_of_it = Candidate(UNCOMPRESSED)
    size_of_all = bytes_of(all_of_it, 1, D, traffic(cohorts, rounds, all_of_it), config)
    whole = trials.attempt(all_of_it, D, size_of_all, rules.rates(full_rate, rates))
    if not whole:
        raise ValueError(f"uncompressed training diverged at rate {full_rate:g}: give a smaller --full-lr")
    return Suggested(
        config.task, D, len(task.clients), rounds / cohorts.rounds_per_epoch, budget, task.metric,
        task.higher_is_better, list(seeds), options, whole[0], command_of(config, options[0]),
    )  # fmt: skip


def ranked(options: list[Option], higher_is_better: bool) -> list[Option]:
    """The best first, among those that lost as many seeds: a mean of the seeds left is no better for it."""
    return sorted(options, key=lambda o: (o.diverged, -o.mean if higher_is_better else o.mean))


def _size(c: Candidate, D: int, visits: Traffic, config: RunConfig, d: int) -> float:
    return bytes_of(c, d, D, visits, config)


def command_of(config: RunConfig, o: Option) -> str:
    """The run to start, as one would type it."""
    update = {**o.candidate.settings(), "dim": o.d, "lr": o.rate}
    best = config.but(**update)
    return shlex.join(["narrowcast", "run", *words.arguments(best, used(best))])
