"""One node against the run: whatever it says, the others train on as if it had said nothing."""

import logging
import time
import tracemalloc
from functools import partial

import msgspec
import pytest
import torch

pytest.importorskip("flwr", reason="needs the extra narrowcast[flower]")
from flwr.app import ConfigRecord, RecordDict

from fake_grid import FakeGrid
from federations import PATIENT, ROUNDS, edited, federation, impatient, settings, whole  # noqa: F401
from narrowcast.errors import ConfigError, Diverged
from narrowcast.flower import FleetSettings, client_app
from narrowcast.flower.federation import Federation
from narrowcast.flower.messages import Answer, Have, Here, Upload, pack, unpack
from narrowcast.methods import METHODS
from narrowcast.rounds.norms import KEPT, NormBound
from narrowcast.rounds.rates import _Trials
from narrowcast.wire import messages as wire

pytestmark = pytest.mark.usefixtures("impatient")
HAVE = Have(b"12345678")
BAD_TEXT = msgspec.msgpack.encode(Answer(HAVE, lacks="abc")).replace(b"abc", b"\xff\xfe\xfd")


def raw(data: bytes) -> RecordDict:
    return RecordDict({"narrowcast": ConfigRecord({"data": data})})


def test_bad_utf8_is_a_failure_of_its_node_alone() -> None:
    run, grid = whole(settings(cohort=12))
    grid.lie = lambda node, honest: raw(BAD_TEXT) if node == 104 else honest
    record = run.step()
    assert (record.clients, record.dropped) == (11, {"failed": 1})


def test_whatever_checking_an_answer_raises_stays_with_its_node(monkeypatch: pytest.MonkeyPatch) -> None:
    run, _ = whole(settings(cohort=12))
    real = run.method.norm.__func__

    def norm(self, acc, up, seen=[]):  # noqa: B006
        seen.append(up)
        if len(seen) == 3:
            raise ZeroDivisionError("a hole that nobody has found yet")
        return real(self, acc, up)

    monkeypatch.setattr(type(run.method), "norm", norm)
    record = run.step()
    assert (record.clients, record.dropped) == (11, {"failed": 1})


CLAIMS = {
    "beyond 2^31": lambda here: Here([(1 << 32) - 5], [1], here.have),
    "beyond the federation": lambda here: Here([*here.clients, 12], [1, 1], here.have),
    "all there could be": lambda here: Here(list(range(1 << 20)), [1] * (1 << 20), here.have),
    "too many for one node": lambda here: Here(list(range(12)), [1] * 12, here.have),
    "twice the same": lambda here: Here(here.clients * 2, [1, 1], here.have),
    "none": lambda here: Here([], [], here.have),
    "examples of nobody": lambda here: Here(here.clients, [], here.have),
    "no claim at all": None,
}


@pytest.mark.parametrize("sampling", ["uniform", "epoch"])
@pytest.mark.parametrize("claim", CLAIMS)
def test_a_claim_that_cannot_be_right_leaves_its_node_out(claim: str, sampling: str) -> None:
    run, grid = whole(settings(cohort=12, sampling=sampling), node_clients=2)
    lie = CLAIMS[claim]
    grid.claim = lambda node, honest: (
        honest if node != 105 else raw(BAD_TEXT) if lie is None else pack(lie(unpack(honest, Here)))
    )
    run.fleet.wait(11, 600)
    record = run.step()
    assert record.clients == 11
    assert 105 not in run.fleet.members
    assert set(run.fleet.host) == set(range(12)) - {5}


def test_who_is_left_out_is_not_asked_again_at_once() -> None:
    run, grid = whole(settings(cohort=12))
    grid.claim = lambda node, honest: raw(b"") if node == 105 else honest
    for _ in range(4):
        run.step()
    assert sum(m.metadata.dst_node_id == 105 for m in grid.sent) == 1


def test_a_claim_to_anothers_client_waits_until_that_node_has_left(caplog: pytest.LogCaptureFixture) -> None:
    run, grid = whole(settings(cohort=12))
    run.step()
    grid.listed |= {555}
    grid.contexts[555] = grid._context(0)
    for _ in range(3):
        assert run.step().clients == 12
    assert run.fleet.host[0] == 100
    assert sum(m.metadata.dst_node_id == 555 for m in grid.sent) == 1
    assert sum("claims client 0" in r.getMessage() for r in caplog.records) == 1
    grid.listed -= {100}
    assert run.step().clients == 12
    assert run.fleet.host[0] == 555


@pytest.mark.parametrize("weighting", ["clients", "examples"])
@pytest.mark.parametrize("claimed", [2, 10_000, wire.MAX_WEIGHT])
def test_an_update_weighs_what_the_server_knows(weighting: str, claimed: int) -> None:
    run, grid = whole(settings("static", cohort=12, weighting=weighting))
    grid.lie = lambda node, records: (
        pack(edited(unpack(records, Answer), weight=claimed)) if node == 100 else records
    )
    round, record = run.open()
    acc = run.collect(round, record)
    assert record.dropped == {"refused": 1}
    assert acc.weight == (11 if weighting == "clients" else sum(map(len, run.task.clients[1:])))


def test_a_registered_weight_has_a_bound() -> None:
    run, grid = whole(settings("static", cohort=12, weighting="examples"), max_weight=300)
    grid.claim = lambda node, records: (
        pack(Here([0], [10**9], unpack(records, Here).have)) if node == 100 else records
    )
    grid.lie = lambda node, records: (
        pack(edited(unpack(records, Answer), run, weight=wire.MAX_WEIGHT)) if node == 100 else records
    )
    round, record = run.open()
    acc = run.collect(round, record)
    assert not record.dropped
    assert acc.weight == 300 + sum(map(len, run.task.clients[1:]))


def test_a_roster_binds_clients_to_nodes_over_restarts(tmp_path) -> None:
    config, path = settings(cohort=12), tmp_path / "fleet/roster.json"
    how = FleetSettings(wait=600.0, roster=str(path))
    grid = FakeGrid(client_app(config=config), 12)
    run = federation(config, grid, how)
    assert run.step().clients == 12
    again = federation(config, grid, how)  # a server that was started anew
    grid.listed = {555, *range(101, 112)}
    grid.contexts[555] = grid._context(0)
    again.fleet.wait(11, 600)
    assert again.step().clients == 11
    assert 0 not in again.fleet.host
    grid.listed |= {100}
    again.fleet.wait(12, 600)
    assert again.step().clients == 12
    assert again.fleet.host[0] == 100
    path.write_text("[1, 2]")
    with pytest.raises(ConfigError, match="is no roster"):
        federation(config, grid, how)


def _padded(answer: Answer, size: int) -> Answer:
    upload = answer.uploads[0]
    return Answer(answer.have, [Upload(upload.client, upload.data + bytes(size), upload.loss)])


def test_an_answer_longer_than_the_method_can_need_is_not_even_put_together() -> None:
    run, grid = whole(settings("static", cohort=12))
    run.step()
    grid.lie = lambda node, records: (
        pack(_padded(unpack(records, Answer), 64 << 20)) if node == 103 else records
    )
    round, record = run.open()
    orders = run.orders(round, record)
    replies = [(reply.metadata.src_node_id, reply) for reply in grid.send_and_receive(orders)]
    tracemalloc.start()
    run.gather(round, record, replies, time.monotonic() + 60)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert record.dropped == {"failed": 1}
    assert peak < 8 << 20


@pytest.mark.parametrize("method", METHODS)
def test_no_upload_comes_near_the_bound_of_its_method(method: str) -> None:
    run, grid = whole(settings(method, lr=0.01))
    sizes = []
    grid.lie = lambda node, records: (
        sizes.extend(len(u.data) for u in unpack(records, Answer).uploads) or records
    )
    for _ in range(3):
        run.step()
    bound = run.method.upload_bound(run.task.layout.size)
    assert 0 < max(sizes) <= bound
    assert bound <= 1024 + 8 * max(run.task.layout.size, 1024)


def test_many_uploads_of_one_client_cost_neither_time_nor_lines(caplog: pytest.LogCaptureFixture) -> None:
    run, grid = whole(settings("static", cohort=12))
    run.step()
    grid.lie = lambda node, records: (
        pack(Answer(unpack(records, Answer).have, [Upload(3, b"", 0.0)] * 150)) if node == 103 else records
    )
    caplog.clear()
    with caplog.at_level(logging.INFO, "flwr"):
        record = run.step()
    assert record.dropped == {"failed": 1}
    assert sum("client 3" in r.getMessage() for r in caplog.records) == 1


def _times(answer: Answer, factor: float) -> Answer:
    message = wire.decode(answer.uploads[0].data)
    blocks = [wire.block(b.numbers(len(b.data) // 4) * factor) for b in message.payload.blocks]
    return edited(answer, payload=msgspec.structs.replace(message.payload, blocks=blocks))


@pytest.mark.parametrize(("method", "factor"), [("fedkseed", 1e17), ("static", 1e15), ("static", 100.0)])
@pytest.mark.parametrize("first", [0, 2])
def test_one_clients_finite_numbers_have_no_say(method: str, factor: float, first: int) -> None:
    config = settings(method, cohort=12, lr=0.01, evaluate_every=1)
    honest, quiet = whole(config)
    run, grid = whole(config)
    quiet.lie = lambda node, records: (
        pack(Answer(unpack(records, Answer).have)) if node == 103 and honest.round >= first else records
    )
    grid.lie = lambda node, records: (
        pack(_times(unpack(records, Answer), factor)) if node == 103 and run.round >= first else records
    )
    for record, _ in zip(run, honest, strict=True):
        assert record.dropped == ({"refused": 1} if record.round >= first else {})
    assert torch.equal(run.theta, honest.theta)


def test_the_bound_is_kept_in_the_checkpoint_and_can_be_turned_off() -> None:
    config = settings("static", cohort=12)
    run, _ = whole(config)
    run.step()
    again, _ = whole(config)
    again.restore(run.state())
    assert list(again.norms.history) == list(run.norms.history)
    assert len(run.norms.history) == 12
    assert NormBound(0.0).limit([1.0] * 10) == float("inf")


def test_the_median_follows_norms_that_grow_for_good_and_not_a_minority() -> None:
    bound = NormBound(30.0)
    bound.learn([1.0] * KEPT, bound.limit([]))
    assert bound.limit([1000.0] * 10) == 30.0
    for _ in range(KEPT // 10 // 2 + 1):
        bound.learn([1000.0] * 10, bound.limit([1000.0] * 10))
    assert bound.limit([1000.0] * 10) == 900.0
    minority = NormBound(30.0)
    for _ in range(100):
        minority.learn([1.0] * 6 + [1e30] * 4, minority.limit([]))
    assert minority.limit([]) == 30.0
    assert NormBound(30.0).limit([0.0] * 10) == float("inf")


def _explode(run, grid, at) -> None:
    """From round `at` on, every client's numbers are 1e16 times what they were."""
    grid.lie = lambda node, records: (
        pack(_times(answer, 1e16))
        if run.round in at and (answer := unpack(records, Answer)).uploads[0].data
        else records
    )


def test_a_model_that_cannot_be_used_is_taken_back() -> None:
    run, grid = whole(settings("static", cohort=12, evaluate_every=1), norm_bound=0.0)
    _explode(run, grid, {3})
    records = [run.step() for _ in range(3)]
    before, version = run.theta.clone(), run.server.version
    spoilt = run.step()
    assert spoilt.rolled_back or run.step().rolled_back
    assert run.server.version == version
    assert torch.equal(run.theta, before)
    grid.lie = lambda node, honest: honest
    record = run.step()
    assert (record.rolled_back, record.clients, record.dropped) == (False, 12, {})
    assert run.server.version == version + 1
    assert not any(r.rolled_back for r in records)


def test_a_model_that_is_spoilt_again_and_again_ends_the_run_with_a_word() -> None:
    run, grid = whole(settings("static", cohort=12, rounds=40), norm_bound=0.0)
    _explode(run, grid, range(100))
    back = []
    with pytest.raises(Diverged, match=r"taken back 3 times in a row"):
        back.extend(record.rolled_back for record in run)
    assert sum(back) == 3, "the fourth ends the run, as docs/security.md and docs/deploy.md say"
    assert torch.isfinite(run.method.theta(run._proven.server)).all()


def test_clients_whose_losses_are_not_finite_end_the_run_with_advice() -> None:
    run, grid = whole(settings("static", cohort=12, rounds=40))
    grid.lie = lambda node, records: (
        pack(Answer(unpack(records, Answer).have, [Upload(node - 100, b"", float("nan"))]))
        if run.round > 1
        else records
    )
    with pytest.raises(Diverged, match="lower lr"):
        for _ in run:
            pass
    assert run.round == 5


@pytest.mark.parametrize(("said", "when"), [(1e17, ROUNDS - 1), (1e-30, 0), (1e17, 0)])
def test_one_clients_word_on_its_loss_decides_nothing(said: float, when: int) -> None:
    """Where the server has no data, clients' losses are what it goes by: as far as most of them agree."""
    config = settings("static", cohort=12, lr=0.01)
    honest, _ = whole(config)
    run, grid = whole(config)
    for driver in (run, honest):
        driver.task.evaluate = lambda theta: {}  # type: ignore[method-assign]
    grid.lie = lambda node, records: (
        pack(_says(unpack(records, Answer), said)) if node == 103 and run.round == when else records
    )
    *_, last = run  # without Diverged
    *_, expected = honest
    assert torch.equal(run.theta, honest.theta)
    for found, right in ((run.first, honest.first), (run.typical(last), honest.typical(expected))):
        assert found == pytest.approx(right, rel=0.5)


def _says(answer: Answer, loss: float) -> Answer:
    return Answer(answer.have, [Upload(u.client, u.data, loss) for u in answer.uploads])


@pytest.mark.parametrize("said", [1e308, -1e308, float("nan"), float("inf")])
def test_a_loss_that_no_sum_would_survive_is_refused(said: float) -> None:
    run, grid = whole(settings("static", cohort=12, weighting="examples"))
    grid.lie = lambda node, records: (
        pack(_says(unpack(records, Answer), said)) if node in (103, 104) else records
    )
    record = run.step()
    assert (record.clients, record.dropped) == (10, {"refused": 2})
    assert record.loss is not None
    assert 0 < record.loss < 10


def test_one_clients_word_on_its_loss_does_not_choose_the_rate() -> None:
    """`lr = auto` on a fleet is found by trials, which are compared by what clients lost in them."""
    config = settings("static", cohort=12)
    scores = []
    for lies in (False, True):
        run, grid = whole(config)
        if lies:
            grid.lie = lambda node, records: (
                pack(_says(unpack(records, Answer), -1e17)) if node == 103 else records
            )
        begin = partial(Federation, run.task, run.method, grid=grid, settings=PATIENT)
        scores.append(_Trials(run.plan, begin, 20, None).score(0.5, 8))
    assert scores[1] == pytest.approx(scores[0], rel=0.2)
