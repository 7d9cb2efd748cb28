"""FedAvg, and FedProx with mu > 0: clients walk by themselves, the server takes their mean."""


def fedavg(theta, rounds, gradient, steps, eta, mu=0.0):
    """theta after the rounds (t, [c_1 .. c_W])."""
    for _t, clients in rounds:
        total = 0
        for c in clients:
            x = theta
            for _ in range(steps):
                x = x - eta * (gradient(x, c) + mu * (x - theta))
            total = total + x
        theta = total / len(clients)
    return theta
