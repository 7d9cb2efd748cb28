"""The laws of a kind of A: one matrix, E[A A^T] = I, the same bits for the same spec, whatever computes it.

A is applied in float32, so every number passes about log2 D additions and a sum of about D/d numbers, each
with a relative error of at most u = 2^-24; `rounding` is a small multiple of that times ||A||_F = sqrt(D).
"""

from __future__ import annotations

from math import sqrt
from statistics import NormalDist
from typing import Any

import msgspec
import numpy as np
import torch
from torch import Tensor

from narrowcast.numerics import keyed, pool
from narrowcast.numerics.keyed import MASK64, Purpose
from narrowcast.subspaces.base import Subspace, SubspaceSpec, add_family
from narrowcast.testing.contract import Contract, raises

SHAPES = (
    (1, 1),
    (2, 1),
    (3, 2),
    (5, 5),
    (64, 63),
    (65, 64),
    (129, 128),
    (200, 200),
    (300, 70),
    (1000, 65),
    (4097, 33),
)
KEYS = (0, 5, MASK64)


class SubspaceContract(Contract):
    """Of the kind of A that `make(D, d, key)` returns."""

    def make(self, D: int, d: int, key: int) -> Subspace:  # type: ignore[override]
        raise NotImplementedError("say which kind: def make(self, D, d, key): return Mine(D, d, key)")

    def test_all_three_operations_are_those_of_one_matrix(self) -> None:
        for D, d in SHAPES:
            A, x, g, base = self.make(D, d, 5), vector(d, 1), vector(D, 2), vector(D, 3)
            exact = A.dense()
            assert (exact.shape, exact.dtype) == ((D, d), torch.float32), f"dense() is {tuple(exact.shape)}"
            exact = exact.double()
            most = rounding(D, d)
            where = f"at D={D}, d={d}"
            assert norm(A.expand(x) - exact @ x.double()) <= most * norm(x), f"expand is not A x {where}"
            assert norm(A.project(g) - exact.T @ g.double()) <= most * norm(g), (
                f"project is not A^T g {where}"
            )
            error = norm(A.add_expanded(base, x) - (base.double() + exact @ x.double()))
            assert error <= most * norm(x) + 2.0**-24 * norm(base), f"add_expanded is not base + A x {where}"

    def test_it_is_its_plain_twin_bit_for_bit(self) -> None:
        """Also where numbers are denormal (1e-42)."""
        for D, d in SHAPES:
            for key, scale in zip(KEYS, (1.0, 1e-42, 1e30), strict=True):
                A, base, x = self.make(D, d, key), scale * vector(D, 1), scale * vector(d, 2)
                plain = A.add_expanded_plain(base.numpy(), x.numpy())
                assert raw(A.add_expanded(base, x)) == raw(plain), f"at D={D}, d={d}, scale {scale}"
                nothing = A.add_expanded_plain(np.zeros(D, np.float32), x.numpy())
                assert raw(A.expand(x)) == raw(nothing), f"expand at D={D}, d={d}, scale {scale}"

    def test_no_bit_depends_on_the_number_of_threads(self) -> None:
        D, d = 45_001, 65
        g, base, x = vector(D, 1), vector(D, 2), vector(d, 3)
        found = set()
        before = pool.threads()
        try:
            for threads in (1, 2, 3, 5):
                pool.set_threads(threads)
                A = self.make(D, d, 5)
                found.add((raw(A.add_expanded(base, x)), raw(A.project(g))))
        finally:
            pool.set_threads(before)
        assert len(found) == 1, f"{len(found)} results with 1, 2, 3 and 5 threads"

    def test_the_mean_of_a_a_transposed_is_the_identity(self) -> None:
        """Every entry within its confidence interval; all of them together fail by chance once in 10^6."""
        for D, d in ((1, 1), (3, 2), (5, 5), (7, 3)):
            keys = [keyed.derive(5, Purpose.SUBSPACE, i) for i in range(1000)]
            matrices = (self.make(D, d, key).dense().double().numpy() for key in keys)
            samples = np.array([a @ a.T for a in matrices])
            z = NormalDist().inv_cdf(1 - 1e-6 / (2 * D * D))
            bound = z * samples.std(axis=0) / sqrt(len(keys)) + 1e-6  # float32, where an entry is constant
            assert np.all(np.abs(samples.mean(axis=0) - np.eye(D)) <= bound), f"at D={D}, d={d}"

    def test_a_has_full_rank_and_another_key_is_another_matrix(self) -> None:
        for D, d in SHAPES[:-1]:
            ranks = [np.linalg.matrix_rank(self.make(D, d, key).dense().double().numpy()) for key in KEYS]
            assert ranks == [d] * len(KEYS), f"ranks {ranks} at D={D}, d={d}"
        keys = [*range(30), *(1 << i for i in range(7, 64)), MASK64]
        assert len({raw(self.make(100, 10, key).dense()) for key in keys}) == len(keys), (
            "two keys, one matrix"
        )

    def test_a_spec_that_crossed_the_wire_is_the_same_matrix(self) -> None:
        for D, d in SHAPES:
            A, again, x = self.make(D, d, 7), self.make(D, d, 7), vector(d)
            spec = msgspec.msgpack.decode(msgspec.msgpack.encode(A.spec), type=SubspaceSpec)
            assert spec == A.spec == again.spec, f"{A.spec} and {again.spec}"
            assert (spec.D, spec.d, spec.key) == (D, d, 7), f"the spec of D={D}, d={d}, key=7 is {spec}"
            assert raw(again.expand(x)) == raw(A.expand(x)), "the same spec, another matrix"

    def test_a_family_is_added_as_one_after_the_other(self) -> None:
        D, d, K = 300, 70, 3
        family = [self.make(D, d, key) for key in range(K)]
        base, xs = vector(D), vector(K * d, 1).view(K, d)
        expected = base
        for A, x in zip(family, xs, strict=True):
            expected = A.add_expanded(expected, x)
        assert raw(add_family(family, base, xs)) == raw(expected)
        assert raw(add_family(family, base, xs, out=base.clone())) == raw(expected)

    def test_results_have_memory_of_their_own_and_out_may_be_base(self) -> None:
        D, d = 300, 300
        A, base, x = self.make(D, d, 0), vector(D, 1), vector(D, 2)
        before = raw(base), raw(x)
        results = [A.project(x), A.expand(x), A.add_expanded(base, x), A.expand(x)]
        assert len({v.untyped_storage().data_ptr() for v in [base, x, *results]}) == 6, "shared memory"
        assert (raw(base), raw(x)) == before, "an operand was changed"
        assert A.add_expanded(base, x, out=base) is base
        assert raw(base) == raw(results[2]), "in place it is another result"

    def test_what_does_not_fit_is_refused(self) -> None:
        for D, d in ((5, 6), (5, 0), (0, 0), (-1, -1)):
            with raises(ValueError, f"a matrix of {D} x {d}", "1 <= d <= D"):
                self.make(D, d, 0)
        for key in (-1, 1 << 64):
            with raises(ValueError, f"the key {key}", "64 bits"):
                self.make(5, 2, key)
        A = self.make(300, 70, 0)
        for wrong in (vector(299), vector(301), vector(300)[None], vector(300).double()):
            with raises(ValueError, f"g of shape {tuple(wrong.shape)}, {wrong.dtype}", "g must be"):
                A.project(wrong)
        with raises(ValueError, "out that is the operand", "shares memory"):
            x = vector(70)
            self.make(70, 70, 0).expand(x, out=x)


def vector(size: int, seed: int = 0) -> Tensor:
    return torch.from_numpy(keyed.normals(seed + 11, Purpose.DATA, size))


def rounding(D: int, d: int) -> float:
    return 2.0**-24 * (8 * (D.bit_length() + 3) + 8 * sqrt(D / d)) * sqrt(D)


def norm(v: Tensor) -> float:
    return float(torch.linalg.vector_norm(v.double()))


def raw(v: Any) -> bytes:
    return np.asarray(v).tobytes()
