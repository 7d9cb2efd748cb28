"""FedKSeed-style training with a dense Z in float64, and the true slope z . g in place of two losses."""

import numpy as np

from narrowcast.numerics.keyed import philox


def directions(key, D, K):
    """Z (D, K): column j has the sign bits of stream j, a strip of 4096 coordinates at a time."""

    def z(e, j):
        strip, place = divmod(e, 4096)
        bit, lane = divmod(place, 128)
        word = philox((32 * strip + lane % 32, 0, j, 1 << 31), key)[lane // 32]
        return -1.0 if word >> bit & 1 else 1.0

    return np.array([[z(e, j) for j in range(K)] for e in range(D)])


def fedkseed(theta_0, Z, rounds, gradient, which, steps, eta):
    """theta_T. rounds: (t, [c_1 .. c_W]); which(t, c, i): the direction of the i-th probe of a client."""
    s = np.zeros(Z.shape[1])
    for t, clients in rounds:
        theta = theta_0 + Z @ s
        change = np.zeros_like(s)
        for c in clients:
            theta_c = theta
            for i in range(steps):
                j = which(t, c, i)
                slope = Z[:, j] @ gradient(theta_c, c)
                change[j] += slope / steps
                if steps > 1:
                    theta_c = theta_c - eta * slope * Z[:, j]  # it walks on from where it probed
        s = s - eta * change / len(clients)
    return theta_0 + Z @ s
