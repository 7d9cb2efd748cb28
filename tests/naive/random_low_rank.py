"""Structured updates of low rank (Konecny et al. 2016): A random and known, the client sends B of A B."""

import numpy as np


def random_low_rank(theta_0, shapes, rounds, gradient, matrix, eta):
    """theta_T. rounds: (t, [c_1 .. c_W]); matrix(t, c): A (n, r) of client c, by parameter."""
    theta = theta_0
    cuts = np.cumsum([int(np.prod(shape)) for shape in shapes])[:-1]
    for t, clients in rounds:
        total = np.zeros_like(theta)
        for c in clients:
            A, parts = matrix(t, c), []
            for i, V in enumerate(np.split(gradient(theta, c), cuts)):
                if i in A:
                    B = A[i].T @ V.reshape(shapes[i])  # uploaded
                    V = A[i] @ B
                parts.append(V.ravel())
            total += np.concatenate(parts)
        theta = theta - eta * total / len(clients)
    return theta
