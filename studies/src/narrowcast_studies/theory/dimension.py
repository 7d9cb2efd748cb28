"""The definition: g has intrinsic dimension (delta, d, rho) when the minimum over theta0 + H, for H a uniform
d-dimensional subspace, is at most g* + rho (g(theta0) - g*) with probability 1 - delta or more.

For a given theta0 the left side over the right is a random ratio r(H) in [0, 1], and rho is its quantile at
1 - delta. It is estimated from independent draws by an order statistic; two more order statistics bound it
with a confidence that holds whatever the distribution of r.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import msgspec
import torch
from scipy.stats import binom, binomtest
from torch import Tensor

from narrowcast.numerics import Key, Purpose, keyed
from narrowcast.subspaces import subspace
from narrowcast_studies.theory.problems import Problem, normals

UNIFORM = "uniform"


class Quantile(msgspec.Struct, frozen=True):
    """A quantile from draws: the estimate, and bounds each of which holds with the stated confidence."""

    value: float
    low: float
    high: float


def basis(kind: str, D: int, d: int, key: Key) -> Tensor:
    """Q (D, d) float64. uniform: orthonormal, by QR of a Gaussian; otherwise sqrt(d/D) A of the package."""
    if kind == UNIFORM:
        Q: Tensor = torch.linalg.qr(normals(keyed.derive(key, Purpose.SUBSPACE), D * d).view(D, d))[0]
        return Q
    return subspace(kind, D, d, key).dense().double() * math.sqrt(d / D)


def ratios(problem: Problem, bases: Sequence[Tensor], kind: str, d: int, draws: int, key: Key) -> list[float]:
    """r(H) of `draws` fresh subspaces, which take turns over the bases."""
    above = [problem.excess(base) for base in bases]
    result = []
    for i in range(draws):
        Q = basis(kind, problem.D, d, keyed.derive(key, Purpose.SUBSPACE, i, d))
        at = i % len(bases)
        result.append(problem.restricted(bases[at], Q).excess / above[at])
    return result


def worst_ratios(problem: Problem, kind: str, d: int, draws: int, key: Key) -> list[float]:
    """r(H) at theta* + s v for s -> 0, v the direction of least curvature, where a subspace gains least.

    With H the Hessian at the optimum, B = H^1/2 Q and y = H^1/2 v, it is 1 - |P_B y|^2 / |y|^2.
    """
    values, vectors = torch.linalg.eigh(problem.hessian())
    result = []
    for i in range(draws):
        Q = basis(kind, problem.D, d, keyed.derive(key, Purpose.SUBSPACE, i, d))
        U = torch.linalg.qr(values.sqrt()[:, None] * (vectors.T @ Q))[0]
        result.append(1.0 - float(U[0].square().sum()))  # y is the first axis of the eigenbasis
    return result


def floor(D: int, d: int, delta: float) -> float:
    """Read for all theta0, the definition gives no g with a positive Hessian at its optimum a smaller rho.

    Near the optimum 1 - r is |P y|^2 / |y|^2 with P of rank d; E[P] has trace d, so some direction y keeps
    at most d/D of itself on average, and (1 - delta) (1 - rho) <= E[1 - r] <= d/D.
    """
    return max(0.0, 1.0 - d / (D * (1.0 - delta)))


def quantile(values: Sequence[float], p: float, confidence: float = 0.95) -> Quantile:
    """The p-quantile; the k-th smallest is above it with probability P(Binomial(n, p) <= k - 1) or more."""
    ordered, n = sorted(values), len(values)
    high = next((k for k in range(1, n + 1) if float(binom.cdf(k - 1, n, p)) >= confidence), None)
    low = next((k for k in range(n, 0, -1) if float(binom.sf(k - 1, n, p)) >= confidence), None)
    if high is None or low is None:
        raise ValueError(
            f"{n} draws cannot bound the {p:g}-quantile with confidence {confidence:g}: take more draws"
        )
    return Quantile(ordered[max(0, math.ceil(p * n - 1e-9) - 1)], ordered[low - 1], ordered[high - 1])


def proportion(hits: int, n: int, confidence: float = 0.95) -> tuple[float, float]:
    """Clopper and Pearson: two bounds of a probability, each right with the stated confidence."""
    found = binomtest(hits, n).proportion_ci(2 * confidence - 1, method="exact")
    return float(found.low), float(found.high)
