"""The search for a rate: a fixed small budget, no rate twice, and a grid that follows the best."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from narrowcast.rounds.tune import Grid, best_of, search


def tried(grid: Grid, score: dict[int, float]) -> list[int]:
    """The order in which a search asks, the score of what is not named being the worst."""
    asked: list[int] = []
    points = {grid.rate(i): i for i in range(-9, 10)}

    def answer(rate: float) -> float:
        asked.append(points[rate])
        return score.get(points[rate], -math.inf)

    search(grid, answer)
    return asked


def test_a_best_in_the_middle_ends_the_search_after_three() -> None:
    assert tried(Grid(0.3), {-1: 0.5, 0: 0.8, 1: 0.7}) == [0, -1, 1]


def test_the_grid_grows_towards_the_best_while_it_lies_on_the_border() -> None:
    assert tried(Grid(0.3), {-1: 0.5, 0: 0.6, 1: 0.7, 2: 0.65}) == [0, -1, 1, 2]
    assert tried(Grid(0.3), {-1: 0.8, 0: 0.6, -2: 0.9, -3: 0.95, -4: 1}) == [0, -1, 1, -2, -3]


def test_what_diverges_everywhere_is_tried_with_smaller_rates_and_given_up() -> None:
    assert tried(Grid(0.3), {}) == [0, -1, 1, -2, -3]
    assert search(Grid(0.3), lambda rate: math.nan)[-3] == -math.inf


def test_of_equals_the_smallest_rate_is_best() -> None:
    assert best_of({0: 0.5, -1: 0.5, 1: 0.5}) == -1


@given(
    peak=st.floats(-2.4, 2.4),
    factor=st.floats(1.5, 10),
    centre=st.floats(1e-4, 100),
    most=st.integers(3, 7),
)
def test_a_single_peak_is_found_within_the_budget(
    peak: float, factor: float, centre: float, most: int
) -> None:
    grid = Grid(centre, factor, most)
    top = math.log(centre) + peak * math.log(factor)
    scores = search(grid, lambda rate: -abs(math.log(rate) - top))
    assert 3 <= len(scores) <= most
    best = best_of(scores)
    assert abs(best - peak) <= 0.52 or (len(scores) == most and best in (min(scores), max(scores)))


@pytest.mark.parametrize("wrong", [{"centre": 0.0}, {"centre": math.inf}, {"factor": 1.0}, {"most": 2}])
def test_a_grid_that_makes_no_sense_is_refused(wrong: dict[str, float]) -> None:
    with pytest.raises(ValueError, match="grid"):
        Grid(**{"centre": 1.0, **wrong})  # type: ignore[arg-type]


@given(st.floats(1e-6, 1e6), st.floats(1.5, 10), st.integers(-6, 6))
def test_below_a_rate_of_the_grid_lies_the_next_one(centre: float, factor: float, i: int) -> None:
    grid = Grid(centre, factor)
    assert grid.below(grid.rate(i)) == grid.rate(i - 1)
