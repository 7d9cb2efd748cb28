"""FetchSGD (Rothchild et al. 2020, algorithm 1) with a count sketch in a dictionary, float64."""

from collections import defaultdict

import numpy as np

from narrowcast.numerics.keyed import philox


def cells(key, rows, columns):
    """cell(i, e) = (column, sign) of coordinate e in row i: 32 bits of Philox, remembered."""
    known = {}

    def cell(i, e):
        if (i, e) not in known:
            chunk, place = divmod(e, 256)
            word = philox((64 * chunk + place % 64, 0, i, 1 << 31), key)[place // 64]
            known[i, e] = (word >> 1) * columns >> 31, -1 if word & 1 else 1
        return known[i, e]

    cell.rows, cell.columns = rows, columns
    return cell


def sketch(v, cell):
    """table[i, column] = the sum of what falls there."""
    table = defaultdict(float)
    for e, x in enumerate(v):
        for i in range(cell.rows):
            column, sign = cell(i, e)
            table[i, column] += sign * x
    return table


def estimate(table, D, cell):
    """The median over the rows, coordinate by coordinate."""

    def seen(i, e):
        column, sign = cell(i, e)
        return sign * table.get((i, column), 0.0)

    return np.array([np.median([seen(i, e) for i in range(cell.rows)]) for e in range(D)])


def fetchsgd(theta_0, rounds, gradient, cell, k, rho, eta, printed=False):
    """theta_T. rounds: (t, [c_1 .. c_W]); gradient(theta, c) is g of client c."""
    theta, D = theta_0, len(theta_0)
    u, e = defaultdict(float), defaultdict(float)
    for _t, clients in rounds:
        tables = [sketch(gradient(theta, c), cell) for c in clients]
        for i in range(cell.rows):
            for j in range(cell.columns):
                S = sum(table[i, j] for table in tables) / len(clients)
                u[i, j] = rho * u[i, j] + S
                e[i, j] = e[i, j] + eta * u[i, j]
        found = estimate(e, D, cell)
        Delta = np.zeros(D)
        for place in np.argsort(-np.abs(found), kind="stable")[:k]:
            Delta[place] = found[place]
        for where, x in sketch(Delta, cell).items():
            if printed:
                e[where] = e[where] - x
            elif x != 0:
                e[where] = u[where] = 0.0
        theta = theta - Delta
    return theta
