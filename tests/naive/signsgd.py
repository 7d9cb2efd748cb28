"""signSGD with majority vote, as printed; a sign of zero is +1."""

import numpy as np


def signsgd(theta, rounds, gradient, eta):
    """theta after the rounds (t, [c_1 .. c_W])."""
    for _t, clients in rounds:
        votes = sum(np.where(gradient(theta, c) < 0, -1, 1) for c in clients)
        theta = theta - eta * np.where(votes < 0, -1, 1)
    return theta
