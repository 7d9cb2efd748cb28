"""QSGD (Alistarh et al. 2017, section 3.1), in buckets, and its code written with strings of bits."""

import numpy as np


def quantise(x, s, u, bucket=512):
    """Q_s(x) and its integers; u are the uniform numbers that decide."""
    values, levels = np.zeros(len(x)), np.zeros(len(x), int)
    for b in range(0, len(x), bucket):
        part = slice(b, b + bucket)
        norm = np.sqrt(sum(x[part] ** 2))
        if norm > 0:
            a = abs(x[part]) / norm
            l = np.floor(a * s)  # noqa: E741
            up = u[part] >= 1 - (a * s - l)  # with probability a s - l
            levels[part] = np.sign(x[part]) * (l + up)
            values[part] = norm * levels[part] / s
    return values, levels


def gamma(n):
    """Elias gamma code: zeros, a one, then the low bits of n, the lowest first."""
    low = bin(n)[3:]
    return "0" * len(low) + "1" + low[::-1]


def code(levels):
    """The bytes of the integers: runs of zeros, signs, sizes."""
    text, run = "", 0
    for level in levels:
        if level == 0:
            run += 1
        else:
            text += gamma(run + 1) + ("1" if level < 0 else "0") + gamma(abs(level))
            run = 0
    text += gamma(run + 1) if run else ""
    return bytes(int(text[i : i + 8][::-1], 2) for i in range(0, len(text), 8))


def qsgd(theta_0, rounds, gradient, eta, s, uniforms, bucket=512):
    """theta_T. rounds: (t, [c_1 .. c_W]); uniforms(t, c) are D numbers in [0, 1)."""
    theta = theta_0
    for t, clients in rounds:
        Delta = np.zeros_like(theta)
        for c in clients:
            Delta = Delta + quantise(gradient(theta, c), s, uniforms(t, c), bucket)[0] / len(clients)
        theta = theta - eta * Delta
    return theta
