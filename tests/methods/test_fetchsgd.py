"""FetchSGD trains like its dictionary twin; the count sketch is what it says, for any number of threads."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from naive import MODULES, toy
from naive import fetchsgd as naive
from narrowcast.methods import RoundInfo
from narrowcast.methods.fetchsgd import FetchSGD
from narrowcast.numerics import pool
from narrowcast.numerics.keyed import Purpose, derive
from narrowcast.numerics.sketch import CountSketch
from narrowcast.rounds.plan import Plan
from narrowcast.rounds.sampling import Cohorts
from narrowcast.rounds.simulator import Simulation
from narrowcast.wire import messages as wire
from narrowcast.wire.messages import WireError

KEY, E, N, W, ETA = 11, 4, 12, 5, 0.1
SHAPES = st.tuples(st.sampled_from([1, 2, 255, 256, 257, 300]), st.integers(1, 6), st.integers(1, 90))


def dense(table, sketch):
    """A twin's table as the vector that is sent."""
    flat = np.zeros((sketch.rows, sketch.columns))
    for place, x in table.items():
        flat[place] = x
    return flat.ravel()


# The sketch.


@settings(deadline=None, max_examples=15)
@given(SHAPES, st.integers(0, 2**64 - 1))
def test_the_sketch_and_its_estimate_are_those_of_the_dictionary(shape, key):
    (D, rows, columns), rng = shape, np.random.default_rng(0)
    sketch, cell = CountSketch(D, rows, columns, key), naive.cells(key, rows, columns)
    v = rng.integers(-1000, 1000, D).astype(np.float32)  # sums of these are exact
    table = naive.sketch(v, cell)
    found = sketch.sketch(torch.from_numpy(v))
    assert np.array_equal(found.numpy(), dense(table, sketch))
    assert np.array_equal(sketch.estimate(found).numpy(), naive.estimate(table, D, cell))


@pytest.mark.parametrize("threads", [2, 3, 7])
def test_any_number_of_threads_gives_the_same_bits(threads):
    sketch, v = CountSketch(100_003, 5, 4_999, KEY), torch.randn(100_003)
    pool.set_threads(1)
    table = sketch.sketch(v)
    found = sketch.estimate(table)
    pool.set_threads(threads)
    assert torch.equal(sketch.sketch(v), table)
    assert torch.equal(sketch.estimate(table), found)


def test_the_sketch_is_linear():
    sketch = CountSketch(1000, 5, 37, KEY)
    a, b = (torch.randint(-1000, 1000, (1000,)).float() for _ in range(2))
    assert torch.equal(sketch.sketch(a) - sketch.sketch(b) * 2, sketch.sketch(a - b * 2))


def test_columns_are_even_and_signs_are_fair_in_each():
    """The table of a vector of ones, and of one number: counts and sums of signs within five deviations."""
    D, c = 20_000, 7
    cell = naive.cells(KEY, 1, c)
    column, sign = np.array([cell(0, e) for e in range(D)]).T
    counts, sums = np.bincount(column, minlength=c), np.bincount(column, sign, minlength=c)
    assert np.abs(counts - D / c).max() < 5 * (D / c) ** 0.5
    assert np.abs(sums).max() < 5 * (D / c) ** 0.5
    assert np.array_equal(CountSketch(D, 1, c, KEY).sketch(torch.ones(D)).numpy(), sums)


def test_a_row_is_an_unbiased_estimate_with_the_variance_it_should_have():
    D, c, runs = 40, 9, 1000
    v = torch.linspace(-1, 2, D)
    sketches = [CountSketch(D, 1, c, derive(k, Purpose.RUN)) for k in range(runs)]
    rows = torch.stack([s.estimate(s.sketch(v)) for s in sketches])
    variance = (v.square().sum() - v.square()) / c
    assert ((rows.mean(0) - v).abs() < 5 * (variance / runs) ** 0.5).all()
    torch.testing.assert_close(rows.var(0), variance, rtol=0.4, atol=0)


def test_large_coordinates_are_found_among_small_ones():
    v = torch.randn(20_000) * 0.01
    v[::1000] = 5.0
    sketch = CountSketch(20_000, 5, 1000, KEY)
    found = sketch.estimate(sketch.sketch(v))
    assert set(torch.topk(found.abs(), 20).indices.tolist()) == set(range(0, 20_000, 1000))
    assert (found[::1000] - 5.0).abs().max() < 0.2


@pytest.mark.parametrize("wrong", [(0, 1, 1), (5, 0, 1), (5, 65, 1), (5, 1, 0), (5, 1, 2**31 + 1)])
def test_a_sketch_of_an_impossible_shape_is_refused(wrong):
    with pytest.raises(ValueError, match="a sketch has"):
        CountSketch(*wrong, key=0)


def test_vectors_that_do_not_fit_are_refused():
    sketch = CountSketch(10, 2, 3, KEY)
    for wrong in (torch.zeros(9), torch.zeros(10, dtype=torch.float64), torch.zeros(1, 10)):
        with pytest.raises(ValueError, match="expected"):
            sketch.sketch(wrong)
        with pytest.raises(ValueError, match="expected"):
            sketch.estimate(wrong)


# The method.


@pytest.mark.parametrize("kind", MODULES)
@pytest.mark.parametrize("rho", [0.0, 0.9])
@pytest.mark.parametrize("printed", [False, True])
def test_it_trains_like_the_twin(kind, rho, printed):
    task, gradient = toy(kind, N)
    D = task.layout.size
    m = FetchSGD(key=5, k=D // 6, sketch_rows=3, sketch_columns=D // 2, momentum=rho, printed=printed)
    run = Simulation(task, m, Plan(cohort=W, lr=ETA, epochs=E, key=KEY))
    *_, last = run
    assert last.metrics["loss"] < 0.95 * task.evaluate(task.theta0())["loss"]
    cohorts = Cohorts(N, W, KEY)
    rounds = [(t, cohorts.come(t).tolist()) for t in range(E * cohorts.rounds_per_epoch)]
    theta_0 = task.theta0().double().numpy()
    cell = naive.cells(derive(5, Purpose.SUBSPACE), 3, D // 2)
    twin = naive.fetchsgd(theta_0, rounds, gradient, cell, D // 6, rho, ETA, printed)
    way = np.linalg.norm(twin - theta_0)
    assert way > 0.3
    assert np.linalg.norm(run.theta.double().numpy() - twin) < 2e-5 * way


def stepped(printed, steps=1, **options):
    """(method, server before, server after, mean table) of a step on noise."""
    m = FetchSGD(key=KEY, k=20, sketch_rows=5, sketch_columns=50, printed=printed, **options)
    noise = torch.Generator().manual_seed(0)
    server = m.server(torch.zeros(1000), None)
    for t in range(steps):
        before, acc = server, m.zero(server)
        v = torch.randn(1000, generator=noise)
        acc = m.add(acc, m.compress(None, v, m.newcomer(torch.zeros(1000)), 0)[1], 1.0)
        server = m.step(server, acc, RoundInfo(t, 0, False, 0.5))
    return m, before, server, m.sketch(1000).sketch(v)


@pytest.mark.parametrize("steps", [1, 4])
def test_what_is_subtracted_and_what_is_kept_is_the_error_and_the_step(steps):
    m, before, after, table = stepped(True, steps)
    u = before.state["momentum"] * 0.9 + table
    delta = before.weights - after.weights
    assert 1 <= delta.count_nonzero() <= 20
    kept = after.state["error"] + m.sketch(1000).sketch(delta)
    torch.testing.assert_close(kept, before.state["error"] + u * 0.5, rtol=1e-5, atol=1e-5)
    assert torch.equal(after.state["momentum"], u)


@pytest.mark.parametrize("steps", [1, 4])
def test_the_cells_of_a_step_are_emptied_and_the_others_go_on(steps):
    m, before, after, table = stepped(False, steps)
    cells = m.sketch(1000).sketch((before.weights != after.weights).float()) != 0
    u = before.state["momentum"] * 0.9 + table
    assert 20 <= cells.sum() <= 100
    for name, full in (("momentum", u), ("error", before.state["error"] + u * 0.5)):
        assert not after.state[name][cells].any()
        assert (after.state[name] == full).sum() >= 250 - 100


@pytest.mark.parametrize("uplink", ["f32", "f16", "int8", "int4"])
def test_an_upload_is_the_sketch_in_its_format_and_nothing_else_is_taken(uplink):
    m, v = FetchSGD(key=KEY, sketch_rows=3, sketch_columns=11, uplink=uplink), torch.randn(61)
    server = m.server(torch.zeros(61), None)
    _, up = m.compress(None, v, m.newcomer(torch.zeros(61)), 5)
    total = m.add(m.zero(server), up, 1.0).total
    assert total.shape == (1, 33)
    assert m.linear == torch.equal(total[0], m.sketch(61).sketch(v))
    for numbers in (torch.zeros(32), torch.zeros(34), torch.zeros(0), torch.full((33,), float("nan"))):
        with pytest.raises(WireError):
            m.add(m.zero(server), wire.payload([wire.block(numbers)]), 1.0)
    for blocks, kind in (([], 0), (up.blocks * 2, 0), (up.blocks, 1), ([wire.raw(b"\0" * 132)], 0)):
        with pytest.raises(WireError):
            m.add(m.zero(server), wire.payload(blocks, kind=kind), 1.0)


def test_the_default_sketch_is_a_quarter_of_the_model():
    assert FetchSGD(sketch_rows=5).sketch(118_282).columns == 5914
    assert FetchSGD(sketch_rows=5).sketch(1).columns == 1


@pytest.mark.parametrize(
    "wrong",
    [
        {"k": 0},
        {"sketch_rows": 0},
        {"sketch_rows": 65},
        {"sketch_columns": -1},
        {"momentum": 1.0},
        {"uplink": "f8"},
    ],
)
def test_settings_that_make_no_sense_are_refused(wrong):
    with pytest.raises(ValueError, match=r"got|unknown"):
        FetchSGD(**wrong)
