"""Simulated clients that lie: which of them, and what they send instead of their update v.

    sign-flip          -v
    scale              100 v
    noise              normal numbers, ten times as long as v
    label-flip         an honest update from false labels, class y told to be C - 1 - y
    little-is-enough   mu - 1.5 sigma, coordinate by coordinate, mu and sigma over the updates of the round's
                       attackers: all send the same, and nothing in it stands out (Baruch et al. 2019)

Who lies follows from the run's key: the same clients for every method, rule and attack of a seed. Only a
simulation has them; nodes of a fleet lie by themselves.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

import torch
from torch import Tensor

from narrowcast import choices
from narrowcast.errors import ConfigError
from narrowcast.numerics import keyed
from narrowcast.numerics.keyed import Key, Purpose
from narrowcast.rounds.task import Task

SCALE = 100.0
NOISE = 10.0
LITTLE = 1.5

Updates = Iterable[tuple[list[float], Tensor]]  # (losses, an update a row), chunk by chunk


class Attackers:
    """Those of a run: a `share` of the clients, rounded."""

    def __init__(self, share: float, attack: str, key: Key, clients: int) -> None:
        choices.check("attack", attack, choices.ATTACKS)
        if not 0 <= share < 1:
            raise ValueError(f"attackers are a share of the clients, from 0 to below 1, got {share}")
        self.attack, self._key = attack, keyed.derive(key, Purpose.ATTACK)
        count = math.floor(share * clients + 0.5)
        if share and not count:
            raise ConfigError(
                f"--attackers {share:g}: of {clients} clients it makes nobody lie: give 0, or "
                f"{_smallest(clients)} at least"
            )
        self.clients = frozenset(keyed.permuted(self._key, clients, 0, count).tolist())

    def corrupted(self, task: Task) -> Task:
        """The task as its clients train on it."""
        if self.attack == "label-flip" and self.clients:
            return task.mislabelled(sorted(self.clients))
        return task

    def agree(self, updates: Updates) -> Tensor | None:
        """What a round's attackers, whose updates these are, send in common; None: each sends its own."""
        if self.attack != "little-is-enough":
            return None
        count, total, squares = 0, torch.zeros(()), torch.zeros(())
        for _, vs in updates:
            count, total, squares = count + len(vs), total + vs.sum(0), squares + vs.square().sum(0)
        mean = total / max(count, 1)
        return mean - LITTLE * (squares / max(count, 1) - mean.square()).clamp_(min=0.0).sqrt_()

    def turned(self, vs: Tensor, clients: list[int], common: Tensor | None, round: int) -> Tensor:
        """The updates vs (C, D) of these clients as they are sent."""
        liars = [i for i, client in enumerate(clients) if client in self.clients]
        if not liars or self.attack == "label-flip":
            return vs
        vs = vs.clone()
        for i in liars:
            vs[i] = self._lie(vs[i], clients[i], round) if common is None else common
        return vs

    def _lie(self, v: Tensor, client: int, round: int) -> Tensor:
        match self.attack:
            case "sign-flip":
                return -v
            case "scale":
                return v * SCALE
        key = keyed.derive(self._key, Purpose.ATTACK, round, client)
        z = torch.from_numpy(keyed.normals(key, Purpose.ATTACK, v.numel()))
        return z.mul_(NOISE * float(torch.linalg.vector_norm(v) / torch.linalg.vector_norm(z)))


def _smallest(clients: int) -> str:
    """The share that makes one of so many lie, half of 1 / clients: a few digits, rounded up."""
    scale = 100 * 10 ** len(str(clients))
    return f"{math.ceil(scale / 2 / clients) / scale:g}"
