"""What the theorems promise, with the constants that their O~(sigma^2 / epsilon^2) leaves out.

The step count rests on one lemma. Let h be quadratic on R^d with Hessian at most L, x* its minimiser at the
distance R from the start, and let x <- x - eta (grad h(x) + noise) with noise of variance sigma^2. If
eta L <= 1, then after T steps

    E h(x_T) - h* <= R^2 / (4 e eta T) + eta sigma^2 / 2.

Proof: along an eigenvector of curvature m the error is (1 - eta m)^T x_0 plus noise; the first part costs
(m/2) (1 - eta m)^(2T) x_0^2 <= x_0^2 / (4 e eta T), since m (1 - eta m)^(2T) is largest at eta m = 1/(2T+1);
the second costs (m/2) eta^2 s^2 / (1 - (1 - eta m)^2) = eta s^2 / (2 (2 - eta m)) <= eta s^2 / 2.
With eta = min(epsilon / sigma^2, 1 / L) both halves are at most epsilon / 2 after

    T = R^2 / (2 e eta epsilon) = (R^2 / 2e) max(sigma^2 / epsilon^2, L / epsilon).
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import msgspec
import torch
from torch import Tensor

from narrowcast_studies.theory.problems import Problem


class Constants(msgspec.Struct, frozen=True):
    """What the lemma needs of h(x) = g(theta0 + Q x), and theorem 2's C."""

    R2: float  # |x*|^2
    L: float
    variance: float  # sigma^2 = Var(Q^T g_t) of a round's gradient
    C: float  # Var(Q^T g_c) / |E Q^T g_c|^2 of one client's gradient, at theta0


class Steps(msgspec.Struct, frozen=True):
    rate: float
    count: int


def noise(problem: Problem, theta: Tensor, Q: Tensor) -> tuple[float, float]:
    """(Var of one client's Q^T g_c, |E Q^T g_c|^2) over the clients."""
    rows = problem.gradients(theta) @ Q
    mean = rows.mean(0)
    return float((rows - mean).square().sum(1).mean()), float(mean @ mean)


def of_round(problem: Problem, variance: float) -> float:
    """The variance of the mean of W of N clients, drawn without replacement, from that of one."""
    N, W = len(problem.clients), problem.cohort
    return variance / W * (N - W) / (N - 1)


def constants(problem: Problem, base: Tensor, Q: Tensor) -> Constants:
    """R, L, sigma^2 and C of the subspace span(Q) through base; sigma^2 is the larger of start and end."""
    x = problem.restricted(base, Q).x
    first, mean = noise(problem, base, Q)
    last, _ = noise(problem, base + Q @ x, Q)
    return Constants(float(x @ x), problem.curvature(Q), of_round(problem, max(first, last)), first / mean)


def largest(each: Sequence[Constants]) -> Constants:
    """Constants that serve all these subspaces."""
    R2, L, variance = (max(getattr(c, name) for c in each) for name in ("R2", "L", "variance"))
    return Constants(R2, L, variance, min(c.C for c in each))


def steps(c: Constants, epsilon: float) -> Steps:
    """The lemma's rate and number of steps for a mean error of epsilon."""
    rate = min(epsilon / c.variance if c.variance else math.inf, 1 / c.L)
    return Steps(rate, math.ceil(c.R2 / (2 * math.e * rate * epsilon)))


def factor(K: int, C: float) -> float:
    """Theorem 2: K-subspace takes at most K (1 + 1/C) times the steps of static."""
    return K * (1 + 1 / C)


def variance_ratio(problem: Problem, theta: Tensor, Qs: Sequence[Tensor]) -> tuple[float, float]:
    """(what K-subspace does to sigma^2, theorem 2's K (1 + 1/C)) at theta, one client a step.

    The estimate is K A_k'^T g for a random k: its mean is A^T g with A = [A^1 ... A^K], its second moment
    K E|A^T g|^2. So the ratio is (K (V + m) - m) / V with V = Var(A^T g), m = |E A^T g|^2.
    """
    K = len(Qs)
    V, m = noise(problem, theta, torch.cat(list(Qs), 1))
    return (K * (V + m) - m) / V, factor(K, V / m)


def static(rho: float, gap: float, epsilon: float) -> float:
    """Theorems 1 and 2: rho (g(theta0) - g*) + epsilon."""
    return rho * gap + epsilon


def time_varying(rho: float, gap: float, epsilon: float, E: int) -> float:
    """Theorem 3: rho^E (g(theta0) - g*) + epsilon sqrt(E) / (1 - rho)."""
    return rho**E * gap + epsilon * math.sqrt(E) / (1 - rho)
