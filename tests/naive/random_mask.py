"""Structured updates with a random mask (Konecny et al. 2016): every client its own coordinates."""

import numpy as np


def random_mask(theta_0, rounds, gradient, mask, eta):
    """theta_T. rounds: (t, [c_1 .. c_W]); mask(t, c): the positions that client c sends in round t."""
    theta, D = theta_0, len(theta_0)
    for t, clients in rounds:
        total = np.zeros(D)
        for c in clients:
            S = mask(t, c)
            M = np.zeros(D)
            M[S] = 1.0
            total += D / len(S) * M * gradient(theta, c)
        theta = theta - eta * total / len(clients)
    return theta
