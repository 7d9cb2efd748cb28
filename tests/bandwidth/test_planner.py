"""The planner against what is really sent: the simulator's bytes, a plain twin, the paper's table."""

import math
import tracemalloc
from dataclasses import FrozenInstanceError, asdict, replace
from itertools import product

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from typer.testing import CliRunner

from fitting import made as fit
from narrowcast.bandwidth.planner import NARROW, ROWS, fitting, lags, plan
from narrowcast.cli.app import app
from narrowcast.methods import RoundInfo, sizes
from narrowcast.numerics.flat import Layout
from narrowcast.rounds import exchange
from narrowcast.rounds.exchange import Round
from narrowcast.rounds.plan import Plan
from narrowcast.rounds.simulator import Simulation
from narrowcast.tasks.partition import iid
from narrowcast.tasks.torch_task import TorchTask
from narrowcast.units import (
    format_bytes,
    format_count,
    format_seconds,
    parse_count,
    parse_rate,
    parse_seconds,
)
from narrowcast.wire import messages as wire

LINK = {"up_bps": 1e7, "down_bps": 5e7}
D, DIM, K = 21, 4, 2  # a linear layer from 6 to 3
INTRINSIC = ROWS[2:]
Z = 4.9  # standard errors: passed by chance once in a million; keys are fixed, so there is no flicker


def row(name, rows):
    return next(r for r in rows if r.method == name)


def tiny_task(clients):
    torch.manual_seed(0)
    x, y = torch.randn(clients, 6), torch.arange(clients) % 3
    return TorchTask(nn.Linear(6, 3), train=(x, y), test=(x[:3], y[:3]), clients=iid(clients, clients))


def measured(name, epochs, clients, cohort, dim=DIM, participation=1.0, uplink="f32", downlink="f32"):
    """The records of a simulated run."""
    made = fit(name, dim=dim, subspaces=K, key=3, uplink=uplink, downlink=downlink)
    how = Plan(cohort=cohort, lr=0.01, epochs=epochs, participation=participation, key=3)
    return list(Simulation(tiny_task(clients), made, how))


class Twin:
    """What clients are sent, by driving a server through `epochs` stages and encoding every download."""

    def __init__(self, name, epochs, dim=DIM, downlink="f32"):
        made = fit(name, dim=dim, subspaces=K, downlink=downlink)
        server = made.server(torch.linspace(-1, 1, D), Layout(("w",), ((D,),)))
        round = Round(bytes(8), 0, 0, 0, bytes(8))
        self.sizes = {}  # (epoch, epoch of the last visit or None) -> bytes
        versions = []
        for epoch in range(epochs):
            for last, have in [(None, None), *enumerate(versions), (epoch, server.version)]:
                self.sizes[epoch, last] = len(exchange.send_down(made, server, round, have))
            versions.append(server.version)
            acc = replace(made.zero(server), weight=1.0)
            server = made.step(server, acc, RoundInfo(epoch, epoch, True, 0.1))

    def bytes_down(self, visits):
        """Of a client that comes visits[e] times in epoch e."""
        total, last = 0, None
        for epoch, times in enumerate(visits):
            for _ in range(times):
                total += self.sizes[epoch, last]
                last = epoch
        return total

    def moments(self, epochs, p):
        """Mean and standard deviation of a client's bytes, over all 2^E ways to come and stay away."""
        ways = [
            (math.prod(p if v else 1 - p for v in w), self.bytes_down(w))
            for w in product((0, 1), repeat=epochs)
        ]
        mean = math.fsum(chance * size for chance, size in ways)
        return mean, math.sqrt(math.fsum(chance * (size - mean) ** 2 for chance, size in ways))


# Against the simulator.


@pytest.mark.parametrize("name", ROWS)
def test_every_method_costs_what_the_simulator_counts(name):
    """Two rounds an epoch, everyone comes once. fedavg needs 5 times fewer epochs for the same local work."""
    epochs, clients = 10, 8
    planned = row(name, plan(D, DIM, epochs, K, clients=clients, **LINK))
    records = measured(name, epochs // 5 if name == "fedavg" else epochs, clients, cohort=4)
    up, down = sum(r.up for r in records), sum(r.down for r in records)
    assert planned.bytes_up * clients == up
    assert planned.bytes_down * clients == down
    assert planned.bytes_all_clients == up + down
    assert planned.messages * clients == sum(r.clients for r in records)


@pytest.mark.parametrize("name", INTRINSIC)
@pytest.mark.parametrize(("uplink", "downlink"), [("f16", "f16"), ("int8", "f32"), ("int4", "f16")])
def test_number_formats_cost_what_the_simulator_counts(name, uplink, downlink):
    planned = row(name, plan(D, DIM, 3, K, uplink=uplink, downlink=downlink, **LINK))
    records = measured(name, 3, 4, cohort=2, uplink=uplink, downlink=downlink)
    assert planned.bytes_up * 4 == sum(r.up for r in records)
    assert planned.bytes_down * 4 == sum(r.down for r in records)


# Where 21 parameters soon are fewer than the stages that a client lacks: the fallback must be in the test.
FALLBACK = {
    1: [],
    DIM: ["time-varying", "k-subspace-time-varying"],
    8: ["time-varying", "k-subspace-time-varying"],
}


@pytest.mark.parametrize("dim", FALLBACK)
@pytest.mark.parametrize("name", ["uncompressed", "static", "time-varying", "k-subspace-time-varying"])
def test_partial_participation_costs_what_the_simulator_counts(name, dim):
    """Clients come independently: the mean of N of them is within Z sigma / sqrt(N), sigma from the twin."""
    epochs, clients, p = 6, 1200, 0.3
    planned = row(name, plan(D, dim, epochs, K, p, clients, **LINK))
    records = measured(name, epochs, clients, cohort=300, dim=dim, participation=p)
    sigma = Twin(name, epochs, dim).moments(epochs, p)[1]
    assert abs(sum(r.down for r in records) / clients - planned.bytes_down) <= Z * sigma / math.sqrt(clients)
    sigma_up = planned.bytes_up / planned.messages * math.sqrt(epochs * p * (1 - p))
    assert abs(sum(r.up for r in records) / clients - planned.bytes_up) <= Z * sigma_up / math.sqrt(clients)
    assert any(r.down_dense for r in records) == (name in FALLBACK[dim])


# Against the plain twin.


@pytest.mark.parametrize("downlink", ["f32", "f16"])
@pytest.mark.parametrize("dim", [1, DIM, 8, D])
@pytest.mark.parametrize("name", ROWS)
def test_expected_bytes_are_the_mean_over_all_ways_to_come(name, dim, downlink):
    epochs = 7
    twin = Twin(name, epochs, dim, downlink)
    for p in (0.05, 0.3, 0.75, 1.0):
        planned = row(name, plan(D, dim, epochs, K, p, local_steps=1, downlink=downlink, **LINK))
        assert planned.bytes_down == pytest.approx(twin.moments(epochs, p)[0], rel=1e-12)
        assert planned.messages == pytest.approx(p * epochs, rel=1e-12)


@pytest.mark.parametrize("visits", [2, 3, 7])
@pytest.mark.parametrize("name", ROWS)
def test_several_visits_an_epoch(name, visits):
    planned = row(name, plan(D, DIM, 5, K, visits, local_steps=1, **LINK))
    assert planned.bytes_down == Twin(name, 5).bytes_down([visits] * 5)
    assert planned.messages == 5 * visits


@pytest.mark.parametrize("name", ROWS)
def test_fractional_visits_lie_between_whole_ones(name):
    one, half, two = (row(name, plan(D, DIM, 5, K, p, **LINK)) for p in (1, 1.5, 2))
    for field in ("messages", "numbers_up", "numbers_down", "bytes_up", "bytes_down", "seconds"):
        low, middle, high = (getattr(r, field) for r in (one, half, two))
        assert middle == pytest.approx((low + high) / 2, rel=1e-12)


def test_the_sums_over_gaps_in_their_plain_form():
    """Every epoch and every gap since the last visit, as one would say it."""
    for epochs, p in product((1, 2, 9), (0.1, 0.5, 1.0)):
        plain = [0.0] * epochs
        for e in range(epochs):
            plain[e] += p * (1 - p) ** e  # a newcomer
            for gap in range(1, e + 1):
                plain[gap] += p * p * (1 - p) ** (gap - 1)
        assert lags(epochs, p) == pytest.approx(plain, rel=1e-12, abs=1e-300)
        assert math.fsum(lags(epochs, p)) == pytest.approx(p * epochs)


@settings(deadline=None, max_examples=60)
@given(
    st.integers(1, 40),
    st.floats(1e-3, 5),
    st.integers(1, 20),
    st.integers(1, 9),
    st.sampled_from(["f32", "f16"]),
)
def test_no_client_pays_more_than_for_the_dense_fallback_each_time(epochs, p, dim, subspaces, downlink):
    rows = plan(D, dim, epochs, subspaces, p, downlink=downlink, **LINK)
    for name in INTRINSIC:
        r = row(name, rows)
        worst = sizes._message([4 * D, 4 * dim * subspaces + 4])
        assert r.bytes_down <= r.messages * worst * (1 + 1e-12)
        assert r.numbers_up == pytest.approx(r.messages * dim)


@pytest.mark.parametrize("count", [0, 1, 14, 15, 16, 17, 65_535, 65_536, 65_537])
@pytest.mark.parametrize("data", [0, 255, 256, 65_535, 65_536])
def test_equal_blocks_are_counted_as_wire_counts_them(count, data):
    assert wire.equal_blocks_size(count, data) == wire.blocks_size([data] * count)


# The paper's table.


@settings(deadline=None, max_examples=60)
@given(st.integers(1, 1000), st.integers(1, 40), st.integers(1, 16))
def test_table_1(d, epochs, subspaces):
    """(2E-1) d and (2E-1) d K are what the paper's 2 d E and 2 d E K bound."""
    params = 10**7
    rows = plan(params, d, epochs, subspaces, local_steps=1, **LINK)
    E, De, dE = epochs, params * epochs, d * epochs
    assert {r.method: (r.numbers_up, r.numbers_down, r.dimensions) for r in rows} == {
        "uncompressed": (De, De, params),
        "fedavg": (De, De, params),
        "static": (dE, dE, d),
        "time-varying": (dE, (2 * E - 1) * d, dE),
        "k-subspace": (dE, dE * subspaces, d * subspaces),
        "k-subspace-time-varying": (dE, (2 * E - 1) * d * subspaces, dE * subspaces),
    }
    assert all(r.messages == E for r in rows)


def test_the_combination_cannot_explore_more_dimensions_than_there_are():
    assert row("k-subspace-time-varying", plan(1000, 100, 10, 8, **LINK)).dimensions == 1000


def harmonic(up, down):
    return 2 / (1 / up + 1 / down)


@pytest.mark.parametrize(
    ("d", "static", "k_subspace"),
    [
        (16_384, 7595, (7595, 949, 1688)),
        (65_536, 1900, (1900, 237, 422)),
        (262_144, 475, (475, 59.3, 105)),
        (1_048_576, 119, (119, 14.8, 26.3)),
        (4_194_304, 29.7, None),
    ],
)
def test_the_papers_compression_on_personachat(d, static, k_subspace):
    """Its figures are numbers per message, to about three digits; our headers cost less than a thousandth."""
    rows = plan(124_443_648, d, 2, 8, clients=17_568, **LINK)
    whole = rows[0]

    def per_message(r):
        up, down = whole.numbers_up / r.numbers_up, whole.numbers_down / r.numbers_down
        return up, down, harmonic(up, down)

    assert per_message(row("static", rows)) == pytest.approx((static,) * 3, rel=5e-3)
    if k_subspace:
        assert per_message(row("k-subspace", rows)) == pytest.approx(k_subspace, rel=5e-3)
    for r in rows[2:]:
        counted = (r.compression_up, r.compression_down, r.compression)
        assert counted == pytest.approx(per_message(r), rel=1e-3)


def test_the_papers_figures_to_the_digit():
    rows = plan(124_443_648, 16_384, 2, 8, **LINK)
    whole, k = rows[0], row("k-subspace", rows)
    up, down = whole.numbers_up / k.numbers_up, whole.numbers_down / k.numbers_down
    assert (int(up), int(down), round(harmonic(up, down))) == (7595, 949, 1688)


@pytest.mark.parametrize("steps", [1, 2, 5])
def test_fedavg_compresses_by_its_local_steps(steps):
    """2/2/2 and 5/5/5 in the paper: fewer rounds, each as large."""
    r = row("fedavg", plan(124_443_648, 16_384, 2, local_steps=steps, **LINK))
    assert (r.compression_up, r.compression_down, r.compression) == pytest.approx((steps,) * 3)
    assert r.messages == 2 / steps


# Rows.


def test_rows_are_consistent():
    rows = plan(6_570_880, 4000, 24, 8, 0.4, 10_000, up_bps=1e6, down_bps=8e6)
    assert [r.method for r in rows] == list(ROWS)
    first = rows[0]
    assert (first.compression_up, first.compression_down, first.compression) == (1, 1, 1)
    for r in rows:
        assert r.seconds_up == pytest.approx(r.bytes_up * 8 / 1e6)
        assert r.seconds_down == pytest.approx(r.bytes_down / 1e6)
        assert r.seconds == pytest.approx(r.seconds_up + r.seconds_down)
        assert r.bytes_all_clients == pytest.approx(10_000 * (r.bytes_up + r.bytes_down))
        assert r.compression_up == pytest.approx(first.bytes_up / r.bytes_up)
        assert r.compression_down == pytest.approx(first.bytes_down / r.bytes_down)
        assert r.compression == pytest.approx(harmonic(r.compression_up, r.compression_down))
        values = asdict(r)
        assert values.pop("training_seconds") is None  # no network was asked for
        assert all(isinstance(v, str | int | float) for v in values.values())
    with pytest.raises(FrozenInstanceError):
        first.messages = 0


def test_large_plans_build_no_large_message():
    """Seventy billion parameters would be 280 GB."""
    tracemalloc.start()
    rows = plan(70_000_000_000, 1_000_000, 1000, participation=0.01, **LINK)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 1 << 22
    assert row("k-subspace", rows).compression_up == pytest.approx(70_000, rel=1e-3)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"params": 0}, "params must be a whole number of at least 1, got 0"),
        ({"params": 1e6}, "params must be a whole number"),
        ({"dim": 0}, "dim must be"),
        ({"dim": 101}, "dim 101 exceeds the model's 100 parameters"),
        ({"epochs": 0}, "epochs must be"),
        ({"epochs": 1.5}, "epochs must be"),
        ({"subspaces": 0}, "1 <= subspaces"),
        ({"subspaces": 10_000}, "subspaces <= 4096"),
        ({"participation": 0}, "participation must be a positive number, got 0"),
        ({"participation": math.nan}, "participation"),
        ({"participation": math.inf}, "participation"),
        ({"clients": 0}, "clients must be"),
        ({"local_steps": 0}, "local_steps must be"),
        ({"up_bps": 0}, "up_bps must be a positive number"),
        ({"down_bps": -1}, "down_bps must be a positive number, got -1"),
        ({"uplink": "f8"}, "unknown number format 'f8'"),
        ({"downlink": "int8"}, "unknown downlink 'int8': choose one of f32, f16"),
    ],
)
def test_bad_plans_are_refused(change, says):
    with pytest.raises(ValueError, match=says):
        plan(**{"params": 100, "dim": 10, "epochs": 2, **LINK, **change})


# Words and numbers.


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("124M", 124_000_000),
        ("124_443_648", 124_443_648),
        ("1e6", 1_000_000),
        ("1.5e3", 1500),
        ("16k", 16_000),
        ("16K", 16_000),
        ("7B", 7_000_000_000),
        ("1.3G", 1_300_000_000),
        ("2T", 2_000_000_000_000),
        (" 5 ", 5),
        ("1.1M", 1_100_000),
        ("0.001k", 1),
        ("1e18", 10**18),
    ],
)
def test_counts(text, value):
    parsed = parse_count(text)
    assert parsed == value
    assert isinstance(parsed, int)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "M",
        "x",
        "-5",
        "0",
        "1.5",
        "1.0001k",
        "12 34",
        "1,000",
        "5Q",
        "5kM",
        "nan",
        "inf",
        "1e19",
        "1e999",
        "__1",
        "1e99999999999",
    ],
)
def test_bad_counts_are_refused(text):
    with pytest.raises(ValueError, match="expected a whole number from 1 to 1e18"):
        parse_count(text)


@pytest.mark.parametrize(
    ("text", "rate"),
    [
        ("10Mbps", 1e7),
        ("10 Mbps", 1e7),
        ("10mbps", 1e7),
        ("512kbps", 512e3),
        ("1Gbps", 1e9),
        ("9600bps", 9600),
        ("2.5Mbit/s", 2.5e6),
        ("8Mb/s", 8e6),
        ("1MB/s", 8e6),
        ("1.25MB/s", 1e7),
        ("300 kB/s", 2.4e6),
        ("1e6bps", 1e6),
    ],
)
def test_rates(text, rate):
    assert parse_rate(text) == rate


@pytest.mark.parametrize(
    "text", ["", "10", "Mbps", "-1Mbps", "0Mbps", "10MBps", "10M", "10 parsecs", "1e99Gbps", "infbps"]
)
def test_bad_rates_are_refused(text):
    with pytest.raises(ValueError, match="expected a positive rate with its unit"):
        parse_rate(text)


@pytest.mark.parametrize(
    ("count", "text"),
    [
        (0, "0 B"),
        (0.4, "0.4 B"),
        (999, "999 B"),
        (999.6, "1 kB"),
        (65_590, "65.6 kB"),
        (497_774_592, "498 MB"),
        (1e12, "1 TB"),
        (5e18, "5000 PB"),
    ],
)
def test_bytes_as_people_read_them(count, text):
    assert format_bytes(count) == text


@pytest.mark.parametrize(
    ("count", "text"), [(0, "0"), (16_384, "16.4k"), (124_443_648, "124M"), (1.3e9, "1.3B"), (4e15, "4000T")]
)
def test_counts_as_people_read_them(count, text):
    assert format_count(count) == text


@settings(max_examples=200)
@given(st.integers(1, 10**15))
def test_counts_are_read_back(count):
    assert parse_count(format_count(count)) == pytest.approx(count, rel=0.006)


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0, "0 ms"),
        (0.0123, "12.3 ms"),
        (0.9999, "1 s"),
        (12.34, "12.3 s"),
        (59.99, "1 min"),
        (312, "5.2 min"),
        (3599.7, "1 h"),
        (7500, "2.08 h"),
        (86_399, "1 d"),
        (3e5, "3.47 d"),
    ],
)
def test_seconds_as_people_read_them(seconds, text):
    assert format_seconds(seconds) == text


@pytest.mark.parametrize("bad", [-1, math.nan, math.inf])
@pytest.mark.parametrize("formatted", [format_bytes, format_count, format_seconds])
def test_what_is_no_amount_is_refused(formatted, bad):
    with pytest.raises(ValueError, match="finite and not negative"):
        formatted(bad)


def test_few_bits_are_planned_as_asked() -> None:
    whole, plain, narrow = plan(10**6, 4096, 4, names=("uncompressed", "time-varying", NARROW), **LINK)
    assert narrow.numbers_up == plain.numbers_up
    assert narrow.bytes_up == 4 * (32 + 3 + 512)
    assert narrow.bytes_down == 4 * 32 + 7 * (3 + 1024)
    assert narrow.compression_up == whole.bytes_up / narrow.bytes_up
    names = ("uncompressed", "time-varying")
    _, asked = plan(10**6, 4096, 4, names=names, up_bits=1.0, down_bits=2.0, **LINK)
    assert (asked.bytes_up, asked.bytes_down) == (narrow.bytes_up, narrow.bytes_down)


def test_a_budget_says_d_and_bits_together() -> None:
    budget = 200_000
    found = fitting(budget, 10**6, 4, **LINK)
    assert [most.row.method for most in found] == [*INTRINSIC, NARROW]
    for most in found:
        name = most.row.method
        assert most.row.bytes_up + most.row.bytes_down <= budget
        beyond = plan(10**6, int(most.dim * 1.11) + 1, 4, 8, names=("uncompressed", name), **LINK)[1]
        assert beyond.bytes_up + beyond.bytes_down > budget
        assert (most.up_bits, most.down_bits) == ((1.0, 2.0) if name == NARROW else (32.0, 32.0))
    assert found[-1].dim > 18 * found[1].dim  # 11 numbers of 32 bits, or 4 of 1 and 7 of 2: 19.6 times
    assert not fitting(10, 10**6, 4, **LINK)
    shown = CliRunner().invoke(app, ["plan", "--params", "1M", "--epochs", "4", "--budget", "200kB"])
    assert "narrow" in shown.output
    assert f"{found[-1].dim:,}" in shown.output
    for both in (["--dim", "9", "--budget", "1MB"], []):
        refused = CliRunner().invoke(app, ["plan", "--params", "1M", "--epochs", "4", *both])
        assert refused.exit_code == 2
        assert "--budget" in refused.output


def test_times_with_their_units() -> None:
    assert [parse_seconds(text) for text in ("2.5h", "90 min", "45s", "1d")] == [9000, 5400, 45, 86400]
    for text in ("", "5", "0s", "-1h", "1e400h", "nan s", "2.5 hours"):
        with pytest.raises(ValueError, match="a positive time with its unit"):
            parse_seconds(text)
