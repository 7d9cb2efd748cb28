"""Algorithm 3: time-varying intrinsic gradient compression, as printed.

The reconciliation is the paper's: it holds for clients that come exactly once an epoch.
"""

import numpy as np


def time_varying(theta_0, A, epochs, gradient, eta):
    """theta after the last epoch. epochs: lists of rounds (t, [c_1 .. c_W]); A: a matrix (D, d) an epoch."""
    theta = theta_0
    theta_c, Sigma_last = {}, {}  # what each client keeps
    A_before, Sigma_final = A[0], np.zeros(A[0].shape[1])  # of epoch e - 1; before the first there is none
    for A_e, rounds in zip(A, epochs, strict=True):
        Sigma = np.zeros(A_e.shape[1])
        for _t, clients in rounds:
            W = len(clients)
            S = np.zeros_like(Sigma)
            for c in clients:  # download Sigma_current of e and Sigma_final of e - 1
                last = Sigma_last.get(c, np.zeros_like(Sigma))
                theta_c[c] = theta_c.get(c, theta_0) + A_before @ (Sigma_final - last) + A_e @ Sigma
                Sigma_last[c] = Sigma
                g = gradient(theta_c[c], c)
                S_c = A_e.T @ g  # sketch and upload
                S = S + S_c / W
            Delta = A_e @ S
            theta = theta - eta * Delta
            Sigma = Sigma - eta * S
        A_before, Sigma_final = A_e, Sigma
    return theta
