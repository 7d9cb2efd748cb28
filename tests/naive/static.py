"""Algorithm 1: static intrinsic gradient compression, as printed."""

import numpy as np


def static(theta_0, A, rounds, gradient, eta):
    """theta_T. rounds: (t, [c_1 .. c_W]); A: (D, d); gradient(theta, c) is g of client c."""
    Sigma = np.zeros(A.shape[1])
    theta = theta_0
    for _t, clients in rounds:
        W = len(clients)
        S = np.zeros_like(Sigma)
        for c in clients:
            theta_c = theta_0 + A @ Sigma  # download Sigma_{t-1}
            g = gradient(theta_c, c)
            S_c = A.T @ g  # sketch and upload
            S = S + S_c / W
        Delta = A @ S
        theta = theta - eta * Delta
        Sigma = Sigma - eta * S
    return theta
