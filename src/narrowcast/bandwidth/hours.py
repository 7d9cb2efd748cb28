"""How long training takes on a network: rounds, times the slowest client of a cohort.

Of N clients with times t_1 <= ... <= t_N, the slowest of c drawn with replacement takes
    sum_i t_i ((i/N)^c - ((i-1)/N)^c)
on average. The clients are a sample of the network's, the same for every plan; each gets the mean download.
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from narrowcast.rounds import network
from narrowcast.rounds.network import Links, Network

SAMPLE = 400  # clients
FLOPS = 6  # of an example's gradient, a parameter: two forward, four back


@lru_cache
def sample(of: Network) -> Links:
    return network.draw(of, SAMPLE, 0)


def slowest(times: NDArray[np.float64], cohort: float) -> float:
    """The expected time of the slowest of a cohort drawn from these."""
    ranks = (np.arange(len(times) + 1) / len(times)) ** max(1.0, cohort)
    return float(np.sort(times) @ np.diff(ranks))


def training(of: Network, rounds: float, cohort: float, down: float, up: float, work: float) -> float:
    """Seconds of so many rounds, with messages of so many bytes and so many operations a client."""
    return rounds * slowest(sample(of).seconds(down, up, work), cohort)
