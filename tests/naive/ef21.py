"""EF21 with partial participation: the estimates of those who do not come stay as they are."""

import numpy as np


def top_k(x, k):
    kept = np.argsort(-np.abs(x), kind="stable")[:k]
    out = np.zeros_like(x)
    out[kept] = x[kept]
    return out


def ef21(theta_0, N, k, rounds, gradient, eta):
    """theta_T. rounds: (t, [c_1 .. c_W]) of N clients."""
    theta = theta_0
    g_i = np.zeros((N, len(theta_0)))
    for _t, clients in rounds:
        for c in clients:
            g_i[c] += top_k(gradient(theta, c) - g_i[c], k)
        theta = theta - eta * g_i.mean(axis=0)  # the mean of all N
    return theta
