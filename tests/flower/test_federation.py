"""The Flower driver against the simulator, and against nodes that fail, lie, leave and come back."""

import contextlib
import itertools

import msgspec
import pytest
import torch

pytest.importorskip("flwr", reason="needs the extra narrowcast[flower]")
from flwr.app import ConfigRecord, Message, MessageType, RecordDict

from fake_grid import FakeGrid
from federations import ROUNDS, edited, federation, impatient, settings, simulation, whole  # noqa: F401
from fitting import made
from narrowcast.errors import ConfigError, Diverged
from narrowcast.flower import FleetSettings, client_app, fleet
from narrowcast.flower import messages as flower_messages
from narrowcast.flower.federation import Federation
from narrowcast.flower.messages import Answer, Have, Order, Upload, pack, unpack
from narrowcast.flower.settings import run_settings
from narrowcast.methods import METHODS
from narrowcast.tasks import build
from narrowcast.wire import messages as wire

pytestmark = pytest.mark.usefixtures("impatient")


@pytest.mark.parametrize("method", METHODS)
def test_a_fleet_trains_what_the_simulator_trains_with_the_same_bytes(method: str) -> None:
    config = settings(method, lr=2.0 if made(method).linear else 0.05)
    here, (there, _) = simulation(config), whole(config)
    start = here.theta.clone()
    for mine, theirs in zip(here, there, strict=True):
        assert (mine.up, mine.down, mine.down_first, mine.down_dense) == (
            theirs.up,
            theirs.down,
            theirs.down_first,
            theirs.down_dense,
        )
        assert mine.clients == theirs.clients
        assert mine.loss == pytest.approx(theirs.loss, rel=1e-4)
    way = (here.theta - start).norm()
    assert way > 0
    assert (here.theta - there.theta).norm() < 1e-4 * way


def test_many_clients_on_one_node_share_its_download() -> None:
    config = settings("k-subspace")
    (few, grid), (many, _) = whole(config, nodes=3), whole(config)
    a, b = list(few), list(many)
    assert [r.up for r in a] == [r.up for r in b]
    assert sum(r.down for r in a) < sum(r.down for r in b)
    assert torch.equal(few.theta, many.theta)
    trains = [m for m in grid.sent if m.metadata.message_type == MessageType.TRAIN]
    assert len(trains) <= 3 * ROUNDS


def test_a_restarted_node_is_sent_what_it_lacks_in_the_same_round() -> None:
    config = settings()
    undisturbed, _ = whole(config)
    run, grid = whole(config)
    expected = list(undisturbed)
    for record, quiet in zip(run, expected, strict=True):
        assert not record.dropped
        assert record.clients == quiet.clients
        for part in range(0, 12, 2):
            grid.restart(part)
    assert torch.equal(run.theta, undisturbed.theta)


def test_a_node_with_a_folder_outlives_its_process(tmp_path) -> None:
    config = settings("topk", cohort=12)
    undisturbed, _ = whole(config)
    list(undisturbed)
    grid = FakeGrid(client_app(config=config), 12, {"narrowcast-folder": str(tmp_path)})
    run = federation(config, grid)
    for record in run:
        assert record.lost == 0
        for part in range(12):
            grid.restart(part)
    assert torch.equal(run.theta, undisturbed.theta)


def test_lost_private_state_is_begun_anew_and_counted() -> None:
    run, grid = whole(settings("topk", cohort=12))
    run.step()
    for part in (3, 4):
        grid.restart(part)
    assert run.step().lost == 2
    assert run.step().lost == 0


def test_a_damaged_file_is_a_lost_one(tmp_path) -> None:
    config = settings("topk", cohort=12)
    grid = FakeGrid(client_app(config=config), 12, {"narrowcast-folder": str(tmp_path)})
    run = federation(config, grid)
    run.step()
    for path in tmp_path.rglob("client-5-*"):
        data = bytearray(path.read_bytes())
        data[len(data) // 2] ^= 1
        path.write_bytes(data)
    for path in tmp_path.rglob("from-6/model"):
        path.write_bytes(path.read_bytes()[:-1])
    record = run.step()
    assert (record.lost, record.clients) == (1, 12)


def test_an_update_that_was_not_counted_is_not_taken_for_sent() -> None:
    """Error feedback goes on from the last upload that the server counted."""
    config = settings("topk", cohort=12, rounds=4)
    run, grid = whole(config)
    run.step()
    kept = {n: dict(c.state["narrowcast.client-0-0"]) for n, c in grid.contexts.items() if n == 100}
    grid.lie = lambda node, records: records if node != 100 else pack(_empty(records))
    assert run.step().dropped == {"no answer": 1}
    grid.lie = lambda node, records: records
    run.step()
    assert dict(grid.contexts[100].state["narrowcast.client-0-0"]) == kept[100]
    assert run.counted[0] == 2


def _empty(records: RecordDict) -> Answer:
    return Answer(unpack(records, Answer).have)


def test_whoever_fails_is_dropped_and_the_round_goes_on() -> None:
    config = settings("time-varying", cohort=12)
    run, grid = whole(config)
    run.step()
    grid.fault = lambda node, message: {101: None, 102: "out of memory"}.get(node, message)
    record = run.step()
    assert record.dropped == {"no answer": 1, "failed": 1}
    assert record.clients == 10
    grid.fault = lambda node, message: message
    while run.round < ROUNDS:
        record = run.step()
    assert (record.clients, record.dropped) == (12, {})  # both are back
    _assert_equal_models(run, grid)


def _assert_equal_models(run: Federation, grid: FakeGrid) -> None:
    """Every node that took part in the last round has the theta that the server had before its last step."""
    sent = [m for m in grid.sent if m.metadata.message_type == MessageType.TRAIN][-12:]
    versions = {wire.decode(unpack(m.content, Order).down).version for m in sent}
    assert len(versions) == 1


def test_a_newcomer_in_the_middle_has_the_servers_theta() -> None:
    run, grid = whole(settings("time-varying", cohort=12))
    grid.listed -= {105}
    records = [run.step() for _ in range(5)]
    assert all(r.dropped == {"absent": 1} for r in records)
    grid.listed |= {105}
    run.step()  # in which it is asked who it is
    record = run.step()
    assert (record.clients, record.dropped) == (12, {})
    assert record.down_first > 0


def test_a_node_that_comes_back_under_another_id_takes_its_clients_over() -> None:
    run, grid = whole(settings(cohort=12))
    run.step()
    grid.listed -= {100}
    grid.listed |= {555}
    grid.contexts[555] = grid._context(0)
    assert run.step().dropped == {"absent": 1}  # in which it is asked who it is
    record = run.step()
    assert (record.clients, record.dropped) == (12, {})


def test_a_slow_node_is_asked_once_in_the_time_that_a_round_has(monkeypatch: pytest.MonkeyPatch) -> None:
    """A second query beside the first would be answered with what the node had before."""
    clock = [0.0]
    monkeypatch.setattr(fleet.time, "monotonic", lambda: clock[0])
    config = settings(cohort=12)
    grid = FakeGrid(client_app(config=config), 12)
    grid.fault = lambda node, message: None if node == 103 else message
    looking = federation(config, grid, FleetSettings(timeout=600.0)).fleet
    asks = []
    for clock[0] in (0.0, 130.0, 599.0, 601.0):
        looking.look()
        asks.append(sum(message.metadata.dst_node_id == 103 for message in grid.sent))
    assert asks == [1, 1, 1, 2]


def _other_run(answer: Answer) -> Answer:
    return edited(answer, run=b"anot")


def _old_round(answer: Answer) -> Answer:
    return edited(answer, round=0, version=0)


def _nan(answer: Answer) -> Answer:
    message = wire.decode(answer.uploads[0].data)
    block = message.payload.blocks[0]
    poisoned = wire.Block(block.format, b"\x00\x00\xc0\x7f" * (len(block.data) // 4))
    payload = wire.Payload(message.payload.kind, message.payload.stage, [poisoned])
    return edited(answer, sealed_for=RUNNING[-1], payload=payload)


RUNNING: list[Federation] = []  # the run that is lied to, last
LIES = {
    "another run's": _other_run,
    "an old round's": _old_round,
    "NaN": _nan,
    "garbage": lambda a: Answer(a.have, [Upload(a.uploads[0].client, b"\xff" * 99, 0.0)]),
    "a NaN loss": lambda a: Answer(a.have, [Upload(a.uploads[0].client, a.uploads[0].data, float("nan"))]),
    "twice": lambda a: Answer(a.have, [a.uploads[0], a.uploads[0]]),
    "another client's": lambda a: Answer(a.have, [Upload(7, a.uploads[0].data, 0.0)]),
}


@pytest.mark.parametrize("lie", LIES)
def test_a_lie_is_refused_and_changes_nothing(lie: str) -> None:
    config = settings("k-subspace-time-varying", cohort=12, clients=12)
    honest, quiet = whole(config)
    run, grid = whole(config)
    RUNNING.append(run)
    quiet.lie = lambda node, records: pack(_empty(records)) if node == 103 and honest.round == 3 else records
    grid.lie = lambda node, records: (
        pack(LIES[lie](unpack(records, Answer))) if node == 103 and run.round == 3 else records
    )
    for record, _ in zip(run, honest, strict=True):
        if record.round == 3:
            assert sum(record.dropped.values()) == 1, record.dropped
            assert torch.equal(run.theta, honest.theta)


@pytest.mark.parametrize(
    "records",
    [
        RecordDict(),
        RecordDict({"narrowcast": ConfigRecord({"data": "text"})}),
        RecordDict({"narrowcast": ConfigRecord({"other": b"x"})}),
        RecordDict({"narrowcast": ConfigRecord({"data": b"\xc1"})}),
    ],
)
def test_an_answer_that_is_none_is_a_failure_of_its_node_alone(records: RecordDict) -> None:
    run, grid = whole(settings(cohort=12))
    grid.lie = lambda node, honest: records if node == 104 else honest
    record = run.step()
    assert (record.clients, record.dropped) == (11, {"failed": 1})


def test_too_few_updates_leave_the_model_as_it_was() -> None:
    config = settings(cohort=12)
    grid = FakeGrid(client_app(config=config), 12)
    run = federation(config, grid, FleetSettings(min_answers=3, wait=600.0))
    grid.fault = lambda node, m: m if node < 102 or m.metadata.message_type == MessageType.QUERY else None
    before = run.theta.clone()
    record = run.step()
    assert (record.clients, record.dropped) == (2, {"no answer": 10})
    assert torch.equal(run.theta, before)
    assert run.server.version == 0


def test_a_fleet_that_never_comes_ends_the_run_with_a_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    config = settings()
    grid = FakeGrid(client_app(config=config), 2)
    grid.listed = {100}
    run = federation(config, grid, FleetSettings(min_clients=12, wait=100.0))
    seconds = itertools.count()  # as often as somebody looks at the clock
    monkeypatch.setattr(fleet.time, "monotonic", lambda: float(next(seconds)))
    with pytest.raises(RuntimeError, match="6 clients are present, 12 are needed"):
        run.step()


@pytest.mark.parametrize("method", ["time-varying", "ef21", "powersgd", "dgc"])
def test_a_killed_server_goes_on_to_the_same_model(method: str, tmp_path) -> None:
    config = settings(method, cohort=12, lr=0.05)
    undisturbed, _ = whole(config)
    list(undisturbed)
    grid = FakeGrid(client_app(config=config), 12, {"narrowcast-folder": str(tmp_path)})
    first = federation(config, grid)
    for _ in range(3):
        first.step()
    state = first.state()
    first.settle(state)  # the checkpoint is on the disk
    first.step()
    first.step()  # two rounds that the checkpoint does not know of, and the nodes do
    again = federation(config, grid)
    again.restore(state)
    for part in range(12):
        grid.restart(part)
    for record in again:
        assert record.lost == 0
        assert record.clients == 12
    assert torch.equal(again.theta, undisturbed.theta)


def test_a_node_with_another_theta0_is_sent_the_servers() -> None:
    config = settings("static", cohort=12)
    strange = client_app(lambda context: build("digits", settings(seed=9).task_options()), config=config)
    grid = FakeGrid(strange, 1)
    run = federation(config, grid)
    first, second = run.step(), run.step()
    assert first.clients == second.clients == 12
    dense = 4 * run.task.layout.size
    assert first.down > dense
    assert second.down < dense / 2  # it was kept


def test_long_content_is_cut_into_records(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(flower_messages, "CHUNK", 100)
    answer = Answer(Have(b"12345678", 3), [Upload(1, bytes(range(256)) * 4, 0.5)])
    records = pack(answer)
    assert len(records) > 10
    assert unpack(records, Answer) == answer


def test_uniform_sampling_draws_from_whoever_is_present() -> None:
    run, grid = whole(settings(sampling="uniform", cohort=4))
    grid.listed = {100, 103, 107}
    record = run.step()
    assert (record.clients, record.dropped) == (3, {})


def test_an_order_for_a_stranger_is_refused_by_the_node() -> None:
    run, grid = whole(settings(cohort=12))
    run.step()
    order = unpack(next(m for m in grid.sent if m.metadata.message_type == MessageType.TRAIN).content, Order)
    message = Message(pack(order), 105, MessageType.TRAIN)
    message.metadata.__dict__["_message_id"] = "x"
    with pytest.raises(wire.WireError, match="not here"):
        grid.app(message, grid.contexts[105])
    for field in ("counted", "kept"):
        message = Message(pack(msgspec.structs.replace(order, **{field: []})), 100, MessageType.TRAIN)
        message.metadata.__dict__["_message_id"] = "x"
        with pytest.raises(wire.WireError, match="of others what was counted"):
            grid.app(message, grid.contexts[order.clients[0] + 100])


def test_uniform_sampling_draws_from_whoever_is_present_and_obeys_participation() -> None:
    config = settings(sampling="uniform", participation=0.5, rounds=40)
    run, grid = whole(config)
    grid.listed -= {100, 101, 102}
    asked = [[c for order in orders_of(run, grid) for c in order.clients] for _ in range(40)]
    assert {client for clients in asked for client in clients} == set(range(3, 12))
    assert all(len(set(clients)) == len(clients) <= 5 for clients in asked)
    assert 1.5 < sum(map(len, asked)) / 40 < 3.5  # half of five


def orders_of(run: Federation, grid: FakeGrid) -> list[Order]:
    """A round, and the orders that went out in it."""
    before = len(grid.sent)
    run.step()
    sent = grid.sent[before:]
    return [unpack(m.content, Order) for m in sent if m.metadata.message_type == MessageType.TRAIN]


def test_who_is_present_is_the_only_difference_to_the_simulators_sampling() -> None:
    config = settings(sampling="uniform", rounds=6)
    here, (there, grid) = simulation(config), whole(config)
    for number in range(6):
        came = sorted(here.cohorts.come(number).tolist())
        assert sorted(c for order in orders_of(there, grid) for c in order.clients) == came


def test_simulated_liars_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"--attackers 0.2 is of the in-process simulator"):
        whole(settings(attackers=0.2))


@pytest.mark.parametrize("method", ["time-varying", "k-subspace", "fedavg"])
def test_a_fleet_with_a_rule_against_liars_trains_what_the_simulator_trains(method: str) -> None:
    config = settings(method, lr=0.05 if method == "fedavg" else 2.0, cohort=11, aggregate="trimmed-mean")
    here, (there, _) = simulation(config), whole(config, nodes=4)
    start = here.theta.clone()
    for mine, theirs in zip(here, there, strict=True):
        assert (mine.up, mine.clients) == (theirs.up, theirs.clients)
    assert (here.theta - start).norm() > 0
    assert (here.theta - there.theta).norm() < 1e-4 * (here.theta - start).norm()


def test_a_liar_on_a_node_is_outvoted(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its upload is in order, within the bound on norms, and turned round."""
    config = settings(cohort=12, lr=2.0, rounds=4)
    honest, _ = whole(config)
    list(honest)
    ways = {}
    for rule in ("mean", "median"):
        run, _ = whole(config.but(aggregate=rule), norm_bound=0.0)
        truly = run.method.terms

        def lie(acc, up, truly=truly):
            where, numbers = truly(acc, up)
            return where, numbers * (-100.0 if up.key == lie.key else 1.0)

        for _ in range(4):
            lie.key = run.now().client_key(3)
            with monkeypatch.context() as patch:
                patch.setattr(type(run.method), "terms", lambda self, acc, up: lie(acc, up))
                with contextlib.suppress(Diverged):  # as the mean's run ends
                    run.step()
        ways[rule] = float((run.theta - honest.theta).norm())
    assert ways["median"] < 0.2 * ways["mean"]


def test_dropout_is_refused_because_nodes_drop_out_by_themselves() -> None:
    with pytest.raises(ConfigError, match=r"--dropout 0.2 is of the in-process simulator"):
        whole(settings(dropout=0.2))


def test_a_setting_that_the_apps_method_does_not_use_is_refused() -> None:
    app = {"narrowcast.task": "digits", "narrowcast.method": "static", "narrowcast.rounds": 1}
    assert run_settings(app).method == "static"
    with pytest.raises(ConfigError, match="--k: the method static does not use it"):
        run_settings({**app, "narrowcast.k": 7})
