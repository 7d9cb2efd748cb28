"""Proposition 1: theta <- theta - eta A_t A_t^T v_t needs d numbers up, whatever v_t a client computes.

Each row runs the simulator and, beside it, the update itself in float64 with A written out: both must go the
same way, theta - theta0 must stay in the span of the A that were used, and an upload must be d numbers.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import msgspec
import torch
from torch import Tensor

from narrowcast import wire
from narrowcast.methods import SGD, Momentum
from narrowcast.numerics import Key, Purpose, keyed
from narrowcast.rounds import Plan, Round, Simulation, exchange
from narrowcast_studies.theory.problems import Problem
from narrowcast_studies.theory.task import ProblemTask, clipped
from narrowcast_studies.theory.trials import build

BETA = 0.9
LOCAL_STEPS = 5
COHORT = 8


class Carried(msgspec.Struct, frozen=True):
    """One v_t with one method. Distances are relative to how far theta moved."""

    v: str
    method: str
    dim: int
    rounds: int
    difference: float  # the largest distance between the two ways, over the rounds
    outside: float  # the part of theta - theta0 outside the span of the A used
    numbers: float  # in an upload, from its encoded size


ClientV = Callable[[Problem, Tensor, int, float, float], Tensor]  # problem, theta, client, rate, clip


def gradient(problem: Problem, theta: Tensor, client: int, rate: float, clip: float) -> Tensor:
    """v = g_c(theta)."""
    index = problem.clients[client]
    return problem.weighted(theta, index, torch.full((len(index),), 1.0 / len(index)).double())[1]


def clip_gradient(problem: Problem, theta: Tensor, client: int, rate: float, clip: float) -> Tensor:
    """v = g min(1, clip / |g|)."""
    return clipped(gradient(problem, theta, client, rate, clip), clip)


def local_steps(problem: Problem, theta: Tensor, client: int, rate: float, clip: float) -> Tensor:
    """v = (theta - theta_after) / rate after some steps of gradient descent on the client's own loss."""
    here = theta.clone()
    for _ in range(LOCAL_STEPS):
        here = here - rate * gradient(problem, here, client, rate, clip)
    return (theta - here) / rate


def threshold(problem: Problem) -> float:
    """A norm that about half of the clients' gradients at theta0 exceed."""
    return float(problem.gradients(problem.start).norm(dim=1).median())


@dataclass(frozen=True)
class Update:
    """A kind of v: as the package is told to make it, and as its definition says."""

    v: ClientV
    clip: bool = False
    momentum: bool = False
    plan: dict[str, Any] = field(default_factory=dict)


UPDATES = {
    "gradient": Update(gradient),
    "momentum": Update(gradient, momentum=True),
    "clipped": Update(clip_gradient, clip=True, plan={"per_client": True}),
    "local steps": Update(local_steps, plan={"local_steps": LOCAL_STEPS}),
}
METHODS: dict[str, dict[str, Any]] = {"static": {}, "time-varying": {"refresh": 5}}


def carry(problem: Problem, v: str, name: str, dim: int, rounds: int, rate: float, key: Key) -> Carried:
    """The simulator and the update itself, side by side."""
    update = UPDATES[v]
    how = build(name, "rotation", dim, key, **METHODS[name],
                optimiser=Momentum(BETA) if update.momentum else SGD())  # fmt: skip
    mine = keyed.derive(key, Purpose.RUN)
    plan = Plan(cohort=COHORT, lr=rate, rounds=rounds, sampling="uniform", key=mine, **update.plan)
    clip = threshold(problem)
    task = ProblemTask(problem, clip if update.clip else None)
    run = Simulation(task, how, plan)
    theta, memory = problem.start.clone(), torch.zeros(problem.D).double()
    used: list[Tensor] = []
    up = clients = 0
    worst = 0.0
    for t in range(rounds):
        stage = t // METHODS[name].get("refresh", rounds)
        if stage == len(used):
            used.append(how.matrix(problem.D, stage, 0).dense().double())
            memory = torch.zeros_like(memory)  # a new A starts momentum anew
        came = run.cohorts.come(t).tolist()
        mean = torch.stack([update.v(problem, theta, c, rate, clip) for c in came]).mean(0)
        memory = BETA * memory + mean if update.momentum else mean
        theta = theta - rate * (dim / problem.D) * (used[-1] @ (used[-1].T @ memory))
        record = run.step()
        up, clients = up + record.up, clients + record.clients
        moved = float((theta - problem.start).norm())
        worst = max(worst, float((run.theta.double() - theta).norm()) / moved)
    return Carried(v, name, dim, rounds, worst, _outside(run.theta, problem, used), _numbers(up / clients))


def _outside(theta: Tensor, problem: Problem, used: list[Tensor]) -> float:
    away = theta.double() - problem.start
    U = torch.linalg.qr(torch.cat(used, 1))[0]
    return float((away - U @ (U.T @ away)).norm() / away.norm())


def _numbers(size: float) -> float:
    """The n whose message of n float32 numbers has this many bytes, encoded."""
    nowhere = Round(b"\0" * 8, 0, 0, 0, b"\0" * 8)
    n = math.floor(size / 4)
    while n and len(exchange.seal(nowhere, wire.payload([wire.block(torch.zeros(n))]))) > size:
        n -= 1
    rest = size - len(exchange.seal(nowhere, wire.payload([wire.block(torch.zeros(n))])))
    return n + rest / 4
