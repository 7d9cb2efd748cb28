"""What a client lacks when A is new every N rounds: against every way to come, and against drawn cohorts."""

import math
import time
from itertools import product

import pytest

from narrowcast.bandwidth.planner import plan
from narrowcast.bandwidth.visits import lags, stages
from narrowcast.measure.candidates import Candidate, traffic
from narrowcast.rounds.network import NETWORKS
from narrowcast.rounds.sampling import Cohorts


def every_way(epochs: int, p: float, R: int, N: int) -> list[float]:
    """In each epoch a client stays away, or comes in one of its R rounds: all ways, by their chance."""
    found = [0.0] * stages(epochs, R, N)
    for way in product([None, *range(R)], repeat=epochs):
        chance = math.prod(1 - p if r is None else p / R for r in way)
        seen = 0
        for epoch, r in enumerate(way):
            if r is not None:
                stage = (epoch * R + r) // N
                found[stage - seen] += chance
                seen = stage
    return found


@pytest.mark.parametrize("p", [0.2, 0.7, 1.0])
@pytest.mark.parametrize(
    ("epochs", "R", "N"),
    [(3, 4, 1), (4, 3, 2), (4, 3, 3), (5, 2, 3), (5, 2, 4), (3, 4, 100), (1, 3, 2), (3, 7, 2)],
)
def test_lags_are_the_mean_over_all_ways_to_come(epochs, R, N, p):
    assert lags(epochs, p, R, N) == pytest.approx(every_way(epochs, p, R, N), rel=1e-12, abs=1e-15)


@pytest.mark.parametrize("refresh", [3, 10, 25])
def test_lags_are_those_of_drawn_cohorts(refresh):
    """20 000 clients, of whom each comes by itself: the mean is within five standard errors."""
    clients, epochs = 20_000, 6
    counted = traffic(
        Cohorts(clients, 2000, 7), epochs * 10, Candidate("time-varying", 1, str(refresh))
    ).downloads
    for m, expected in enumerate(lags(epochs, 1.0, 10, refresh)):
        seen = counted[m] if m < len(counted) else 0.0
        assert abs(seen - expected) <= 5 * math.sqrt(max(expected, 1e-3) * epochs / clients)


def test_more_visits_than_epochs_at_equal_distances():
    assert lags(5, 2.0, 10, 10) == pytest.approx([6, 4, 0, 0, 0])
    ten = lags(5, 2.0, 10, 1)  # 50 stages, ten visits
    assert math.fsum(ten) == pytest.approx(10)
    assert math.fsum(m * n for m, n in enumerate(ten)) == pytest.approx(49)


def test_fresh_matrices_cost_downloads_and_explore_more():
    link = {"up_bps": 1e6, "down_bps": 1e6, "names": ("uncompressed", "time-varying")}
    rare, usual, often = (
        plan(10**6, 100, 10, clients=100, cohort=10, refresh=refresh, **link)[1]
        for refresh in (20, "epoch", 2)
    )
    assert rare.bytes_down < usual.bytes_down < often.bytes_down
    assert (rare.dimensions, usual.dimensions, often.dimensions) == (500, 1000, 5000)
    assert rare.bytes_up == pytest.approx(often.bytes_up)


@pytest.mark.parametrize(
    ("change", "says"),
    [({"refresh": 0}, "refresh must be"), ({"refresh": "day"}, "'day'"), ({"cohort": 5}, "a cohort of 5")],
)
def test_bad_ones_are_refused(change, says):
    with pytest.raises(ValueError, match=says):
        plan(1000, 10, 2, clients=4, up_bps=1, down_bps=1, **change)


def test_a_million_clients_and_a_new_matrix_every_round_take_no_time():
    """10 000 rounds an epoch: pairs of their stages, two by two, would take minutes."""
    begun = time.process_time()
    found = lags(24, 0.5, 10_000, 1)
    assert time.process_time() - begun < 5
    assert math.fsum(found) == pytest.approx(12)


def test_who_comes_twice_an_epoch_makes_rounds_of_twice_as_many():
    """A round lasts as long as its slowest client takes, and 100 rounds of ten are visited by twenty each."""
    asked = {"params": 10**6, "dim": 100, "epochs": 1, "up_bps": 1e6, "down_bps": 1e6, "names": ("static",)}
    asked |= {"clients": 1000, "network": NETWORKS["4g"]}
    twice, large = (
        plan(**asked, cohort=cohort, participation=p)[0].training_seconds
        for cohort, p in ((10, 2.0), (20, 1.0))
    )
    assert twice == pytest.approx(2 * large)


@pytest.mark.parametrize("name", ["up_bits", "down_bits"])
def test_no_bits_are_refused_and_not_overlooked(name):
    with pytest.raises(ValueError, match="bits"):
        plan(1000, 10, 2, up_bps=1, down_bps=1, **{name: 0})
