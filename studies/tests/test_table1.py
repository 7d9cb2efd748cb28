"""Table 1, measured: what a client sends and gets over a training in which it comes once an epoch.

In numbers, sending exactly what a client lacks (time-varying is 2E - 1 where the paper's bound is 2E):

    method           upload   download      dimensions explored
    uncompressed     D E      D E           D
    static           d E      d E           d
    time-varying     d E      (2E-1) d      d E
    k-subspace       d E      d E K         d K
    both             d E      (2E-1) d K    d E K
"""

from collections import Counter

import numpy as np
import pytest
import torch

from fitting import made
from naive import toy
from narrowcast.methods import RoundInfo
from narrowcast.rounds import exchange
from narrowcast.rounds.exchange import Round
from narrowcast.rounds.plan import Plan
from narrowcast.rounds.sampling import Cohorts
from narrowcast.rounds.simulator import Simulation
from narrowcast.wire import messages as wire

E, d, K, N, KEY = 5, 4, 3, 12, 7
RUN = b"table 1."
TASK, _ = toy("mlp", N)
D = TASK.layout.size
TABLE = {
    "uncompressed": (D * E, D * E, D),
    "static": (d * E, d * E, d),
    "time-varying": (d * E, (2 * E - 1) * d, d * E),
    "k-subspace": (d * E, d * E * K, d * K),
    "k-subspace-time-varying": (d * E, (2 * E - 1) * d * K, d * E * K),
}
every_row = pytest.mark.parametrize("name", TABLE)
cohorts_that_divide_and_not = pytest.mark.parametrize("W", [4, 5, 12])


class Ledger:
    """What one direction carried: bytes and numbers of each client, and the subspaces (e, k) it named."""

    def __init__(self):
        self.bytes, self.numbers, self.subspaces = Counter(), Counter(), set()

    def write(self, client, data, route=0):
        payload = wire.decode(data).payload
        numbers = sum(len(block.data) for block in payload.blocks) // 4
        assert 0 < len(data) - 4 * numbers <= 32 + 5 * len(payload.blocks)
        self.bytes[client] += len(data)
        self.numbers[client] += numbers
        self.subspaces.add((payload.stage, route))


def train(m, W):
    """(up, down): E epochs of clients that each keep a model of their own and send noise for gradients."""
    up, down = Ledger(), Ledger()
    cohorts, noise = Cohorts(N, W, KEY), torch.Generator().manual_seed(0)
    server = m.server(TASK.theta0(), TASK.layout)
    models = [m.newcomer(TASK.theta0())] * N
    for t in range(E * cohorts.rounds_per_epoch):
        round = Round(RUN, KEY, t, server.version, wire.digest(m.theta(server)))
        acc = m.zero(server)
        for c in cohorts.come(t).tolist():
            data = exchange.send_down(m, server, round, models[c].version)
            down.write(c, data)
            models[c], _, seen = exchange.receive_down(m, models[c], data, RUN, KEY)
            v = torch.randn(D, generator=noise)
            _, data = exchange.send_up(m, None, v, models[c], seen, c, 1)
            up.write(c, data, m.route(round.client_key(c)))
            acc = exchange.receive_up(m, acc, data, round, c, set())
        server = m.step(server, acc, RoundInfo(t, cohorts.epoch(t), cohorts.epoch_end(t), 0.1))
    return up, down


def build(name):
    return made(name, dim=d, subspaces=K, key=KEY)


@every_row
@cohorts_that_divide_and_not
def test_every_client_sends_and_gets_the_numbers_of_the_table(name, W):
    up, down = train(build(name), W)
    sent, got, _ = TABLE[name]
    assert up.numbers == dict.fromkeys(range(N), sent)
    assert down.numbers == dict.fromkeys(range(N), got)


@every_row
def test_the_subspaces_used_span_the_dimensions_of_the_table(name):
    m = build(name)
    up, _ = train(m, 5)
    bases = [np.eye(D)] if m.whole_model else [m.matrix(D, e, k).dense().numpy() for e, k in up.subspaces]
    assert np.linalg.matrix_rank(np.hstack(bases)) == TABLE[name][2]


@every_row
@cohorts_that_divide_and_not
def test_the_simulator_counts_the_same_bytes(name, W):
    up, down = train(build(name), W)
    records = list(Simulation(TASK, build(name), Plan(cohort=W, lr=0.1, epochs=E, key=KEY, run=RUN)))
    assert sum(record.up for record in records) == up.bytes.total()
    assert sum(record.down for record in records) == down.bytes.total()
    assert sum(record.clients for record in records) == N * E
    assert sum(record.down_dense for record in records) == 0
