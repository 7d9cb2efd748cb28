"""The laws of the family of methods, and what holds of all beside the contract of `narrowcast.testing`, which
test_contracts.py holds them to: nothing superfluous is sent, special cases coincide."""

import io
from dataclasses import replace

import msgspec
import numpy as np
import pytest
import torch
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from fitting import made
from naive import toy
from narrowcast.methods import METHODS, method
from narrowcast.methods.base import DENSE, LOG
from narrowcast.methods.optimisers import OPTIMISERS, Adam, Momentum
from narrowcast.rounds import exchange
from narrowcast.rounds.plan import Plan
from narrowcast.rounds.simulator import Simulation
from narrowcast.wire import messages as wire
from narrowcast.wire.messages import WireError
from worlds import EVENTS, KEY, RUN, VARIANTS, World, intrinsic, raw, small, wander

every_variant = pytest.mark.parametrize(("K", "refresh"), VARIANTS)
both_downlinks = pytest.mark.parametrize("downlink", ["f32", "f16"])
every_method = pytest.mark.parametrize("name", METHODS)


@every_variant
@both_downlinks
@settings(deadline=None, max_examples=4, phases=[Phase.explicit, Phase.reuse, Phase.generate])
@given(st.sampled_from([61, 150]), st.lists(EVENTS, min_size=200, max_size=300))
def test_every_visit_gives_the_servers_theta_for_the_fewest_bytes(K, refresh, downlink, D, events):
    world = World(intrinsic(K, refresh, downlink=downlink), D)

    def fewest(model, have, down):
        assert (len(wire.encode_payload(down)), down.kind) == world.smallest(world.behind(have))

    def only_a_false_claim(model, have):
        assert world.behind(have) != world.server.stage - model.stage

    wander(world, events, fewest, only_a_false_claim)


@pytest.mark.parametrize("name", [name for name in METHODS if not small(name).stateful])
@pytest.mark.parametrize("bits", [32.0, 1.5])
def test_many_updates_are_compressed_as_each_by_itself(name, bits):
    narrow = {} if bits == 32 or not hasattr(small(name), "up_bits") else {"up_bits": bits}
    world = World(replace(small(name), **narrow)).step().step()
    keys = [world.round.client_key(client) for client in range(5)]
    vs = torch.stack([world.update() for _ in keys])
    many = list(world.method.compress_many(vs, world.today(), keys))
    alone = [world.method.compress(None, v, world.today(), k)[1] for v, k in zip(vs, keys, strict=True)]
    assert many == alone
    assert len({up.route for up in many}) > 1 or getattr(world.method, "subspaces", 1) == 1
    assert not list(world.method.compress_many(vs[:0], world.today(), []))


@pytest.mark.parametrize(("D", "d"), [(164, 10), (150, 10), (1000, 70), (16400, 800)])
@both_downlinks
def test_the_base_is_sent_exactly_where_the_log_is_longer_and_its_receiver_stays_equal(D, d, downlink):
    world = World(intrinsic(refresh=1, dim=d, downlink=downlink), D)
    kinds = []
    for _ in range(45):
        down = world.method.download(world.server, None)
        kinds.append(down.kind)
        assert (len(wire.encode_payload(down)), down.kind) == world.smallest(world.server.stage)
        world.step(clients=1)
    assert kinds[0] == LOG
    assert kinds[-1] == DENSE
    model = world.visit(world.newcomer(), None)
    for _ in range(12):
        model = world.step().visit(model, model.version)
        assert len(world.method.download(world.server, model.version).blocks) == 1


@pytest.mark.parametrize("m", range(6))
def test_m_stages_later_a_client_needs_m_plus_one_blocks(m):
    world = World(intrinsic(K=3, refresh=2), D=999)
    model = world.step().visit(world.newcomer(), None)
    for _ in range(2 * m):
        world.step()
    assert len(world.method.download(world.server, model.version).blocks) == m + 1
    world.visit(model, model.version)


@pytest.mark.parametrize("stage", [0, 1, 2, 3, 4, 2**32 - 1])
@pytest.mark.parametrize("blocks", range(5))
@pytest.mark.parametrize("kind", [LOG, DENSE, 2])
def test_a_download_that_does_not_fit_the_client_is_a_wire_error(stage, blocks, kind):
    world = World(intrinsic(refresh=1)).step().step()
    model = world.visit(world.newcomer(), None)
    numbers = [wire.block(torch.ones(5))] * blocks
    if (kind, blocks) != (LOG, stage - model.stage + 1) or not blocks:
        with pytest.raises(WireError):
            world.method.reconcile(model, wire.payload(numbers, kind=kind, stage=stage), 9)


@every_method
def test_a_client_that_trained_on_another_theta_is_refused(name):
    world = World(small(name)).step()
    data = exchange.send_down(world.method, world.server, world.round, None)
    other = msgspec.structs.replace(wire.decode(data), check=b"12345678")
    with pytest.raises(WireError, match="newcomer"):
        exchange.receive_down(world.method, world.newcomer(), wire.encode(other), RUN, KEY)


# Special cases that must coincide.


def run(m, task, **plan):
    simulation = Simulation(task, m, Plan(**{"cohort": 5, "lr": 1.0, "epochs": 3, "key": 1} | plan))
    return list(simulation), simulation.theta.clone()


@pytest.mark.parametrize(
    ("many", "one"), [("k-subspace", "static"), ("k-subspace-time-varying", "time-varying")]
)
def test_one_subspace_of_k_is_the_method_without_k(many, one):
    task, _ = toy("mlp")
    options = {"dim": 20, "key": KEY, "optimiser": Momentum(0.5)}
    records, theta = run(method(many, subspaces=1, **options), task)
    same, equal = run(made(one, **options), task)
    assert all(a.same_as(b) for a, b in zip(records, same, strict=True))
    assert raw(theta) == raw(equal)


@pytest.mark.parametrize("optimiser", ["sgd", "momentum"])
@pytest.mark.parametrize("kind", ["logistic", "mlp"])
@pytest.mark.parametrize("unbiased", [True, False])
def test_a_rotation_of_full_dimension_trains_like_no_compression(optimiser, kind, unbiased):
    """A is orthogonal, so A A^T v = v."""
    task, _ = toy(kind)
    options = {"optimiser": OPTIMISERS[optimiser](), "dim": task.layout.size, "unbiased": unbiased}
    _, theta = run(method("static", **options), task, lr=0.3)
    _, truth = run(made("uncompressed", **options), task, lr=0.3)
    way = torch.linalg.norm(truth - task.theta0())
    assert way > 0.5
    assert torch.linalg.norm(theta - truth) < 5e-6 * way


# What a round leaves behind.


@pytest.mark.parametrize("K", [1, 3])
def test_a_refresh_missed_in_an_empty_round_happens_after_the_next_step(K):
    world = World(intrinsic(K, "epoch"))
    seen = [world.step(clients=c).server.stage for c in (1, 1, 0, 0, 1, 1, 1, 1, 1, 0, 0, 0, 1, 1, 1)]
    assert seen == [0, 0, 0, 0, 1, 2, 2, 2, 3, 3, 3, 3, 4, 4, 5]


@pytest.mark.parametrize("refresh", [1, 2, 5])
def test_a_refresh_every_n_rounds_counts_the_rounds_that_were_not_empty(refresh):
    world = World(intrinsic(refresh=refresh))
    for t in range(20):
        world.step(clients=t % 3)
        assert world.server.stage == world.server.version // refresh


RESUMABLE = [
    (name, {"optimiser": optimiser(), "carry": carry, "downlink": downlink})
    for name in ("time-varying", "k-subspace-time-varying", "uncompressed")
    for optimiser in (Momentum, Adam)
    for carry, downlink in ((False, "f16"), (True, "f32"))
]


@pytest.mark.parametrize(("name", "options"), RESUMABLE, ids=lambda p: p if isinstance(p, str) else "")
@pytest.mark.parametrize("pause", [0, 1, 3, 8])
def test_restoring_a_state_goes_on_as_if_nothing_had_happened(name, options, pause):
    one, other = (World(small(name, **options)) for _ in range(2))
    for _ in range(pause):
        one.step()
        other.step()
    file = io.BytesIO()
    torch.save(other.method.state(other.server), file)
    state = torch.load(io.BytesIO(file.getvalue()), weights_only=True)  # tensors and numbers, nothing else
    other.server = other.method.restore(other.theta0, other.layout, state)
    other.theta = other.method.theta(other.server)
    for _ in range(8):
        assert raw(other.method.state(other.server)) == raw(one.method.state(one.server))
        assert other.round == one.round
        assert wire.encode_payload(other.method.download(other.server, None)) == wire.encode_payload(
            one.method.download(one.server, None)
        )
        one.step()
        other.step()


def basis(world, stage):
    """[A_{stage,1} ... A_{stage,K}] with float64 entries, (D, K d)."""
    D, K = world.theta0.numel(), world.method.subspaces
    return torch.cat([world.method.matrix(D, stage, k).dense() for k in range(K)], 1).double()


@pytest.mark.parametrize("optimiser", [Momentum(0.5), Adam()], ids=["momentum", "adam"])
@pytest.mark.parametrize("unbiased", [True, False])
@pytest.mark.parametrize("K", [1, 3])
def test_carried_momentum_is_the_old_one_seen_from_the_new_subspace(optimiser, unbiased, K):
    """m_new = (d/D) A_new^T A_old m_old; Adam's second moment is its mean, its count goes on."""
    options = {"optimiser": optimiser, "carry": True, "unbiased": unbiased}
    old = World(intrinsic(K, refresh=0, **options)).step().step()  # its third A would be the first, still
    new = World(intrinsic(K, refresh=2, **options)).step().step()
    assert new.server.stage == 1
    before, after = old.server.optimiser, new.server.optimiser
    moved = 5 / 61 * basis(new, 1).T @ basis(new, 0) @ before["momentum"].double().view(-1)
    assert moved.abs().max() > 1e-3
    torch.testing.assert_close(after["momentum"].double().view(-1), moved, rtol=1e-5, atol=1e-6)
    if isinstance(optimiser, Adam):
        assert after["count"] == before["count"] == 2
        assert torch.equal(after["second"], torch.full_like(before["second"], float(before["second"].mean())))


@pytest.mark.parametrize("optimiser", [Momentum(), Adam()], ids=["momentum", "adam"])
def test_without_carry_a_new_subspace_starts_from_nothing(optimiser):
    world = World(intrinsic(K=3, refresh=2, optimiser=optimiser)).step().step()
    assert raw(world.server.optimiser) == raw(optimiser.init(torch.zeros(3, 5)))


# What a server lets in.


def numbers(up, change):
    """The upload with its numbers changed."""
    return msgspec.structs.replace(
        up, blocks=[wire.block(change(up.blocks[0].numbers(len(up.blocks[0].data) // 4)))]
    )


def written(up, format, number):
    """The upload with every number written so, at the largest scale there is."""
    count = len(up.blocks[0].data) // 4
    block = wire.Block(format, np.finfo("<f4").max.tobytes() + number * count)
    return msgspec.structs.replace(up, blocks=[block])


def first(value):
    def change(x):
        x[0] = value
        return x

    return change


HOSTILE = {
    "NaN": lambda up: numbers(up, first(float("nan"))),
    "infinity": lambda up: numbers(up, first(-float("inf"))),
    "overflow": lambda up: numbers(up, first(3e38)),
    "one number less": lambda up: numbers(up, lambda x: x[1:]),
    "one number more": lambda up: numbers(up, lambda x: torch.cat([x, x[:1]])),
    "nothing": lambda up: numbers(up, lambda x: x[:0]),
    "half a number": lambda up: msgspec.structs.replace(up, blocks=[wire.Block(0, up.blocks[0].data[:-2])]),
    "no block": lambda up: msgspec.structs.replace(up, blocks=[]),
    "two blocks": lambda up: msgspec.structs.replace(up, blocks=up.blocks * 2),
    "f16 beyond f32": lambda up: written(up, 1, np.float16(6e4).tobytes()),
    "int8 beyond f32": lambda up: written(up, 2, b"\x80"),
    "unknown format": lambda up: msgspec.structs.replace(up, blocks=[wire.Block(99, up.blocks[0].data)]),
    "wrong kind": lambda up: msgspec.structs.replace(up, kind=1 - up.kind),
    "stage before": lambda up: msgspec.structs.replace(up, stage=0),
    "stage after": lambda up: msgspec.structs.replace(up, stage=2),
    "no such route": lambda up: msgspec.structs.replace(up, route=3),
    "wrong route": lambda up: msgspec.structs.replace(up, route=(up.route + 1) % 3),
}


@pytest.mark.parametrize(
    ("name", "change"),
    [
        *(("k-subspace-time-varying", change) for change in HOSTILE),
        *(("uncompressed", change) for change in HOSTILE if "stage" not in change),  # it has none
    ],
)
def test_a_hostile_upload_is_a_wire_error_and_leaves_the_sum_as_it_was(name, change):
    world = World(small(name, refresh=1)).step()
    method_, server, round = world.method, world.server, world.round
    acc = method_.zero(server)
    for client in (0, 0):  # something is in the sum already
        acc = method_.add(acc, numbers(world.upload(client), first(1e17)), 1.0)
    before = raw(vars(acc))
    bad = exchange.seal(round, HOSTILE[change](world.upload(0)), weight=1)
    with pytest.raises(WireError):
        exchange.receive_up(method_, acc, bad, round, 0, set())
    assert raw(vars(acc)) == before
    good = exchange.seal(round, world.upload(0), weight=1)
    assert exchange.receive_up(method_, acc, good, round, 0, set()).weight == 3


@every_method
@pytest.mark.parametrize(
    "change",
    [
        {"run": b"anot"}, {"round": 2}, {"version": 2}, {"check": b"another."}, {"weight": 0}, {"weight": 2},
    ],
    ids=lambda change: next(iter(change)),
)  # fmt: skip
def test_an_upload_that_belongs_elsewhere_is_a_wire_error(name, change):
    world = World(small(name)).step()
    acc = world.method.zero(world.server)
    message = wire.decode(exchange.seal(world.round, world.upload(0), weight=1))
    bad = wire.encode(msgspec.structs.replace(message, **change))
    with pytest.raises(WireError):
        exchange.receive_up(world.method, acc, bad, world.round, 0, set())
    assert raw(vars(acc)) == raw(vars(world.method.zero(world.server)))


def test_options_may_be_numpys_numbers():
    made = method("static", dim=np.int64(16), key=np.uint64(5), up_bits=np.float32(2.0))
    assert made == method("static", dim=16, key=5, up_bits=2.0)
    assert type(made.dim) is type(made.key) is int
