"""DRIVE with dense Hadamard matrices: signs of the rotated vector, and the unbiased scale."""

import numpy as np


def hadamard(n):
    H = np.ones((1, 1))
    while len(H) < n:
        H = np.block([[H, H], [H, -H]])
    return H


def estimate(x, b):
    """What the server makes of x, whose length is a power of two; b: its random signs."""
    R = hadamard(len(x)) * b / np.sqrt(len(x))
    y = R @ x
    S = x @ x / np.abs(y).sum()
    return S * R.T @ np.where(y < 0, -1.0, 1.0)


def drive(theta_0, sizes, rounds, gradient, signs, eta):
    """theta_T. sizes of the blocks, powers of two, what they leave is sent as it is; signs(t, c): of all."""
    theta = theta_0
    cuts = np.cumsum(sizes)
    for t, clients in rounds:
        total = np.zeros_like(theta)
        for c in clients:
            *blocks, rest = np.split(gradient(theta, c), cuts)
            b = np.split(signs(t, c), cuts[:-1])
            total += np.concatenate([*map(estimate, blocks, b), rest])
        theta = theta - eta * total / len(clients)
    return theta
