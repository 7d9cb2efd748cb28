"""PowerSGD with one trip a round: the factor that a round makes is the basis of the next."""

import numpy as np


def orth(P):
    """Gram-Schmidt, column by column."""
    Q = np.zeros_like(P)
    for j in range(P.shape[1]):
        q = P[:, j] - Q @ (Q.T @ P[:, j])
        q = q - Q @ (Q.T @ q)
        Q[:, j] = q / np.linalg.norm(q)
    return Q


def powersgd(theta_0, shapes, Q_0, rounds, gradient, eta, r, feedback):
    """theta_T. rounds: (t, [c_1 .. c_W]); shapes of the parameters; Q_0: first bases (m, r), by parameter."""
    sizes = [int(np.prod(shape)) for shape in shapes]
    cuts = np.cumsum(sizes)[:-1]
    theta = [part.reshape(shape) for part, shape in zip(np.split(theta_0, cuts), shapes, strict=True)]
    basis = dict(Q_0)  # by the number of the parameter: those with more than r rows and columns
    error = {}
    for t, clients in rounds:
        sent = []
        for c in clients:
            v = np.split(gradient(np.concatenate([x.ravel() for x in theta]), c), cuts)
            payload = []
            for i, shape in enumerate(shapes):
                M = v[i].reshape(shape) + (error.get((c, i), 0.0) if feedback else 0.0)
                if i not in basis:
                    payload.append(M)
                elif t % 2 == 0:  # the basis is on the right
                    payload.append(M @ basis[i])
                    error[c, i] = M - payload[i] @ basis[i].T
                else:
                    payload.append(M.T @ basis[i])
                    error[c, i] = M - basis[i] @ payload[i].T
            sent.append(payload)
        for i in range(len(shapes)):
            P = sum(payload[i] for payload in sent) / len(clients)
            if i not in basis:
                step = P
            else:
                step = P @ basis[i].T if t % 2 == 0 else basis[i] @ P.T
                basis[i] = orth(P)
            theta[i] = theta[i] - eta * step
    return np.concatenate([x.ravel() for x in theta])
