"""Deep gradient compression (Lin et al. 2018): momentum correction, factor masking, warm-up."""

import numpy as np


def dgc(theta_0, rounds, gradient, eta, k, m, warmup=0):
    """theta_T. rounds: (t, [c_1 .. c_W]); gradient(theta, c) is g of client c; k coordinates in the end."""
    theta = theta_0
    D = len(theta)
    u, v = {}, {}
    for t, clients in rounds:
        Delta = np.zeros(D)
        now = k if t >= warmup else round((D // 4) ** (1 - t / warmup) * k ** (t / warmup))
        for c in clients:
            u[c] = m * u.get(c, np.zeros(D)) + gradient(theta, c)
            v[c] = v.get(c, np.zeros(D)) + u[c]
            mask = np.zeros(D, bool)
            mask[np.argsort(-abs(v[c]))[:now]] = True
            Delta = Delta + v[c] * mask / len(clients)
            v[c] = v[c] * ~mask
            u[c] = u[c] * ~mask
        theta = theta - eta * Delta
    return theta
