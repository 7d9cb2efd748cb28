"""Sparse ternary compression (Sattler et al. 2019, algorithms 1 and 2), one step of training a round."""

import numpy as np


def ternary(T, k):
    """The k largest of T, the first of equal ones, each as its sign times their mean size."""
    places = np.argsort(-abs(T), kind="stable")[:k]
    mu = abs(T[places]).mean()
    sparse = np.zeros_like(T)
    sparse[places] = mu * np.sign(T[places])
    return sparse


def stc(theta_0, rounds, gradient, eta, k, error_feedback=True):
    """theta_T. rounds: (t, [c_1 .. c_W]); gradient(theta, c) is g of client c."""
    theta = theta_0
    A = np.zeros_like(theta)  # the server's residual
    A_c = {}  # the clients'
    for _t, clients in rounds:
        Delta = np.zeros_like(theta)
        for c in clients:
            x = gradient(theta, c) + A_c.get(c, 0.0)
            sent = ternary(x, k)
            if error_feedback:
                A_c[c] = x - sent
            Delta = Delta + sent / len(clients)
        y = eta * Delta + A
        step = ternary(y, k)
        A = y - step
        theta = theta - step
    return theta


def golomb(positions, D):
    """The bytes of Golomb coded gaps (the paper's algorithm 3), b* from the paper's formula."""
    p, phi = len(positions) / D, (np.sqrt(5) + 1) / 2
    b = max(0, 1 + int(np.floor(np.log2(np.log(phi - 1) / np.log(1 - p))))) if p < 1 else 0
    text = ""
    for gap in np.diff(positions, prepend=-1) - 1:
        q, r = divmod(int(gap), 2**b)
        text += "0" * q + "1" + "".join(str(r >> i & 1) for i in range(b))
    return bytes(int(text[i : i + 8][::-1], 2) for i in range(0, len(text), 8))
