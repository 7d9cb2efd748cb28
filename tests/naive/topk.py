"""Local Top-K with error feedback, as it is told: sort by size, send the first k, keep the rest."""

import numpy as np


def top_k(x, k):
    """x where it is one of the k largest in size, zero elsewhere."""
    kept = np.zeros_like(x)
    for i in sorted(range(len(x)), key=lambda i: -abs(x[i]))[:k]:
        kept[i] = x[i]
    return kept


def topk(theta, rounds, gradient, k, eta, error_feedback=True):
    """theta after the rounds (t, [c_1 .. c_W])."""
    error = {}
    for _t, clients in rounds:
        total = 0
        for c in clients:
            x = gradient(theta, c) + error.get(c, 0)
            sent = top_k(x, k)
            if error_feedback:
                error[c] = x - sent
            total = total + sent
        theta = theta - eta * total / len(clients)
    return theta
