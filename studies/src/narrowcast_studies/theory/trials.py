"""Runs of the package's own methods, driven by the simulator, with the exact minima beside them.

All numbers of a trial are in units of g(theta0) - g*.
"""

from __future__ import annotations

import math
from typing import Any

import msgspec
import torch
from torch import Tensor

from narrowcast.methods import Intrinsic, method
from narrowcast.numerics import Key, Purpose, keyed
from narrowcast.rounds import Plan, Simulation
from narrowcast_studies.theory.bounds import Steps, factor, noise
from narrowcast_studies.theory.problems import Problem
from narrowcast_studies.theory.task import ProblemTask


class Trial(msgspec.Struct, frozen=True):
    """One run. A static or K-subspace run has one stage, a time-varying run one an epoch."""

    curve: list[float]  # excess at equally spaced times, the first at theta0
    ratios: list[float]  # a stage: minimum over base + span(A) over the excess at base
    gaps: list[float]  # a stage: excess at its end above that minimum: what epsilon bounds
    steps: int
    factor: float = 1.0  # K (1 + 1/C) of a K-subspace run's own A


def simulation(problem: Problem, how: Any, rate: float, rounds: int, key: Key, **more: Any) -> Simulation:
    """`rounds` rounds of W uniformly drawn clients: an unbiased gradient with fresh noise every round."""
    plan = Plan(
        cohort=problem.cohort, lr=rate, rounds=rounds, sampling="uniform",
        key=keyed.derive(key, Purpose.RUN), **more,
    )  # fmt: skip
    return Simulation(ProblemTask(problem), how, plan)


def orthonormal(how: Intrinsic, D: int, stage: int = 0) -> Tensor:
    """Q = sqrt(d/D) [A^1 ... A^K] of a stage, (D, d K): in its coordinates `--lr` is the lemma's rate."""
    parts = [how.matrix(D, stage, k).dense().double() for k in range(how.subspaces)]
    return torch.cat(parts, 1) * math.sqrt(how.dim / D)


def build(name: str, kind: str, dim: int, key: Key, **more: Any) -> Intrinsic:
    made = method(name, dim=dim, key=key, subspace=kind, **more)
    assert isinstance(made, Intrinsic)
    return made


def static(problem: Problem, kind: str, dim: int, plan: Steps, key: Key, marks: int = 1) -> Trial:
    """Theorem 1: one subspace, `plan.count` steps."""
    how = build("static", kind, dim, key)
    return _one_stage(problem, how, plan, key, marks)


def k_subspace(problem: Problem, kind: str, dim: int, plan: Steps, K: int, key: Key, marks: int = 1) -> Trial:
    """Theorem 2: K (1 + 1/C) times the steps of static, with C of this run's A at theta0.

    The proof's estimate K A_k'^T g has K (1 + 1/C) times the variance, so its rate is that much smaller; the
    method steps along A_k'^T g, without the K, and `--lr` makes up for it: rate / (1 + 1/C).
    """
    how = build("k-subspace", kind, dim, key, subspaces=K)
    variance, mean = noise(problem, problem.start, orthonormal(how, problem.D))
    times = factor(K, variance / mean)
    longer = Steps(plan.rate * K / times, math.ceil(plan.count * times))
    return msgspec.structs.replace(_one_stage(problem, how, longer, key, marks), factor=times)


def _one_stage(problem: Problem, how: Intrinsic, plan: Steps, key: Key, marks: int) -> Trial:
    gap = problem.gap
    curve = [1.0]
    run = simulation(problem, how, plan.rate, plan.count, key)
    for mark in range(1, marks + 1):
        while run.round < round(plan.count * mark / marks):
            run.step()
        curve.append(problem.excess(run.theta.double()) / gap)
    best = problem.restricted(problem.start, orthonormal(how, problem.D)).excess / gap
    return Trial(curve, [best], [curve[-1] - best], plan.count)


def time_varying(problem: Problem, kind: str, dim: int, plan: Steps, E: int, key: Key) -> Trial:
    """Theorem 3: E epochs of `plan.count` steps, a new A for each."""
    gap = problem.gap
    how = build("time-varying", kind, dim, key, refresh=plan.count)
    run = simulation(problem, how, plan.rate, plan.count * E, key)
    curve, ratios, gaps = [1.0], [], []
    for stage in range(E):
        base = run.theta.double().clone()
        for _ in range(plan.count):
            run.step()
        best = problem.restricted(base, orthonormal(how, problem.D, stage)).excess / gap
        ratios.append(best / curve[-1])
        curve.append(problem.excess(run.theta.double()) / gap)
        gaps.append(curve[-1] - best)
    return Trial(curve, ratios, gaps, plan.count * E)


def bases(problem: Problem, kind: str, dim: int, plan: Steps, E: int, key: Key) -> list[Tensor]:
    """theta at the start of each epoch of a time-varying run: where theorem 3 applies the definition."""
    how = build("time-varying", kind, dim, key, refresh=plan.count)
    run = simulation(problem, how, plan.rate, plan.count * E, key)
    visited = []
    for _ in range(E):
        visited.append(run.theta.double().clone())
        for _ in range(plan.count):
            run.step()
    return visited
