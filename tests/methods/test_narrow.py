"""Few bits a number: the promises of the family hold, downloads are the smallest, rates as asked."""

import io

import numpy as np
import pytest
import torch
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from narrowcast.methods import RoundInfo, downlinks, method
from narrowcast.methods.base import DENSE, LOG
from narrowcast.methods.intrinsic import CHANGE
from narrowcast.numerics import keyed
from narrowcast.numerics.flat import Layout
from narrowcast.numerics.keyed import Purpose
from narrowcast.rounds.plan import Plan
from narrowcast.rounds.simulator import Simulation
from narrowcast.tasks.partition import iid
from narrowcast.tasks.torch_task import TorchTask
from narrowcast.wire import messages as wire
from narrowcast.wire.codes import lattice
from narrowcast.wire.codes.lattice import Points
from narrowcast.wire.messages import WireError
from worlds import EVENTS, VARIANTS, World, intrinsic, raw, wander


class Diary:
    """The naive twin of the trail: every version that was ever published, and all finished stages."""

    def __init__(self, world):
        self.world, self.at, self.log = world, {}, []
        self.note()

    def note(self):
        server = self.world.server
        points = server.trail.now
        self.log += server.log.last(server.stage - len(self.log))
        self.at[server.version] = (server.stage, points.step, points.numbers.astype(np.int64))
        values = torch.from_numpy((points.numbers * np.float64(points.step)).astype(np.float32))
        assert torch.equal(values.view_as(server.sigma), server.sigma)

    def options(self, have):
        """{kind: bytes of the blocks} of all that would do for a client at this version."""
        world, server = self.world, self.world.server
        known = self.at.get(have)
        first = 0 if known is None else known[0]
        now = lattice.points(Points(server.trail.now.step, server.trail.now.numbers.astype(np.int32)))
        log = [*self.log[first:], now]
        found = {LOG: log, DENSE: [wire.block(server.base), now]}
        if known is not None:
            count = world.server.sigma.numel()
            end = lattice.read_points(log[0], count)
            was = torch.from_numpy((known[2] * np.float64(known[1])).astype(np.float32)).double()
            further = end.numbers - np.rint(was.numpy() / end.step)
            found[CHANGE] = [lattice.points(Points(end.step, further.astype(np.int32))), *log[1:]]
        return {kind: sum(len(b.data) + 3 for b in blocks) for kind, blocks in found.items()}


BITS = [(1.5, 2.5), (0.25, 0.25), (16.0, 16.0), (32.0, 1.0)]


@pytest.mark.parametrize(("K", "refresh"), VARIANTS)
@settings(deadline=None, max_examples=2, phases=[Phase.explicit, Phase.reuse, Phase.generate])
@given(
    st.sampled_from(BITS),
    st.sampled_from([61, 150]),
    st.sampled_from([2, 7, 4096]),
    st.lists(EVENTS, min_size=60, max_size=120),
)
def test_every_visit_gives_the_servers_theta_for_the_fewest_bytes(K, refresh, bits, D, kept, events):
    before, downlinks.HISTORY_VERSIONS = downlinks.HISTORY_VERSIONS, kept
    try:
        world = World(intrinsic(K, refresh, up_bits=bits[0], down_bits=bits[1]), D)
        diary, step = Diary(world), world.step

        def noted(**how):
            step(**how)
            diary.note()
            return world

        world.step = noted

        def fewest(model, have, down):
            options = diary.options(have)
            if have is None or world.server.trail.find(have, diary.at.get(have, (-1,))[0]) is None:
                options.pop(CHANGE, None)
            size = sum(len(b.data) + 3 for b in down.blocks)
            assert size == min(options.values())
            assert size == options[down.kind]
            assert len(world.server.trail.history) <= kept

        def only_a_false_claim(model, have):
            assert have != model.version

        wander(world, events, fewest, only_a_false_claim)
    finally:
        downlinks.HISTORY_VERSIONS = before


def test_clients_of_equal_lag_get_equal_downloads():
    world = World(intrinsic(refresh=4, dim=9, up_bits=1.5, down_bits=2.5), 150)
    for _ in range(11):
        world.step()
    by_lag = {}
    for have in (None, -1, 99, *range(12)):
        data = wire.encode_payload(world.method.download(world.server, have))
        by_lag.setdefault(world.method.lag(world.server, have), set()).add(data)
    assert all(len(found) == 1 for found in by_lag.values())


@pytest.mark.parametrize("options", [
    {"refresh": 0}, {"refresh": 4}, {"refresh": "epoch", "K": 3}, {"refresh": 1},
])  # fmt: skip
@pytest.mark.parametrize("pause", [0, 1, 5, 9])
def test_a_resumed_server_sends_the_same_bytes_to_everyone(options, pause):
    one, other = (World(intrinsic(dim=9, up_bits=1.5, down_bits=2.5, **options), 150) for _ in range(2))
    for _ in range(pause):
        one.step()
        other.step()
    file = io.BytesIO()
    torch.save(other.method.state(other.server), file)
    state = torch.load(io.BytesIO(file.getvalue()), weights_only=True)
    other.server = other.method.restore(other.theta0, other.layout, state)
    other.theta = other.method.theta(other.server)
    for _ in range(8):
        assert raw(other.method.state(other.server)) == raw(one.method.state(one.server))
        for have in (None, *range(one.server.version + 1)):
            a, b = (w.method.download(w.server, have) for w in (one, other))
            assert wire.encode_payload(a) == wire.encode_payload(b)
        one.step()
        other.step()


def trained(rounds, dim=8, D=40, period=50, every=None, bits=2.5, refresh=0, rate=0.3):
    """A server that walks on noise, and a client that comes every so many rounds: (server, bytes, state)."""
    m = method("narrow", key=1, dim=dim, down_bits=bits, refresh=refresh or 10**9)
    theta0, layout = torch.linspace(-1, 1, D), Layout(("w",), ((D,),))
    server, model, sizes = m.server(theta0, layout), m.newcomer(theta0, layout), []
    drift = torch.from_numpy(keyed.normals(7, Purpose.NORMALS, dim))
    for number in range(rounds):
        if number % (every or period) == 0:
            down = m.download(server, model.version)
            sizes.append((sum(len(b.data) for b in down.blocks), len(down.blocks)))
            model, theta = m.reconcile(model, down, server.version)
            assert torch.equal(theta, m.theta(server))
        noise = torch.from_numpy(keyed.normals(number, Purpose.NORMALS, dim))
        acc = m.zero(server)
        acc.total[0] = noise + drift * 0.3
        acc = type(acc)(acc.total, 1.0, acc.stage, 1)
        rest = 1 - number / rounds
        server = m.step(server, acc, RoundInfo(number, number // period, False, rate * rest, period))
    return m, server, sizes


@pytest.mark.parametrize("rounds", [600, pytest.param(10_000, marks=pytest.mark.slow)])
def test_history_and_checkpoint_stay_bounded(rounds, monkeypatch):
    monkeypatch.setattr(downlinks, "HISTORY_VERSIONS", 300)
    m, server, _ = trained(rounds)
    assert len(server.trail.history) == 300
    file = io.BytesIO()
    torch.save(m.state(server), file)
    assert len(file.getvalue()) < 300 * (8 * 4 + 40) + 10_000
    monkeypatch.setattr(downlinks, "HISTORY_BYTES", 1000)
    _, server, _ = trained(400)
    assert sum(p.points.numbers.nbytes for p in server.trail.history) <= 1000


def test_a_checkpoints_history_takes_no_more_than_the_servers_and_an_older_one_is_read():
    """Versions of one byte a number, of two and of four; once all of them had the widest's."""
    down = downlinks.OnLattice(4.0)
    trail, largest = down.start(100), [0, 3, -100, 3, 300, -(1 << 20), 0, -128, 127, 1 << 15]
    for version, number in enumerate(largest[1:], 1):
        points = np.full(100, number, np.int32)
        points[::2] = version
        trail = trail.followed_by(version, version // 4, Points(0.5 * version, points))
    numbers = [p.points.numbers for p in trail.history]
    assert {n.itemsize for n in numbers} == {1, 2, 4}
    state = down.state(trail)
    assert state["numbers"].nbytes <= sum(n.nbytes for n in numbers)
    old = {name: value for name, value in state.items() if name != "widths"}
    old["numbers"] = torch.from_numpy(np.stack(numbers))
    assert old["numbers"].dtype == torch.int32
    for kept in (state, old):
        again = down.restore(kept)
        assert again.pace == trail.pace
        for one, other in zip(again.history, trail.history, strict=True):
            assert (one.place, one.points.step) == (other.place, other.points.step)
            assert one.points.numbers.dtype == other.points.numbers.dtype
            assert np.array_equal(one.points.numbers, other.points.numbers)
            assert one.points.numbers.flags.aligned


def downloads(epochs, first, **options):
    """(numbers, bits) of each download to a client that comes once an epoch, at round `first` of it."""
    period, dim, K = 20, options["dim"], options.get("subspaces", 1)
    m = method("k-subspace-time-varying", key=1, **{"subspaces": 1, **options})
    theta0, layout = torch.zeros(4 * dim), Layout(("w",), ((4 * dim,),))
    server, model = m.server(theta0, layout), m.newcomer(theta0, layout)
    drift = torch.from_numpy(keyed.normals(7, Purpose.NORMALS, K * dim)).view(K, dim)
    rounds = epochs * period
    for number in range(rounds):
        if number % period == first:
            down = m.download(server, model.version)
            yield K * dim * len(down.blocks), sum(8 * len(b.data) for b in down.blocks)
            model, _ = m.reconcile(model, down, server.version)
        acc = m.zero(server)
        noise = torch.from_numpy(keyed.normals(number, Purpose.NORMALS, K * dim)).view(K, dim)
        acc.total[:] = noise + drift * 0.3
        acc = type(acc)(acc.total, 1.0, acc.stage, 1)
        info = (number // period, False, min(number + 1, rounds - number) / rounds, period)
        server = m.step(server, acc, RoundInfo(number, *info))


@pytest.mark.parametrize("bits", [0.75, 2.5, 6.0])
@pytest.mark.parametrize(
    ("K", "refresh", "epochs"), [(1, 0, 2), (1, 0, 8), (1, 20, 8), (1, 7, 4), (3, 0, 4), (3, 20, 4)]
)
def test_downloads_take_the_bits_that_were_asked_for(bits, K, refresh, epochs):
    """Of a client that comes once an epoch, as a mean over the run, all phases of an epoch alike."""
    options = {"dim": 1024, "down_bits": bits, "subspaces": K, "refresh": refresh or 10**9}
    sent = [pair for first in (3, 10, 17) for pair in downloads(epochs, first, **options)]
    numbers, total = map(sum, zip(*sent, strict=True))
    assert abs(total / numbers / bits - 1) < 0.15


@pytest.mark.parametrize("name", ["static", "narrow"])
def test_theta_follows_sigma_from_the_first_round(name):
    """However long an epoch is: what was to come in it was once expected at its start, and nothing moved."""
    dim, period = 512, 400
    m = method(name, key=1, dim=dim, up_bits=1.0, down_bits=2.0)
    server = m.server(torch.zeros(4 * dim), Layout(("w",), ((4 * dim,),)))
    for number in range(60):
        acc = m.zero(server)
        acc.total[:] = torch.from_numpy(keyed.normals(number, Purpose.NORMALS, dim)).view(1, dim) + 0.3
        info = RoundInfo(number, 0, False, 0.01, period)
        server = m.step(server, type(acc)(acc.total, 1.0, acc.stage, 1), info)
        away = (server.sigma - server.exact).norm() / server.exact.norm()
        assert away < 0.45  # rounded to 2 bits: 0.3 of a Gaussian's deviation


def test_a_change_that_is_too_far_is_refused():
    m = method("narrow", key=1, dim=4)
    theta0 = torch.zeros(9)
    model = m.newcomer(theta0)
    for step in (0.0, 3e38):
        block = wire.Block(wire.POINTS, np.float32(step).tobytes() + bytes([224 + 8, 1, 255, 127, 128]))
        far = torch.full((4,), 3e38)
        with pytest.raises(WireError):
            m.reconcile(type(model)(0, 0, theta0, None, far), wire.payload([block], kind=CHANGE), version=1)


def test_bits_beside_another_format_or_out_of_range_are_refused():
    for wrong in (
        {"up_bits": 1.5, "uplink": "int8"}, {"down_bits": 2.5, "downlink": "f16"},
        {"up_bits": 0.2}, {"up_bits": 17}, {"down_bits": 0}, {"down_bits": float("nan")},
    ):  # fmt: skip
        with pytest.raises(ValueError, match="bits"):
            method("static", **wrong)


@pytest.mark.parametrize("bits", [0.5, 1.5, 4.0])
@pytest.mark.parametrize(
    "name", ["static", "time-varying", "k-subspace", "k-subspace-time-varying", "narrow"]
)
def test_uploads_take_the_bits_that_were_asked_for(name, bits):
    """All of the family: within 5 %, what a block has beside its numbers included."""
    dim, few = 1024, {"subspaces": 2} if "k-subspace" in name else {}
    x = torch.randn(120, 30, generator=torch.Generator().manual_seed(1))
    y = x[:, :10].argmax(1)
    net = torch.nn.Sequential(torch.nn.Linear(30, 60), torch.nn.Tanh(), torch.nn.Linear(60, 10))
    task = TorchTask(net, train=(x, y), test=(x, y), clients=iid(120, 12))
    m = method(name, key=3, dim=dim, up_bits=bits, down_bits=4.0, **few)
    records = list(Simulation(task, m, Plan(cohort=6, lr=0.5, epochs=6, key=1)))
    uploads = sum(record.clients for record in records)
    numbers = sum(record.up for record in records) - uploads * (wire.HEADER + 3)
    assert 8 * numbers / (uploads * dim) == pytest.approx(bits, rel=0.05)
