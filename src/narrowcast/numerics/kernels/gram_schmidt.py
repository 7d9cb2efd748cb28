"""Orthonormal columns, the same bits on every machine: serial sums in float64, always in the same order."""

from __future__ import annotations

import math

import numpy as np
from numba import njit

DEPENDENT = 1e-6  # what is left of a unit column that lies in the span of those before it


@njit(inline="always")
def length(q):
    total = 0.0
    for x in q:
        total += x * x
    return math.sqrt(total)


@njit(nogil=True, cache=True)
def fits(Q, j):
    """Make row j of Q a unit vector orthogonal to the rows before it; False if nothing of it is left."""
    q = Q[j]
    size = length(q)
    if not 0.0 < size < np.inf:
        return False
    for i in range(q.size):
        q[i] /= size
    for _ in range(2):  # the second time removes what rounding left of the first
        for k in range(j):
            dot = 0.0
            for i in range(q.size):
                dot += q[i] * Q[k, i]
            for i in range(q.size):
                q[i] -= dot * Q[k, i]
    size = length(q)
    if size <= DEPENDENT:
        return False
    for i in range(q.size):
        q[i] /= size
    return True


@njit(nogil=True, cache=True)
def orthonormal(P, spare):
    """Orthonormal columns (n, r), r <= n, that span those of P; both float32, the sums in float64.

    A column of P that is zero or depends on those before it gives way to the same column of `spare`, and that
    one, if need be, to the first unit vector that fits: r independent columns always come out.
    """
    n, r = P.shape
    Q = np.empty((r, n), np.float64)
    for j in range(r):
        Q[j] = P[:, j]
        if not fits(Q, j):
            Q[j] = spare[:, j]
            unit = 0
            while not fits(Q, j):
                Q[j] = 0.0
                Q[j, unit] = 1.0
                unit += 1
    out = np.empty((n, r), np.float32)
    for j in range(r):
        for i in range(n):
            out[i, j] = Q[j, i]
    return out
