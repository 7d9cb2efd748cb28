"""The laws of the simulator: the fast road is the slow one, a key decides all, every byte is counted."""

import gc
import io
import math
from dataclasses import replace
from functools import partial

import msgspec
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from fitting import made
from naive import toy
from narrowcast.errors import ConfigError, Diverged
from narrowcast.methods import METHODS
from narrowcast.methods import method as nc_method
from narrowcast.methods.base import DENSE
from narrowcast.methods.intrinsic import Intrinsic
from narrowcast.methods.optimisers import Momentum
from narrowcast.numerics.flat import Layout
from narrowcast.numerics.keyed import MASK64
from narrowcast.rounds import exchange, sampling
from narrowcast.rounds.exchange import Round
from narrowcast.rounds.plan import Plan
from narrowcast.rounds.sampling import Cohorts
from narrowcast.rounds.simulator import Simulation
from narrowcast.rounds.task import Task
from narrowcast.tasks.partition import iid
from narrowcast.tasks.torch_task import TorchTask
from narrowcast.wire import messages as wire
from narrowcast.wire.messages import WireError

N = 12
PLAN = Plan(cohort=5, lr=0.5, epochs=3, key=1)
every_method = pytest.mark.parametrize("name", METHODS)


def build(name, **options):
    return made(name, **{"dim": 8, "subspaces": 3, "key": 5} | options)


by_gradient = pytest.mark.parametrize("name", [name for name in METHODS if not build(name).probes])


@pytest.fixture(scope="module")
def task():
    return toy("mlp", N)[0]


def run(task, m, plan):
    simulation = Simulation(task, m, plan)
    return list(simulation), simulation.theta.clone()


def same(records, others):
    return all(a.same_as(b) for a, b in zip(records, others, strict=True))


def bits(theta):
    return theta.numpy().tobytes()


# The fast road and the slow one.


@every_method
@pytest.mark.parametrize(
    ("steps", "weighting", "dropout"),
    [(1, "clients", 0.0), (1, "examples", 0.4), (3, "clients", 0.4), (3, "examples", 0.0)],  # every pair
)
def test_summing_before_compressing_changes_nothing_but_the_last_bits(task, name, steps, weighting, dropout):
    plan = replace(PLAN, local_steps=steps, local_batch=2, weighting=weighting, dropout=dropout)
    if weighting == "examples" and not build(name).weighted:
        with pytest.raises(ConfigError, match="weighting"):
            run(task, build(name), plan)
        return
    fast, theta = run(task, build(name), plan)
    slow, truth = run(task, build(name), replace(plan, per_client=True))
    for a, b in zip(fast, slow, strict=True):
        assert (a.loss or 0) == pytest.approx(b.loss or 0, rel=1e-4)  # None where nobody answered
        assert a.same_as(msgspec.structs.replace(b, loss=a.loss, metrics=a.metrics))
    way = torch.linalg.norm(truth - task.theta0())
    assert way > 0.1
    assert torch.linalg.norm(theta - truth) < 1e-5 * way


def by_gradients(task, monkeypatch):
    """Clients one by one: side by side nobody asks for a gradient."""
    for name in ("gradients", "gradient_rows", "walk_rows", "walk_sums"):
        monkeypatch.setattr(task, name, partial(getattr(Task, name), task))


@by_gradient
@pytest.mark.parametrize("per_client", [False, True])
def test_the_clients_of_a_round_all_start_from_the_servers_theta(task, name, per_client, monkeypatch):
    starts, gradient = [], task.gradient
    by_gradients(task, monkeypatch)
    monkeypatch.setattr(task, "gradient", lambda theta, b: starts.append(bits(theta)) or gradient(theta, b))
    simulation = Simulation(task, build(name), replace(PLAN, local_steps=3, per_client=per_client))
    for _ in range(3):
        before, starts[:] = bits(simulation.theta), []
        record = simulation.step()
        assert len(starts) == 3 * record.clients
        assert set(starts[::3]) == {before}


@pytest.mark.parametrize("steps", [1, 3])
@pytest.mark.parametrize("weighting", ["clients", "examples"])
def test_a_round_of_local_steps_averages_the_models_of_the_clients(steps, weighting):
    """FedAvg by its definition: sum_c w_c theta_c / sum_c w_c, where theta_c is after plain SGD."""
    task, gradient = toy("mlp", N)
    plan = Plan(cohort=7, lr=0.4, rounds=1, key=3, local_steps=steps, weighting=weighting)
    simulation = Simulation(task, build("fedavg"), plan)
    clients = simulation.cohorts.come(0).tolist()
    simulation.step()
    models = []
    for c in clients:
        theta = task.theta0().double().numpy()
        for _ in range(steps):
            theta = theta - 0.4 * gradient(theta, c)
        models.append(theta)
    weights = [len(task.clients[c]) if weighting == "examples" else 1 for c in clients]
    expected = np.average(models, axis=0, weights=weights)
    np.testing.assert_allclose(simulation.theta.numpy(), expected, rtol=0, atol=2e-6)


# A key decides everything.


@every_method
def test_the_same_key_gives_the_same_run_and_another_key_another(task, name):
    plan = replace(PLAN, participation=0.8, dropout=0.2, local_batch=2, evaluate_every=2)
    records, theta = run(task, build(name), plan)
    again, equal = run(task, build(name), plan)
    assert same(records, again)
    assert bits(theta) == bits(equal)
    others, other = run(task, build(name), replace(plan, key=2))
    assert not same(records, others)
    assert bits(theta) != bits(other)


@every_method
@pytest.mark.parametrize("pause", [0, 1, 4, 6])  # at the start, twice within an epoch, between epochs
def test_a_restored_run_goes_on_bit_for_bit(task, name, pause):
    m = build(name, optimiser=Momentum(0.5), carry=True)
    plan = replace(PLAN, participation=0.9, dropout=0.2, local_batch=2, evaluate_every=4)
    records, theta = run(task, m, plan)
    stopped = Simulation(task, m, plan)
    for _ in range(pause):
        stopped.step()
    file = io.BytesIO()
    torch.save(stopped.state(), file)
    stopped.step()  # what happens after the checkpoint does not matter
    resumed = Simulation(task, m, plan)
    resumed.restore(torch.load(io.BytesIO(file.getvalue()), weights_only=True))
    assert same(list(resumed), records[pause:])
    assert bits(resumed.theta) == bits(theta)


def test_a_state_is_not_changed_by_the_rounds_that_follow(task):
    simulation = Simulation(task, build("time-varying", optimiser=Momentum()), PLAN)
    simulation.step()
    state = simulation.state()
    rest = list(simulation)
    simulation.restore(state)
    assert same(list(simulation), rest)


def test_a_checkpoint_of_other_clients_is_refused(task):
    state = Simulation(toy("mlp", N + 1)[0], build("static"), PLAN).state()
    with pytest.raises(ValueError, match="13 clients"):
        Simulation(task, build("static"), PLAN).restore(state)


@every_method
def test_a_zero_that_changes_its_sign_is_a_change(name):
    """A pruned model has zeros with a minus, and a rate of zero steps by some too: the digest sees it."""
    model, (x, y) = nn.Linear(4, 3), (torch.arange(240.0).view(60, 4).sin(), torch.arange(60) % 3)
    with torch.no_grad():
        model.weight.copy_(torch.tensor([0.5, -0.0, -0.0]).repeat(4).view(3, 4))
    pruned = TorchTask(model, train=(x, y), test=(x, y), clients=iid(60, clients=6))
    warmed = replace(PLAN, cohort=2, lr=0.1, schedule=[(0.0, 0.0), (1.0, 0.0), (2.0, 1.0)])
    records, _ = run(pruned, build(name, dim=4, k=3, clients=6), warmed)
    assert all(record.clients == 2 for record in records)  # none was refused: that would be a WireError


# Who comes.


@settings(deadline=None)
@given(st.integers(1, 500), st.data(), st.integers(0, MASK64))
def test_every_client_comes_exactly_once_an_epoch(clients, data, key):
    cohorts = Cohorts(clients, data.draw(st.integers(1, clients)), key)
    T = cohorts.rounds_per_epoch
    orders = [np.concatenate([cohorts.come(t) for t in range(e * T, (e + 1) * T)]) for e in range(2)]
    for e, order in enumerate(orders):
        assert sorted(order) == list(range(clients))
        assert [cohorts.epoch(t) for t in range(e * T, (e + 1) * T)] == [e] * T
        assert [cohorts.epoch_end(t) for t in range(e * T, (e + 1) * T)] == [False] * (T - 1) + [True]
    assert all(len(cohorts.come(t)) == cohorts.size for t in range(T - 1))
    if clients > 20:
        assert (orders[0] != orders[1]).any()  # the order is a new one


def within(count, trials, p):
    """Five standard deviations of a binomial: fails by chance once in two million."""
    return abs(count - trials * p) <= 5 * math.sqrt(trials * p * (1 - p)) + 1e-9


def test_uniform_draws_are_distinct_and_even():
    cohorts = Cohorts(50, 10, 4, "uniform")
    draws = [cohorts.come(t) for t in range(1000)]
    assert all(len(set(draw.tolist())) == 10 for draw in draws)
    assert all(within(count, 1000, 10 / 50) for count in np.bincount(np.concatenate(draws), minlength=50))
    together = sum(0 in draw and 1 in draw for draw in draws)
    assert within(together, 1000, 10 * 9 / (50 * 49))


@pytest.mark.parametrize("mode", ["epoch", "uniform"])
@pytest.mark.parametrize(("participation", "dropout"), [(1.0, 0.0), (0.3, 0.0), (1.0, 0.6), (0.7, 0.2)])
def test_participation_and_dropout_are_what_was_asked(mode, participation, dropout):
    cohorts = Cohorts(200, 50, 4, mode, participation, dropout)
    came = [cohorts.come(t) for t in range(400)]
    answered = [cohorts.answer(t, c) for t, c in enumerate(came)]
    total = sum(map(len, came))
    assert within(total, 400 * 50, participation)
    assert within(sum(map(len, answered)), total, 1 - dropout)
    assert all(set(a.tolist()) <= set(c.tolist()) for a, c in zip(answered, came, strict=True))
    visits, share = (100, 1.0) if mode == "epoch" else (400, 50 / 200)  # nobody is favoured
    counts = np.bincount(np.concatenate(answered), minlength=200)
    assert all(within(count, visits, share * participation * (1 - dropout)) for count in counts)


@pytest.mark.parametrize("flipped", [0, 3, 120])
def test_one_secret_coin_decides_of_one_client_alone(flipped, monkeypatch):
    """Else epsilon, which counts one client's coin as its own affair, would be too small."""
    cohorts, tossed = Cohorts(200, 50, 4, "poisson", 0.7, 0.2), np.arange(200) % 4 == 0

    def answered(coin):
        coins = tossed.copy()
        coins[flipped] = coin
        monkeypatch.setattr(sampling, "coins", lambda share, count: coins)
        rounds = [cohorts.answer(t, cohorts.come(t)).tolist() for t in range(20)]
        return rounds, [set(clients) - {flipped} for clients in rounds]

    (present, others), (absent, same) = answered(True), answered(False)
    assert others == same
    assert any(flipped in clients for clients in present)
    assert not any(flipped in clients for clients in absent)
    assert within(sum(map(len, same)), 20 * 50, 0.7 * 0.8)


@pytest.mark.parametrize(
    "bad",
    [{"size": 0}, {"size": 13}, {"mode": "random"}, {"participation": 0.0}, {"participation": 1.1},
     {"dropout": 1.0}, {"dropout": -0.1}, {"dropout": math.nan}],
    ids=str,
)  # fmt: skip
def test_impossible_cohorts_are_refused(bad):
    with pytest.raises(ValueError, match=r"cohort|sampling|participation"):
        Cohorts(**{"clients": 12, "size": 4, "key": 0} | bad)


@pytest.mark.parametrize(
    "bad",
    [{"epochs": None}, {"epochs": 0}, {"rounds": 0}, {"epochs": math.nan}, {"lr": 0.0}, {"lr": math.nan},
     {"lr": math.inf}, {"weighting": "size"}, {"local_steps": 0}, {"local_steps": 1.5}, {"epochs": math.inf},
     {"rounds": 2.5}, {"rounds": "2"}, {"cohort": 5.0}, {"cohort": 0}, {"local_batch": -3},
     {"evaluate_every": -2}, {"schedule": [(0.0, -1.0)]}, {"schedule": [(0.0, math.nan)]},
     {"schedule": [(0.0, math.inf)]}, {"schedule": [(math.nan, 1.0)]}, {"schedule": []}],
    ids=str,
)  # fmt: skip
def test_impossible_plans_are_refused(bad):
    (name,) = bad
    with pytest.raises(ValueError, match=rf"{name}\b"):
        replace(PLAN, **bad)


WHOLE = {name for name in METHODS if build(name).whole_model}


@every_method
def test_a_model_that_no_message_can_hold_is_refused_first_or_never_sent(task, name, monkeypatch):
    """A block as large as the model would be needed: for every download, or for some that others replace."""
    D = task.layout.size
    plan = replace(PLAN, epochs=None, rounds=40, lr=0.01)
    options = {"dim": 25, "refresh": 1, "subspaces": 2, "directions": 9, "k": 1}
    simulation = Simulation(task, build(name, **options), plan)
    assert len(list(simulation)) == 40
    honest = simulation.theta.clone()
    dense = simulation.method.download(simulation.server, None).kind == DENSE
    assert dense or name not in {"time-varying", "k-subspace-time-varying", "signsgd", "powersgd"}
    monkeypatch.setattr(wire, "MAX_DATA", 4 * D - 1)
    if name in WHOLE:
        with pytest.raises(ConfigError, match=f"--method {name}: it sends the whole model, and {D} param"):
            Simulation(task, build(name, **options), plan)
        return
    simulation = Simulation(task, build(name, **options), plan)
    assert all(record.clients for record in simulation)
    assert simulation.method.download(simulation.server, None).kind != DENSE
    assert torch.equal(simulation.theta, honest)


def test_all_changes_are_sent_where_no_message_can_hold_the_model(monkeypatch):
    D, changed = 400, 395
    method, layout = build("topk", k=D), Layout(("w",), ((D,),))
    server = method.server(torch.zeros(D), layout)
    weights, moved = torch.zeros(D), torch.zeros(D, dtype=torch.int32)
    weights[:changed], moved[:changed] = 1.0, 1
    server = replace(server, version=1, weights=weights, moved=moved)
    assert method.download(server, None).kind == DENSE
    monkeypatch.setattr(wire, "MAX_DATA", 4 * D - 1)
    down = method.download(server, None)
    assert down.kind != DENSE
    assert torch.equal(method.reconcile(method.newcomer(torch.zeros(D), layout), down, 1)[1], weights)


def test_sigmas_that_no_message_can_hold_are_refused(monkeypatch):
    theta0, layout = torch.zeros(500), Layout(("w",), ((500,),))
    monkeypatch.setattr(wire, "MAX_DATA", 400)
    build("k-subspace", dim=25, subspaces=4).server(theta0, layout)
    for dim, subspaces, least in ((26, 4, 416), (400, 4, 2000)):
        with pytest.raises(ValueError, match=f"take {least} bytes down, and a block has at most 400: choose"):
            build("k-subspace", dim=dim, subspaces=subspaces).server(theta0, layout)


def test_numbers_of_numpy_plan_what_those_of_python_do():
    given = {"cohort": 4, "rounds": 7, "local_steps": 2, "local_batch": 3, "evaluate_every": 5}
    plan = replace(PLAN, **{name: np.int32(value) for name, value in given.items()})
    assert plan == replace(PLAN, **given)
    assert plan.length(100) == 7
    assert type(plan.length(100)) is int


@pytest.mark.parametrize(
    ("length", "rounds"),
    [
        ({"epochs": 1}, 25), ({"epochs": 0.01}, 1), ({"epochs": 0.9}, 23), ({"epochs": 0.28}, 7),
        ({"epochs": 1.12}, 28), ({"rounds": 7}, 7), ({"epochs": 1, "rounds": 7}, 7),
        ({"epochs": 1, "rounds": 70}, 25), ({"epochs": math.inf, "rounds": 3}, 3),
    ],
    ids=str,
)  # fmt: skip
def test_epochs_and_rounds_say_how_long_it_takes(length, rounds):
    task, _ = toy("logistic", 25)
    records = list(Simulation(task, build("static"), Plan(cohort=1, lr=0.1, **length)))
    assert [record.round for record in records] == list(range(rounds))


# What is counted.


@every_method
@pytest.mark.parametrize("sampling", ["epoch", "uniform"])
def test_all_who_come_are_sent_a_message_and_all_who_answer_send_one(task, name, sampling):
    """Counted afresh, message by message; drop-outs download and do not upload."""
    plan = replace(PLAN, epochs=8, sampling=sampling, participation=0.8, dropout=0.4)
    simulation = Simulation(task, build(name, refresh=1, dim=60), plan)
    have, ups, missing, dense = {}, set(), 0, 0
    while simulation.round < simulation.rounds:
        m, server, t = simulation.method, simulation.server, simulation.round
        round = Round(plan.run, plan.key, t, server.version, wire.digest(simulation.theta))
        down, first, fallback = 0, 0, 0
        came = simulation.cohorts.come(t)
        for c in came.tolist():
            payload = m.download(server, have.get(c))
            size = len(exchange.seal(round, payload))
            down += size
            first += size * (c not in have)
            fallback += size * (payload.kind == DENSE and not m.whole_model)
            have[c] = server.version
        record = simulation.step()
        assert (record.down, record.down_first, record.down_dense) == (down, first, fallback)
        dropped = record.dropped.get("no answer", 0)
        assert record.clients + dropped == len(came)
        ups.add(record.up / record.clients if record.clients else 0)
        missing += dropped
        dense += fallback
        assert (record.loss is None) == (record.clients == 0)
    assert missing > 0
    if isinstance(simulation.method, Intrinsic) and simulation.method.linear:
        assert len(ups - {0}) == 1  # all uploads are of one size
        assert (dense > 0) == ("time-varying" in name)


@pytest.mark.parametrize(("every", "expected"), [(0, {8}), (1, set(range(9))), (4, {3, 7, 8}), (99, {8})])
def test_evaluation_comes_every_so_many_rounds_and_at_the_end(task, every, expected):
    records, theta = run(task, build("static"), replace(PLAN, evaluate_every=every))
    assert {record.round for record in records if record.metrics} == expected
    assert records[-1].metrics == task.evaluate(theta)


def test_evaluating_does_not_disturb_the_training(task):
    rare, often = (run(task, build("time-varying"), replace(PLAN, evaluate_every=n)) for n in (0, 1))
    assert bits(rare[1]) == bits(often[1])
    assert [record.loss for record in rare[0]] == [record.loss for record in often[0]]


def test_the_rate_follows_the_schedule_at_the_middle_of_each_round(task):
    records, _ = run(task, build("static"), replace(PLAN, schedule=[(0.0, 0.0), (1.0, 1.0), (3.0, 0.0)]))
    assert [record.rate for record in records] == pytest.approx(
        [0.5 * x / 12 for x in (2, 6, 10, 11, 9, 7, 5, 3, 1)]
    )


# What goes wrong.


@every_method
@pytest.mark.parametrize("loss", [math.nan, math.inf])
def test_a_loss_that_is_no_number_is_diverged(name, loss, monkeypatch):
    task, _ = toy("logistic", N)
    simulation = Simulation(task, build(name), PLAN)
    simulation.step()
    by_gradients(task, monkeypatch)
    monkeypatch.setattr(task, "gradient", lambda theta, batch: (loss, torch.zeros_like(theta)))
    monkeypatch.setattr(task, "loss", lambda theta, batch: loss)
    with pytest.raises(Diverged, match=rf"the loss is {loss} in round 2: lower --lr \(it was 0.5\)"):
        simulation.step()


@every_method
def test_a_rate_that_is_far_too_high_is_diverged(name):
    with pytest.raises(Diverged):
        run(toy("logistic", N)[0], build(name), replace(PLAN, lr=3e38))


@by_gradient
def test_a_gradient_that_is_no_number_under_a_loss_that_is_one_is_diverged(name, monkeypatch):
    task, _ = toy("logistic", N)
    simulation = Simulation(task, build(name), PLAN)
    by_gradients(task, monkeypatch)
    monkeypatch.setattr(task, "gradient", lambda theta, batch: (1.0, torch.full_like(theta, math.nan)))
    with pytest.raises(Diverged):
        simulation.step()


@by_gradient
def test_alone_such_a_client_is_refused_and_counted_and_the_round_goes_on(name, monkeypatch):
    """It sends nothing; the others' mean is the step."""
    task, _ = toy("logistic", N)
    gradient, calls = task.gradient, iter(range(99))

    def second_is_nan(theta, batch):
        loss, v = gradient(theta, batch)
        return loss, v * math.nan if next(calls) == 1 else v

    by_gradients(task, monkeypatch)
    monkeypatch.setattr(task, "gradient", second_is_nan)
    simulation = Simulation(task, build(name), replace(PLAN, local_steps=1, per_client=True))
    first, second = simulation.step(), simulation.step()
    assert (first.clients, first.dropped) == (4, {"refused": 1})
    assert (second.clients, second.dropped) == (5, {})
    if isinstance(simulation.method, Intrinsic) and simulation.method.linear:  # others' vary in size
        assert first.up * 5 == second.up * 4
    assert simulation.theta.isfinite().all()


def test_one_of_many_that_is_no_number_is_refused_alone(monkeypatch):
    """Where the updates of several are made, checked and sent together."""
    x, y = torch.randn(40, 8, generator=torch.Generator().manual_seed(1)), torch.arange(40) % 4
    task = TorchTask(torch.nn.Linear(8, 4), train=(x, y), test=(x, y), clients=iid(40, 8))
    rows = task.gradient_rows

    def third_is_nan(theta, batches):
        for losses, vs in rows(theta, batches):
            assert len(vs) == 6
            vs[2, 5] = math.nan
            yield losses, vs

    monkeypatch.setattr(task, "gradient_rows", third_is_nan)
    narrow = {"key": 1, "dim": 16, "up_bits": 2.0, "down_bits": 4.0}
    record = Simulation(task, nc_method("static", **narrow), Plan(cohort=6, lr=0.5, rounds=3, key=2)).step()
    assert (record.clients, record.dropped) == (5, {"refused": 1})


@every_method
def test_theta_at_a_client_has_the_servers_digest_in_every_round(task, name, monkeypatch):
    seen, receive = [], exchange.receive_down

    def spy(*args):
        model, theta, round = receive(*args)
        seen.append((wire.digest(theta, model.side), round.digest))
        return model, theta, round

    monkeypatch.setattr(exchange, "receive_down", spy)
    simulation = Simulation(task, build(name), PLAN)
    for t in range(9):
        now = exchange.digest_of(simulation.method, simulation.server, simulation.theta)
        simulation.step()
        assert seen[t] == (now, now)
    assert len({now for now, _ in seen}) == 9 or name == "narrow"  # whose theta moves a step at a time


def flipped(data, bit):
    changed = bytearray(data)
    changed[bit // 8] ^= 1 << bit % 8
    return bytes(changed)


@every_method
def test_a_round_whose_download_was_tampered_with_is_a_wire_error(task, name, monkeypatch):
    simulation = Simulation(task, build(name), PLAN)
    simulation.step()
    send = exchange.send_down
    monkeypatch.setattr(
        exchange, "send_down", lambda *args: flipped(send(*args), -2)
    )  # sign of the last number
    with pytest.raises(WireError):
        simulation.step()


@pytest.mark.parametrize("name", ["k-subspace-time-varying", "uncompressed"])
@pytest.mark.parametrize("downlink", ["f32", "f16"])
def test_no_flipped_bit_gives_a_client_another_theta(name, downlink):
    """Every bit of a download: it is refused, or what came of it is the server's theta all the same."""
    task, _ = toy("logistic", N)
    simulation = Simulation(task, build(name, dim=3, downlink=downlink), replace(PLAN, epochs=4))
    for _ in range(5):
        simulation.step()
    m, server, theta0 = simulation.method, simulation.server, task.theta0()
    round = Round(PLAN.run, PLAN.key, 5, server.version, wire.digest(simulation.theta))
    data = exchange.send_down(m, server, round, None)
    refused = 0
    for bit in range(8 * len(data)):
        try:
            _, theta, _ = exchange.receive_down(m, m.newcomer(theta0), flipped(data, bit), PLAN.run, PLAN.key)
            assert bits(theta) == bits(simulation.theta)
        except WireError:
            refused += 1
    assert refused > 0.6 * 8 * len(data)  # the rest is below the last bit of theta


# Ten thousand clients.


def wide(clients):
    """D = 20 005, one example a client: a copy each would be 800 MB for 10 000 clients."""
    x = torch.randn(max(clients, 500), 4, generator=torch.Generator().manual_seed(0))
    y = torch.arange(len(x)) % 5
    module = nn.Sequential(nn.Linear(4, 2000), nn.Tanh(), nn.Linear(2000, 5))
    return TorchTask(module, train=(x, y), test=(x, y), clients=iid(len(x), clients), chunk=500)


def vectors(D):
    """How many tensors of D numbers there are."""
    gc.collect()
    return sum(issubclass(type(o), torch.Tensor) and o.numel() == D for o in gc.get_objects())


@pytest.mark.parametrize("name", ["static", "k-subspace-time-varying", "uncompressed"])
def test_ten_thousand_clients_share_one_model(name):
    alive, peak = [], []
    for clients in (10, 10, 10_000):  # the first run warms up
        task = wide(clients)
        simulation = Simulation(
            task, build(name, dim=256), Plan(cohort=clients, lr=0.1, epochs=2, local_steps=1)
        )
        record = [simulation.step() for _ in range(2)][-1]
        assert record.clients == clients
        alive.append(vectors(task.layout.size))
        peak.append(record.peak_memory)
        del task, simulation
    assert alive[1] == alive[2]
    assert peak[2] - peak[1] < 100e6
