"""Deep gradient compression: its twin, momentum correction, masking, warm-up."""

from itertools import pairwise

import numpy as np
import pytest
import torch

from naive.dgc import dgc
from naive.runs import distance, rounds, trained
from narrowcast.methods import Model, RoundInfo, method
from narrowcast.methods.dgc import warming
from narrowcast.numerics.flat import Layout
from narrowcast.wire import messages as wire
from narrowcast.wire.codes import sparse
from narrowcast.wire.formats import FORMATS
from narrowcast.wire.messages import WireError

D, K, ETA = 200, 9, 0.1


def model(version=0):
    return Model(version, 0, torch.zeros(D))


def normal(seed):
    return torch.randn(D, generator=torch.Generator().manual_seed(seed))


def dense(up, k=K):
    where, numbers = sparse.read(*up.blocks, D, k)
    return torch.zeros(D).index_copy(0, where, numbers)


@pytest.mark.parametrize("kind", ["logistic", "mlp"])
@pytest.mark.parametrize("m", [0.0, 0.9])
@pytest.mark.parametrize("warmup", [0, 7])
def test_dgc_is_its_twin(kind, m, warmup):
    _, theta_0, theta, gradient = trained(method("dgc", k=5, momentum=m, warmup=warmup), kind, ETA)
    twin = dgc(theta_0, rounds(), gradient, ETA, 5, m, warmup)
    assert distance(theta, twin, theta_0) < 5e-6
    for other in (dgc(theta_0, rounds(), gradient, ETA, 5, 0.9 - m, warmup),
                  dgc(theta_0, rounds(), gradient, ETA, 5, m, 7 - warmup)):  # fmt: skip
        assert distance(theta, other, theta_0) > 0.01


def test_without_momentum_and_warmup_it_is_topk():
    one, other = method("dgc", k=K, momentum=0.0), method("topk", k=K)
    mine = theirs = None
    for seed in range(10):
        mine, up = one.compress(mine, normal(seed), model(), key=seed)
        theirs, same = other.compress(theirs, normal(seed), model(), key=seed)
        assert up == same
        assert torch.equal(mine["a"], theirs["error"])


@pytest.mark.parametrize("uplink", FORMATS)
def test_sent_and_kept_are_what_had_gathered_and_momentum_is_masked(uplink):
    m, private = method("dgc", k=K, momentum=0.5, uplink=uplink), None
    for seed in range(20):
        before = private or {"u": torch.zeros(D), "a": torch.zeros(D)}
        u = before["u"] * 0.5 + normal(seed)
        a = before["a"] + u
        private, up = m.compress(private, normal(seed), model(), key=seed)
        where, sent = sparse.read(*up.blocks, D, K)
        assert a[where].abs().min() >= torch.tensor(sorted(a.abs().tolist())[-K])
        assert not private["u"][where].any()
        rest = torch.ones(D, dtype=torch.bool).index_fill(0, where, False)
        assert torch.equal(private["u"][rest], u[rest])
        assert torch.equal(private["a"][rest], a[rest])
        assert torch.equal(private["a"][where], a[where] - sent)
        if uplink == "f32":
            assert torch.equal(sent, a[where])


def test_the_state_is_no_view_of_the_update():
    v = normal(0)
    private, _ = method("dgc", k=K).compress(None, v, model(), key=0)
    kept = {name: x.clone() for name, x in private.items()}
    v.zero_()
    assert all(torch.equal(private[name], kept[name]) for name in kept)


# Warm-up.


def test_the_count_falls_geometrically_from_a_quarter_to_k():
    assert [warming(1, 256, 8, v) for v in range(10)] == [256, 128, 64, 32, 16, 8, 4, 2, 1, 1]
    counts = [warming(1182, 118_282 // 4, 240, v) for v in range(300)]
    assert counts[0] == 118_282 // 4
    assert counts[120] == round((118_282 // 4 * 1182) ** 0.5)
    assert counts[240:] == [1182] * 60
    assert all(a > b for a, b in pairwise(counts[:241]))
    truth = [(118_282 // 4) ** (1 - v / 240) * 1182 ** (v / 240) for v in range(240)]
    assert np.abs(np.array(counts[:240]) - truth).max() <= 0.5 + 1e-6


@pytest.mark.parametrize(("k", "start"), [(5, 5), (7, 3), (1, 0)])
def test_a_k_beyond_the_start_is_sent_from_the_beginning(k, start):
    assert warming(k, start, 10, 0) == k


def test_clients_and_server_agree_on_the_count_at_every_version():
    m, theta0 = method("dgc", k=K, warmup=4), torch.zeros(D)
    server, private, counts = m.server(theta0, Layout(("w",), ((D,),))), None, []
    client = m.newcomer(theta0)
    for t in range(6):
        client, _ = m.reconcile(client, m.download(server, client.version), server.version)
        private, up = m.compress(private, normal(t), client, key=t)
        counts.append(len(up.blocks[1].data) // 4)
        server = m.step(server, m.add(m.zero(server), up, 1.0), RoundInfo(t, 0, False, 0.1))
    assert counts == [50, 33, 21, 14, 9, 9]


# What the server refuses.


def test_a_hostile_upload_is_a_wire_error():
    m = method("dgc", k=K, warmup=4)
    server = m.server(torch.zeros(D), Layout(("w",), ((D,),)))
    acc, up = m.zero(server), m.compress(None, normal(0), model(), key=0)[1]
    later = m.compress(None, normal(0), model(1), key=0)[1]
    where, values = up.blocks
    numbers = values.numbers(50)
    numbers[3] = float("nan")
    bad = {
        "another version": later,
        "fewer than this version's": wire.payload(later.blocks, stage=0),
        "that of another version, by its word": wire.payload(up.blocks, stage=1),
        "kind": wire.payload(up.blocks, kind=1),
        "order": wire.payload([values, where]),
        "no values": wire.payload([where]),
        "three blocks": wire.payload([*up.blocks, where]),
        "a byte more": wire.payload([wire.raw(where.data + b"\0"), values]),
        "a value less": wire.payload([where, wire.Block(0, values.data[:-4])]),
        "NaN": wire.payload([where, wire.block(numbers)]),
    }
    for what, payload in bad.items():
        with pytest.raises(WireError):
            raise AssertionError(what, m.add(acc, payload, 1.0))
        assert not acc.total.any()
    assert torch.equal(m.add(acc, up, 1.0).total[0], dense(up, 50))


@pytest.mark.parametrize("options", [{"k": 0}, {"momentum": 1.0}, {"momentum": -0.1}, {"warmup": -1}])
def test_settings_that_make_no_sense_are_refused(options):
    with pytest.raises(ValueError, match=r"at least|need"):
        method("dgc", **options)
