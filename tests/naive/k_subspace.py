"""Algorithm 2: K-subspace intrinsic gradient compression, as printed."""

import numpy as np


def k_subspace(theta_0, A, epochs, gradient, route, eta):
    """theta after the last epoch. epochs: lists of rounds (t, [c_1 .. c_W]); A: K matrices (D, d);
    route(t, c) is the random k_1 of client c in round t."""
    K = len(A)
    Sigma = [np.zeros(A[k].shape[1]) for k in range(K)]
    theta = theta_0
    for rounds in epochs:
        for t, clients in rounds:
            W = len(clients)
            S = []
            for c in clients:
                theta_c = theta_0 + sum(A[k] @ Sigma[k] for k in range(K))  # download every Sigma
                k_1 = route(t, c)
                g = gradient(theta_c, c)
                S.append((k_1, A[k_1].T @ g))  # sketch and upload
            Delta = sum(A[j] @ C for j, C in S) / W
            theta = theta - eta * Delta
            for k in range(K):
                Sigma[k] = Sigma[k] - eta / W * sum(C for j, C in S if j == k)
    return theta
