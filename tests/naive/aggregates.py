"""Rules against liars in plain Python, number by number, in float64."""

import math
import statistics


def mean(xs):
    return [sum(column) / len(column) for column in zip(*xs, strict=True)]


def trimmed(xs, cut):
    return [statistics.fmean(sorted(column)[cut : len(column) - cut]) for column in zip(*xs, strict=True)]


def median(xs):
    return [statistics.median(column) for column in zip(*xs, strict=True)]


def clipped(xs):
    norms = [math.hypot(*x) for x in xs]
    bound = statistics.median_low(norms)
    return mean(
        [[v * min(1.0, bound / norm) if norm else v for v in x] for x, norm in zip(xs, norms, strict=True)]
    )


def krum_order(xs, f):
    """Clients by their scores, the best first."""
    n = len(xs)
    scores = []
    for i, x in enumerate(xs):
        apart = sorted(math.dist(x, y) ** 2 for j, y in enumerate(xs) if j != i)
        scores.append(sum(apart[: n - f - 2]))
    return sorted(range(n), key=lambda i: scores[i])


def krum(xs, f):
    return list(xs[krum_order(xs, f)[0]])


def multi_krum(xs, f):
    return mean([xs[i] for i in krum_order(xs, f)[: len(xs) - f]])


def geometric_median(xs, steps=3000):
    """Weiszfeld's steps from the mean, many of them."""
    z = mean(xs)
    for _ in range(steps):
        weights = [1.0 / max(math.dist(x, z), 1e-12) for x in xs]
        z = [
            sum(w * v for w, v in zip(weights, column, strict=True)) / sum(weights)
            for column in zip(*xs, strict=True)
        ]
    return z
