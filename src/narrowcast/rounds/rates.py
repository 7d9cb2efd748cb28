"""`lr = auto`: a rate for this task and this method, from a few trials of the run itself.

A method's steps differ in length and in noise by five decades (signSGD moves every coordinate by the rate,
FedKSeed mostly at random), so no formula over the gradient serves all of them. What serves is to try. First
the scale: a round at a tiny rate r moves theta by |Delta|, and rates are counted in `stride |theta0| r /
|Delta|`, the one whose first step is as long, beside theta0, as a good one is for this method
(`Method.stride`, measured). Then, from coarse to fine:
- short trials at powers of four of that, until the best lies inside: where to look;
- long ones, as long as the run itself or LONG_TRIAL rounds, from there by halves or doubles until it gets
  worse. What a short trial cannot see decides here: what clients keep and send at their next visit (error
  feedback), estimates that fill over an epoch, noise that multiplies until it is too much.
Every trial has the run's schedule squeezed into it, and all share their clients, examples and A, so that they
differ by the rate alone; a trial's score is the clients' own loss over its last quarter, taken before they
train: no test data, nothing that a client would not send anyway.

Where a trial was as long as the run, it was the run, and the best is taken. A longer run takes the middle of
the two neighbours the worse of which does best, but less than the best by the root of what it is longer, up
to sqrt(2): a rate that is good only beside the edge of divergence will cross it. What a method itself says
of rates and lengths (`Method.slower`) comes on top.

On a fleet every round of a trial takes its time: `on_a_fleet` has short trials only, where the run is long
beside them, and else takes the scale alone, at half its length (`first_step`). All of them read clients'
losses and updates: a run that accounts for privacy must count them, or be given a rate.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Any

from torch import Tensor

from narrowcast.errors import Diverged
from narrowcast.methods.base import Method
from narrowcast.numerics.devices.names import wide
from narrowcast.rounds.exchange import run_id
from narrowcast.rounds.plan import AUTO, Plan
from narrowcast.rounds.training import Training
from narrowcast.rounds.tune import Found, Grid, search

PROBE = 1e-3  # the rate of the first step
PROBES = 12  # rounds that it may take: few bits of a small step may round to nothing, and empty rounds come
SHORTEST, LONGEST = 8, 24  # rounds of a short trial: a quarter of the run's between these
LONG_TRIAL = 96  # rounds of a long one, where the run has more
FACTOR = 4.0  # between the rates of short trials
MOST = 9  # trials of a kind
LONG = 100  # rounds of a run on a fleet that is worth trials

Begin = Callable[[Plan], Training]  # a run by this plan, from its first round
Say = Callable[[float, float], None]  # (a rate, the loss that it led to), after a trial


def settled(plan: Plan, method: Method[Any], clients: int, begin: Begin) -> Plan:
    """The plan with a number for its rate: its own, or the one that trials find."""
    if plan.lr != AUTO:
        return plan
    return replace(plan, lr=by_trials(plan, method, clients, begin).rate)


def by_trials(
    plan: Plan,
    method: Method[Any],
    clients: int,
    begin: Begin,
    say: Say | None = None,
    quick: bool = False,
) -> Found:
    """The rate for a run by this plan with so many clients, `quick`: by short trials alone."""
    trials = _Trials(plan, begin, plan.length(clients), say)
    epoch = plan.cohorts(clients).rounds_per_epoch
    short = min(trials.length, LONGEST, max(SHORTEST, trials.length // 4))
    long = short if quick else min(trials.length, LONG_TRIAL)
    grid = Grid(trials.scale(method.stride), FACTOR, MOST)
    coarse = {grid.rate(i): s for i, s in search(grid, lambda rate: trials.score(rate, short)).items()}
    _some_ended(coarse)
    start = _short(best_rate(coarse) / method.slower(short, long, epoch))
    known = coarse if long == short else {}
    fine = climb(start, lambda rate: trials.score(rate, long), known)
    _some_ended(fine)
    rate = safe(fine, trials.length / long) / method.slower(long, trials.length, epoch)
    return trials.found(_short(rate))


def _some_ended(scores: Mapping[float, float]) -> None:
    if not any(map(math.isfinite, scores.values())):
        raise Diverged(
            f"lr auto: every rate from {min(scores):g} to {max(scores):g} diverged: is something wrong with "
            "the model, its loss or its data? If not, give --lr yourself"
        )


def climb(start: float, score: Callable[[float], float], known: Mapping[float, float]) -> dict[float, float]:
    """Rates and scores from `start` by halves while that is better, else by doubles, MOST new ones at most;
    where all diverge it goes down. The best has a worse neighbour at each side, unless that was too many."""
    scores = dict(known)

    def at(rate: float) -> float:
        if rate not in scores:
            scores[rate] = score(rate)
        return scores[rate]

    at(start)
    for factor in (0.5, 2.0):
        rate, further = start, _short(start * factor)
        while len(scores) < len(known) + MOST and (at(further) > at(rate) or at(rate) == -math.inf):
            rate, further = further, _short(further * factor)
        if rate != start:
            break
    return scores


def best_rate(scores: Mapping[float, float]) -> float:
    """Where the score is highest, of equals the smallest."""
    return min(scores, key=lambda rate: (-scores[rate], rate))


def safe(scores: Mapping[float, float], longer: float) -> float:
    """The rate for a run `longer` times its trials. As long: the best.

    Else the middle of the two neighbours, a factor of two apart, the worse of which does best (of equals the
    smaller), and no more than the best rate over the root of `longer`, up to sqrt(2): a lucky trial beside
    the edge counts for little, and nothing above the best is trusted.
    """
    best = best_rate(scores)
    if longer <= 1.0:
        return best
    low, high = min(
        (pair for pair in pairwise(sorted(scores)) if pair[1] < 2.1 * pair[0]),
        key=lambda pair: (-min(scores[pair[0]], scores[pair[1]]), pair),
    )
    return min(math.sqrt(low * high), best / math.sqrt(min(2.0, longer)))


def on_a_fleet(plan: Plan, method: Method[Any], clients: int, begin: Begin) -> Found:
    """The rate for a run whose clients are nodes: by short trials, or from one round where the run is
    short too."""
    if plan.length(clients) >= LONG:
        return by_trials(plan, method, clients, begin, quick=True)
    return first_step(plan, method, begin)


def first_step(plan: Plan, method: Method[Any], begin: Begin) -> Found:
    """The rate whose first step is half as long as a good one is, usually: one round, and no trial."""
    trials = _Trials(plan, begin, 1, None)
    return trials.found(_short(trials.scale(method.stride) / 2))


def _short(rate: float) -> float:
    """In three digits: a rate that can be read, and typed."""
    return float(f"{rate:.3g}")


@dataclass
class _Trials:
    """Short runs by a plan at several rates, and what they took."""

    plan: Plan
    begin: Begin
    length: int  # rounds of the run
    say: Say | None
    losses: dict[int, dict[str, float | None]] = field(default_factory=dict)  # by a trial's rounds
    rounds: int = 0
    up: int = 0
    down: int = 0
    started: float = field(default_factory=time.perf_counter)

    def scale(self, stride: float) -> float:
        """The rate whose first step is `stride` |theta0| long, as a tiny one tells."""
        training = self._begin(replace(self.plan, schedule=[(0.0, 1.0)]), PROBE, PROBES)
        before = training.theta.clone()
        for _ in range(PROBES):
            self._step(training)
            moved = _distance(training.theta, before)
            steps: int = training.server.version  # an empty round is none
            if moved > 0:
                return stride * max(_norm(before), 1e-3) * PROBE * steps / moved
        raise Diverged(
            f"lr auto: {PROBES} rounds left the model where it was: no client came, or every gradient is "
            "zero. Give --lr yourself"
        )

    def score(self, rate: float, n: int) -> float:
        """Minus the loss towards the end of a trial of n rounds at this rate; -inf: it diverged."""
        squeezed = [(epoch * n / self.length, factor) for epoch, factor in self.plan.schedule]
        try:
            training = self._begin(replace(self.plan, schedule=squeezed), rate, n)
            losses = [loss for _ in range(n) if (loss := self._step(training)) is not None]
        except Diverged:
            losses = []
        tail = losses[-max(1, n // 4) :]
        loss = sum(tail) / len(tail) if tail else math.inf
        finite = math.isfinite(loss)
        self.losses.setdefault(n, {})[f"{rate:g}"] = _short(loss) if finite else None
        if self.say:
            self.say(rate, loss)
        return -loss if finite else -math.inf

    def found(self, rate: float) -> Found:
        seconds = time.perf_counter() - self.started
        *short, long = (self.losses[n] for n in sorted(self.losses)) if self.losses else ({},)
        return Found(rate, long, short[0] if short else {}, self.rounds, self.up, self.down, seconds)

    def _begin(self, plan: Plan, rate: float, rounds: int) -> Training:
        """A run of its own for a fleet's nodes; a round longer than is asked: the last one would evaluate."""
        name = run_id(plan.run + f"lr auto {rate!r} {rounds}".encode())
        own = replace(plan, lr=rate, epochs=None, rounds=rounds + 1, evaluate_every=0, run=name)
        return self.begin(own)

    def _step(self, training: Training) -> float | None:
        record = training.step()
        self.rounds += 1
        self.up += record.up
        self.down += record.down
        return training.typical(record)


def _norm(x: Tensor) -> float:
    return float(wide(x).norm())


def _distance(a: Tensor, b: Tensor) -> float:
    return float((wide(a) - wide(b)).norm())
