"""After any number of stages the log takes no more than the model, and downloads are what they were."""

import io
from itertools import islice

import numpy as np
import pytest
import torch

from fitting import made
from narrowcast.methods import METHODS
from narrowcast.methods.base import DENSE, RoundInfo
from narrowcast.methods.logs import Log
from narrowcast.numerics.flat import Layout
from narrowcast.rounds import exchange
from narrowcast.rounds.plan import Plan
from narrowcast.rounds.simulator import Simulation
from narrowcast.testing import toy_task
from narrowcast.wire import messages as wire

D, DIM = 300, 20
LAYOUT = Layout(("w",), ((D,),))


def trained(method, rounds, theta0):
    """Every server from the first on, each a stage further."""
    dice = np.random.default_rng(3)
    servers = [method.server(theta0, LAYOUT)]
    for number in range(rounds):
        server = servers[-1]
        up = wire.payload(
            [wire.block(torch.from_numpy(dice.normal(size=DIM).astype(np.float32)))], stage=server.stage
        )
        acc = method.add(method.zero(server), up, 1.0)
        servers.append(method.step(server, acc, RoundInfo(number, number, True, 0.1)))
    return servers


@pytest.fixture(scope="module")
def many():
    method, theta0 = made("time-varying", dim=DIM, key=3, refresh=1), torch.linspace(-1, 1, D)
    return method, theta0, trained(method, 120, theta0)


def test_the_log_is_bounded_by_the_model(many) -> None:
    method, _, servers = many
    for stage, server in enumerate(servers):
        assert server.stage == stage
        assert sum(len(block.data) for block in server.log.blocks) <= 4 * D + 64 + 2 * 4 * DIM
    file = io.BytesIO()
    torch.save(method.state(servers[-1]), file)
    early = io.BytesIO()
    torch.save(method.state(servers[40]), early)
    assert len(file.getvalue()) <= len(early.getvalue()) + 512
    assert servers[-1].log.folded > 90


def test_a_download_is_the_smaller_of_the_whole_log_and_base(many) -> None:
    """The naive twin keeps everything: a client is sent what it lacks, or base where that is smaller."""
    method, _, servers = many
    server = servers[-1]
    sigma = len(wire.block(server.sigma).data)
    for have in (None, 0, 1, 5, 60, *range(95, 121)):
        down = method.download(server, have)
        lag = server.stage - (0 if have is None else have)
        log, dense = wire.blocks_size([sigma] * (lag + 1)), wire.blocks_size([4 * D, sigma])
        assert (down.kind == DENSE) == (log > dense), have
        assert wire.blocks_size([len(b.data) for b in down.blocks]) == min(log, dense)


def test_clients_of_any_age_reconcile_to_the_servers_theta(many) -> None:
    method, theta0, servers = many
    server = servers[-1]
    theta = method.theta(server)
    for have in (None, 1, 60, 100, 110, 119, 120):
        model = method.newcomer(theta0, LAYOUT)
        if have is not None:
            model, _ = method.reconcile(model, method.download(servers[have], None), have)
        _, there = method.reconcile(model, method.download(server, have), server.version)
        assert torch.equal(there, theta)


def test_a_restored_server_is_the_same(many) -> None:
    method, theta0, servers = many
    for server in (servers[0], servers[10], servers[-1]):
        again = method.restore(theta0, LAYOUT, method.state(server))
        assert torch.equal(method.theta(again), method.theta(server))
        for have in (None, 0, 60, 110):
            assert method.download(again, have) == method.download(server, have)


def test_an_impossible_version_lacks_everything() -> None:
    block = wire.block(torch.ones(DIM))
    log = Log()
    for version in range(1, 40):
        log = log.followed_by(block, version, 100)
    assert log.stage == 39
    assert log.lacking(None, 39) == log.lacking(-1, 39) == log.lacking(40, 39) == len(log.blocks) + 1
    assert log.lacking(0, 39) == len(log.blocks) + 1
    assert log.lacking(39, 39) == 0
    assert log.lacking(38, 39) == 1


@pytest.mark.parametrize("name", METHODS)
def test_no_download_has_more_blocks_than_a_client_decodes(name, monkeypatch) -> None:
    """Not of a run that began with fewer of them, nor of one that was stopped when they were too many."""
    method = made(name, dim=4, subspaces=2, refresh=1, k=1, rank=1, directions=9, clients=12, key=3)

    def run():
        return Simulation(toy_task(), method, Plan(cohort=4, lr=0.01, rounds=12, key=1))

    whole, here, stopped = run(), run(), run()
    assert len(list(whole)) == len(list(islice(stopped, 11))) + 1 == 12
    monkeypatch.setattr(wire, "MAX_BLOCKS", 8)
    for again in (here, run()):
        if again is not here:
            again.restore(stopped.state())
        for _ in again:
            for have in (None, *range(again.server.version + 1)):
                wire.decode(exchange.send_down(method, again.server, again.now(), have))
        assert torch.equal(again.theta, whole.theta)
        down = method.download(again.server, None)
        model = method.newcomer(again.theta0, again.task.layout)
        assert torch.equal(method.reconcile(model, down, again.server.version)[1], whole.theta)


@pytest.mark.parametrize("name", ["k-subspace", "k-subspace-time-varying"])
def test_where_all_sigmas_are_larger_than_the_model_it_is_sent_itself(name) -> None:
    method, theta0 = made(name, dim=DIM, subspaces=16, key=3), torch.linspace(-1, 1, D)
    servers = trained(method, 8, theta0)
    model = method.newcomer(theta0, LAYOUT)
    for server in (servers[0], servers[3], servers[8]):
        for have in (None, model.version):
            down = method.download(server, have)
            assert (down.kind, [len(b.data) for b in down.blocks]) == (DENSE, [4 * D])
        model, theta = method.reconcile(model, down, server.version)
        assert torch.equal(theta, method.theta(server))
        assert model.stage == server.stage
    fits = made(name, dim=DIM, subspaces=15, key=3)
    assert fits.download(fits.server(theta0, LAYOUT), None).kind != DENSE


def test_with_bits_too_more_than_the_model_is_refused() -> None:
    with pytest.raises(ValueError, match="64 subspaces of 20 numbers with 16 bits take more than"):
        made("k-subspace", dim=DIM, subspaces=64, down_bits=16.0).server(torch.zeros(D), LAYOUT)
    made("k-subspace", dim=DIM, subspaces=64, down_bits=2.0).server(torch.zeros(D), LAYOUT)
