"""Random low rank: the server's A B is the client's matrix on average."""

import msgspec
import numpy as np
import pytest
import torch

from naive import MODULES
from naive.random_low_rank import random_low_rank
from naive.runs import assert_same, key_of, rounds, trained
from narrowcast.methods import method
from narrowcast.numerics.flat import Layout
from narrowcast.numerics.keyed import MASK32, Purpose, derive, normals
from narrowcast.wire import messages as wire
from narrowcast.wire.messages import WireError

LAYOUT = Layout(("w", "b", "flat", "conv", "scale"), ((7, 5), (7,), (2, 6), (4, 2, 3), ()))
D = LAYOUT.size
SIZE = 2 * 5 + 7 + 2 * 6 + 2 * 6 + 1  # of an upload of rank 2


def made(**options):
    return method("random-low-rank", **{"key": 5, "rank": 2} | options)


def vector(seed=1):
    return torch.randn(D, generator=torch.Generator().manual_seed(seed))


def world(m):
    """(model, empty sum)."""
    return m.newcomer(torch.zeros(D), LAYOUT), m.zero(m.server(torch.zeros(D), LAYOUT))


def estimate(m, v, key):
    """What the server makes of v."""
    model, acc = world(m)
    return m.add(acc, m.compress(None, v, model, key)[1], 1.0).total[0]


@pytest.mark.parametrize("kind", MODULES)
@pytest.mark.parametrize("r", [1, 2])
def test_it_trains_like_its_twin(kind, r):
    eta = 0.05
    run, theta_0, theta, gradient = trained(made(rank=r), kind, eta)
    shapes = run.task.layout.shapes

    def matrix(t, c):
        """A of every parameter with two dimensions and more than r rows, one after the other in a stream."""
        which = [i for i, s in enumerate(shapes) if len(s) == 2 and s[0] > r]
        ends = np.cumsum([shapes[i][0] for i in which])
        z = normals(derive(5, Purpose.SUBSPACE, key_of(t, c) & MASK32), Purpose.NORMALS, int(ends[-1]) * r)
        rows = z.reshape(-1, r).astype(np.float64) / np.sqrt(r)
        return dict(zip(which, np.split(rows, ends[:-1]), strict=True))

    assert_same(theta, random_low_rank(theta_0, shapes, rounds(), gradient, matrix, eta), theta_0)


def test_the_estimate_is_unbiased_and_errs_as_it_must():
    """E|A A^T V - V|^2 = (n + 1)/r |V|^2 for normal A; vectors are exact."""
    m, v, n = made(), vector(), 3000
    found = torch.stack([estimate(m, v, key) for key in range(n)])
    spread = found.std(0) / np.sqrt(n)
    assert ((found.mean(0) - v).abs() <= 4.5 * spread + 1e-6).all()
    sizes = [part.numel() for part in LAYOUT.split(v).values()]
    parts = zip(torch.split(found - v, sizes, 1), torch.split(v, sizes), (8 / 2, 0, 0, 5 / 2, 0), strict=True)
    for off, part, truth in parts:
        error = off.square().sum(1) / part.square().sum()
        assert abs(error.mean() - truth) <= 4.5 * error.std() / np.sqrt(n) + 1e-12


def test_what_is_sent_is_the_small_factor():
    m = made()
    up = m.compress(None, vector(), world(m)[0], 7)[1]
    assert [len(b.data) for b in up.blocks] == [4 * SIZE]
    whole = made(rank=7)
    assert torch.equal(estimate(whole, vector(), 7), vector())  # no matrix has more than seven rows


def test_matrices_differ_between_clients_and_runs():
    first = estimate(made(), vector(), 1)
    assert not torch.equal(first, estimate(made(), vector(), 2))
    assert not torch.equal(first, estimate(made(key=6), vector(), 1))
    assert torch.equal(first, estimate(made(), vector(), 1))


def test_the_layout_comes_back_with_a_checkpoint():
    m = made()
    server = m.server(torch.zeros(D), LAYOUT)
    assert m.zero(m.restore(torch.zeros(D), LAYOUT, m.state(server))).layout == LAYOUT
    with pytest.raises(ValueError, match="shapes"):
        m.server(torch.zeros(D + 1), LAYOUT)


def test_hostile_uploads_are_refused():
    m = made()
    model, acc = world(m)
    up = m.compress(None, vector(), model, 7)[1]
    ones = torch.ones(SIZE)
    for bad in (
        ones[1:],
        torch.ones(SIZE + 1),
        torch.ones(D),
        torch.ones(0),
        ones / 0,
        ones * 3e38,
        ones * 1e19,
    ):
        with pytest.raises(WireError):
            m.add(acc, msgspec.structs.replace(up, blocks=[wire.block(bad)]), 1.0)
    for change in ({"kind": 1}, {"blocks": []}, {"blocks": up.blocks * 2}, {"blocks": [wire.raw(b"\0" * 4)]}):
        with pytest.raises(WireError):
            m.add(acc, msgspec.structs.replace(up, **change), 1.0)
    assert not acc.total.any()
    with pytest.raises(ValueError, match="rank"):
        made(rank=0)
