"""The laws of the matrix A. A new kind is held to all of them by being in the table KINDS.

Error bounds: A is applied in float32, so every number passes about log2 D butterflies and a sum of about D/d
numbers, each with a relative error of at most u = 2^-24. `rounding(D, d)` bounds ||error|| / ||vector|| by a
small multiple of that, times the Frobenius norm of A, which is sqrt(D).
"""

import hashlib
import multiprocessing
import os
import signal
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from functools import lru_cache
from math import sqrt
from statistics import NormalDist

import msgspec
import numpy as np
import pytest
import scipy.sparse
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from narrowcast.numerics import pool
from narrowcast.numerics.keyed import MASK32, MASK64, Purpose, below, derive, philox, scattered
from narrowcast.subspaces import KINDS, Rotation, SubspaceSpec, add_family, make, rotation, subspace

QUICK = [kind for kind in KINDS if kind != "dense"]  # whose work is O(D log D), not O(D d)
TILED = [kind for kind in KINDS if issubclass(KINDS[kind], Rotation)]
every_kind = pytest.mark.parametrize("kind", KINDS)
law = settings(deadline=None, max_examples=60)

EDGES = sorted({m + e for m in (1, 2, 32, 64, 128, 192, 2048, 4096, 8192) for e in (-1, 0, 1)} - {0})
KEYS = st.integers(0, MASK64)


@st.composite
def shapes(draw, most=1 << 21):
    """(D, d) with 1 <= d <= D and D d <= most, often on an edge of lanes, tiles and strips."""
    D = draw(st.sampled_from(EDGES) | st.integers(1, 9000))
    top = min(D, most // D)
    return D, draw(st.sampled_from([*(e for e in EDGES if e <= top), top]) | st.integers(1, top))


def vector(size, seed=0):
    return torch.randn(size, generator=torch.Generator().manual_seed(seed))


def rounding(D, d):
    return 2.0**-24 * (8 * (D.bit_length() + 3) + 8 * sqrt(D / d)) * sqrt(D)


def norm(v):
    return torch.linalg.vector_norm(v.double()).item()


def dot(a, b):
    return sum(
        (p.double() @ q.double()).item() for p, q in zip(a.split(1 << 24), b.split(1 << 24), strict=True)
    )


def raw(v):
    return np.asarray(v).tobytes()


# A x and A^T g are those of one matrix.


@every_kind
@law
@given(shapes(), KEYS)
def test_project_is_the_adjoint_of_expand(kind, shape, key):
    D, d = shape
    A, x, g = subspace(kind, D, d, key), vector(d, 1), vector(D, 2)
    assert abs(dot(A.expand(x), g) - dot(x, A.project(g))) <= 2 * rounding(D, d) * norm(x) * norm(g)


@pytest.mark.parametrize("kind", QUICK)
@pytest.mark.parametrize(
    ("D", "d"),
    [
        (4096, 4096),
        (4097, 4097),
        (8191, 8191),
        (12289, 4095),
        (12289, 8193),
        (100_001, 4097),
        (300_007, 16_385),
    ],
)
def test_project_is_the_adjoint_of_expand_on_large_shapes(kind, D, d):
    A, x, g = subspace(kind, D, d, 5), vector(d, 1), vector(D, 2)
    assert abs(dot(A.expand(x), g) - dot(x, A.project(g))) <= 2 * rounding(D, d) * norm(x) * norm(g)


def dense_agrees(kind, D, d, key):
    A, x, g, base = subspace(kind, D, d, key), vector(d, 1), vector(D, 2), vector(D, 3)
    exact = A.dense()
    assert exact.shape == (D, d)
    assert exact.dtype == torch.float32
    exact = exact.double()
    assert norm(A.expand(x) - exact @ x.double()) <= rounding(D, d) * norm(x)
    assert norm(A.project(g) - exact.T @ g.double()) <= rounding(D, d) * norm(g)
    error = norm(A.add_expanded(base, x) - (base.double() + exact @ x.double()))
    assert error <= rounding(D, d) * norm(x) + 2.0**-24 * norm(base)


@every_kind
@law
@given(shapes(most=1 << 15), KEYS)
def test_all_three_operations_are_those_of_the_dense_matrix(kind, shape, key):
    dense_agrees(kind, *shape, key)


@pytest.mark.parametrize(
    ("kind", "D", "d"),
    [(kind, D, d) for kind in KINDS for D, d in [(200, 200), (4095, 64), (4160, 65), (4161, 127)]]
    + [(kind, D, d) for kind in QUICK for D, d in [(1025, 1025), (8193, 1024), (4225, 2049), (4097, 4097)]],
)
def test_all_three_operations_are_those_of_the_dense_matrix_on_large_shapes(kind, D, d):
    dense_agrees(kind, D, d, 5)


# The kernels are their plain twins, bit for bit, whatever runs them.


@every_kind
@law
@given(shapes(most=1 << 20), KEYS, st.sampled_from([1.0, 1e-42, 1e30]))  # 1e-42: denormal numbers
def test_add_expanded_is_its_plain_twin_bit_for_bit(kind, shape, key, scale):
    D, d = shape
    A, base, x = subspace(kind, D, d, key), scale * vector(D, 1), scale * vector(d, 2)
    assert raw(A.add_expanded(base, x)) == raw(A.add_expanded_plain(base.numpy(), x.numpy()))
    assert raw(A.expand(x)) == raw(A.add_expanded_plain(np.zeros(D, np.float32), x.numpy()))


@every_kind
@law
@given(shapes(1 << 19), KEYS, st.integers(0, 19))
def test_many_are_projected_as_each_by_itself(kind, shape, key, count):
    D, d = shape
    A, gs = subspace(kind, D, d, key), vector(count * D, 4).view(count, D)
    alone = b"".join(raw(A.project(g)) for g in gs)
    assert raw(A.project_many(gs)) == alone
    out = torch.full((count, d), 7.0)
    with pool.using(3):
        assert A.project_many(gs, out).data_ptr() == out.data_ptr()
    assert raw(out) == alone


@pytest.mark.parametrize("kind", QUICK)
@pytest.mark.parametrize(("D", "d"), [(118_282, 4096), (70_001, 31)])
def test_many_are_projected_as_each_by_itself_on_large_shapes(kind, D, d):
    A, gs = subspace(kind, D, d, 5), vector(11 * D, 3).view(11, D)
    for count in (1, 8, 11):
        assert raw(A.project_many(gs[:count])) == b"".join(raw(A.project(g)) for g in gs[:count])
    assert raw(A.project_many(gs.T.contiguous().T)) == raw(A.project_many(gs))


@every_kind
@pytest.mark.parametrize("wrong", [torch.zeros(89), torch.zeros(2, 88), torch.zeros(2, 89).double()])
def test_many_of_another_shape_are_refused(kind, wrong):
    with pytest.raises(ValueError, match="gs must"):
        subspace(kind, 89, 9, 1).project_many(wrong)


@pytest.mark.parametrize(
    ("kind", "D", "d"),
    [(kind, D, d) for kind in KINDS for D, d in [(45_001, 3), (70_001, 65)]]
    + [
        (kind, D, d)
        for kind in QUICK
        for D, d in [(330_001, 65), (330_001, 517), (330_001, 4099), (400_003, 200_001)]
    ],
)
def test_no_bit_depends_on_the_number_of_threads(kind, D, d):
    g, base, x = vector(D, 1), vector(D, 2), vector(d, 3)
    plain = raw(subspace(kind, D, d, 5).add_expanded_plain(base.numpy(), x.numpy()))
    projections = set()
    for threads in (1, 2, 3, 5):
        pool.set_threads(threads)
        A = subspace(kind, D, d, 5)
        assert raw(A.add_expanded(base, x)) == plain
        projections.add(raw(A.project(g)))
    assert len(projections) == 1


def digest(kind):
    A = subspace(kind, 140_003, 64, 5)
    return hashlib.sha256(raw(A.expand(vector(64))) + raw(A.project(vector(140_003)))).hexdigest()


def test_eight_threads_may_call_the_kernels_at_once():
    pool.set_threads(3)
    alone = [digest(kind) for kind in KINDS]
    with ThreadPoolExecutor(8) as callers:
        assert list(callers.map(digest, 2 * list(KINDS))) == 2 * alone


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")  # Python 3.12 warns of what is tested here
@every_kind
def test_a_forked_child_computes_the_same(kind):
    pool.set_threads(2)
    expected = digest(kind)  # the pool has threads now, which a child does not inherit
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        signal.alarm(600)  # a child that hangs dies
        os.write(writer, digest(kind).encode())
        os._exit(0)
    os.close(writer)
    with os.fdopen(reader) as answer:
        assert answer.read() == expected
    assert os.waitpid(child, 0)[1] == 0


def test_a_spawned_child_computes_the_same():
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as children:
        assert list(children.map(digest, KINDS, timeout=600)) == [digest(kind) for kind in KINDS]


# A is random, unbiased, of full rank, and the same everywhere.


@every_kind
@pytest.mark.parametrize(("D", "d"), [(1, 1), (2, 1), (3, 2), (5, 5), (7, 3), (12, 8)])
def test_the_mean_of_a_a_transposed_is_the_identity(kind, D, d):
    """Every entry within its confidence interval; all D^2 of them together fail by chance once in 10^6."""
    keys = [derive(5, Purpose.SUBSPACE, i) for i in range(2000)]
    samples = np.array(
        [a @ a.T for a in (subspace(kind, D, d, key).dense().double().numpy() for key in keys)]
    )
    z = NormalDist().inv_cdf(1 - 1e-6 / (2 * D * D))
    bound = z * samples.std(axis=0) / sqrt(len(keys)) + 1e-6  # 1e-6: float32, where the entry is constant
    assert np.all(np.abs(samples.mean(axis=0) - np.eye(D)) <= bound)


@every_kind
@pytest.mark.parametrize(("D", "d"), [(130, 64), (200, 150), (4200, 64)])
def test_the_mean_of_a_a_transposed_g_is_g(kind, D, d):
    keys = [derive(6, Purpose.SUBSPACE, i) for i in range(300)]
    g = vector(D)
    samples = np.array(
        [A.expand(A.project(g)).double().numpy() for A in (subspace(kind, D, d, k) for k in keys)]
    )
    z = NormalDist().inv_cdf(1 - 1e-6 / (2 * D))
    assert np.all(
        np.abs(samples.mean(axis=0) - g.numpy()) <= z * samples.std(axis=0) / sqrt(len(keys)) + 1e-6
    )


@every_kind
@pytest.mark.parametrize(
    ("D", "d"), [(1, 1), (2, 2), (3, 3), (65, 64), (129, 128), (150, 150), (300, 17), (1000, 65)]
)
def test_a_has_full_rank(kind, D, d):
    assert all(
        np.linalg.matrix_rank(subspace(kind, D, d, key).dense().double().numpy()) == d for key in range(3)
    )


@every_kind
def test_different_keys_give_different_matrices(kind):
    keys = [*range(100), *(1 << i for i in range(7, 64)), MASK64, MASK32]
    assert len({raw(subspace(kind, 100, 10, key).dense()) for key in keys}) == len(keys)


GOLDEN_SPECS = [(10, 3, 0), (130, 64, MASK64), (600, 140, 12345), (4300, 130, 1 << 32)]
GOLDEN = {  # sha256 of dense() for each of these (D, d, key); with d < 128 a rotation has n = 1: a grouping
    "rotation": ["ed9bf2ef443c22fc", "dcae5a5e0c5ff2ea", "e9390a1485b1db49", "400cd2764d57e73b"],
    "fastfood": ["761058a2ee05581b", "958ba4fc20f96b77", "ccc461a000bddd6e", "7887744b4d639212"],
    "grouping": ["ed9bf2ef443c22fc", "dcae5a5e0c5ff2ea", "e412c596d95fd599", "28ca6aefaf01179d"],
    "dense": ["c6955900349c252d", "e53df3118dc2a2cb", "a33600a8f8c386a5", "fb0834b93b25832d"],
}


@every_kind
def test_a_is_the_golden_one(kind):
    matrices = [subspace(kind, *spec).dense() for spec in GOLDEN_SPECS]
    assert [hashlib.sha256(A.numpy().tobytes()).hexdigest()[:16] for A in matrices] == GOLDEN[kind]


@every_kind
@law
@given(shapes(), KEYS)
def test_a_spec_that_crossed_the_wire_makes_the_same_matrix(kind, shape, key):
    D, d = shape
    A, x = subspace(kind, D, d, key), vector(d)
    spec = msgspec.msgpack.decode(msgspec.msgpack.encode(A.spec), type=SubspaceSpec)
    assert (spec.kind, spec.D, spec.d, spec.key) == (kind, D, d, key)
    assert spec == A.spec == make(spec).spec
    assert hash(spec) == hash(A.spec)
    assert raw(make(spec).expand(x)) == raw(A.expand(x))


# What is refused, and what is left alone.


@every_kind
@pytest.mark.parametrize(("D", "d"), [(5, 6), (5, 0), (5, -1), (0, 0), (0, 1), (-1, -1), (1 << 41, 5)])
def test_a_shape_without_1_le_d_le_D_is_refused(kind, D, d):
    with pytest.raises(ValueError, match="1 <= d <= D"):
        subspace(kind, D, d, 0)


@every_kind
@pytest.mark.parametrize("key", [-1, 1 << 64])
def test_a_key_without_64_bits_is_refused(kind, key):
    with pytest.raises(ValueError, match="64 bits"):
        subspace(kind, 5, 2, key)


@every_kind
def test_numpys_integers_make_the_same_matrix(kind):
    one, other = (
        subspace(kind, np.int64(1000), np.int32(64), np.uint64(1 << 63)),
        subspace(kind, 1000, 64, 1 << 63),
    )
    assert msgspec.msgpack.encode(one.spec) == msgspec.msgpack.encode(other.spec)
    assert torch.equal(one.project(vector(1000)), other.project(vector(1000)))


def test_an_unknown_kind_is_refused():
    with pytest.raises(ValueError, match=r"unknown kind.*'sparse'.*rotation"):
        make(SubspaceSpec("sparse", 5, 2, 0))


@every_kind
@pytest.mark.parametrize("change", [{"n": 2}, {"V": 2}, {"n": 128}, {"n": -1}])
def test_a_spec_with_other_tiles_than_ours_is_refused(kind, change):
    with pytest.raises(ValueError, match="this version builds"):
        make(msgspec.structs.replace(subspace(kind, 5000, 300, 0).spec, **change))


D, d = 300, 70
WRONG = {
    "too long": lambda n: torch.zeros(n + 1),
    "too short": lambda n: torch.zeros(n - 1),
    "a matrix": lambda n: torch.zeros(1, n),
    "float64": lambda n: torch.zeros(n, dtype=torch.float64),
    "integers": lambda n: torch.zeros(n, dtype=torch.int32),
    "not on the cpu": lambda n: torch.zeros(n, device="meta"),
}
WRONG_OUT = WRONG | {
    "strided": lambda n: torch.zeros(2 * n)[::2],
    "in need of gradients": lambda n: torch.zeros(n, requires_grad=True),
}
OPERATIONS = {
    "project": lambda A, out=None, **v: A.project(v.get("g", vector(D)), out=out),
    "expand": lambda A, out=None, **v: A.expand(v.get("x", vector(d)), out=out),
    "add_expanded": lambda A, out=None, **v: A.add_expanded(
        v.get("base", vector(D)), v.get("x", vector(d)), out=out
    ),
}
SIZES = {"g": D, "x": d, "base": D}
OPERANDS = [("project", "g"), ("expand", "x"), ("add_expanded", "x"), ("add_expanded", "base")]


@every_kind
@pytest.mark.parametrize("wrong", WRONG)
@pytest.mark.parametrize(("operation", "operand"), OPERANDS)
def test_a_wrong_operand_is_refused_by_name(kind, operation, operand, wrong):
    with pytest.raises(
        ValueError, match=f"{operand} must be a float32 CPU vector of {SIZES[operand]} numbers"
    ):
        OPERATIONS[operation](subspace(kind, D, d, 0), **{operand: WRONG[wrong](SIZES[operand])})


@every_kind
@pytest.mark.parametrize("wrong", WRONG_OUT)
@pytest.mark.parametrize("operation", OPERATIONS)
def test_a_wrong_out_is_refused(kind, operation, wrong):
    with pytest.raises(ValueError, match="out must be"):
        OPERATIONS[operation](
            subspace(kind, D, d, 0), out=WRONG_OUT[wrong](d if operation == "project" else D)
        )


@every_kind
@pytest.mark.parametrize(("operation", "operand"), OPERANDS)
def test_a_strided_operand_or_one_with_gradients_counts_as_its_copy(kind, operation, operand):
    A = subspace(kind, D, d, 0)
    strided = vector(2 * SIZES[operand])[::2]
    expected = raw(OPERATIONS[operation](A, **{operand: strided.clone()}))
    assert raw(OPERATIONS[operation](A, **{operand: strided})) == expected
    result = OPERATIONS[operation](A, **{operand: strided.clone().requires_grad_()})
    assert not result.requires_grad
    assert raw(result) == expected


@every_kind
@pytest.mark.parametrize("operation", OPERATIONS)
def test_out_is_filled_and_returned_whatever_was_in_it(kind, operation):
    A = subspace(kind, D, d, 0)
    out = torch.full((d if operation == "project" else D,), torch.nan)
    assert OPERATIONS[operation](A, out=out) is out
    assert raw(out) == raw(OPERATIONS[operation](A))


# Beyond a strip of coordinates, and for `dense` beyond a chunk of entries.
SHAPES = [(kind, *shape) for kind in KINDS for shape in [(1, 1), (D, d), (9000, 3), (9000, 70)]]
SHAPES += [(kind, 9000, 4100) for kind in QUICK] + [("dense", 9000, 500)]
several_shapes = pytest.mark.parametrize(("kind", "D", "d"), SHAPES)


@several_shapes
def test_out_may_be_base(kind, D, d):
    A, base, x = subspace(kind, D, d, 0), vector(D), vector(d)
    expected = raw(A.add_expanded(base, x))
    assert A.add_expanded(base, x, out=base) is base
    assert raw(base) == expected


@several_shapes
@pytest.mark.parametrize("K", [1, 2, 3])
def test_a_family_is_added_as_one_after_the_other(kind, D, d, K):
    family = [subspace(kind, D, d, key) for key in range(K)]
    base, xs = vector(D), vector(K * d, 1).view(K, d)
    expected = base
    for A, x in zip(family, xs, strict=True):
        expected = A.add_expanded(expected, x)
    assert raw(add_family(family, base, xs)) == raw(expected)
    assert raw(add_family(family, base, xs, out=base)) == raw(expected)


def test_a_family_of_unlike_members_or_too_few_rows_is_refused():
    A, B = (subspace("rotation", D, dim, 0) for dim in (d, d - 1))
    for family, rows in (([A, B], 2), ([A, A], 1)):
        with pytest.raises(ValueError, match="differ in their keys only"):
            add_family(family, vector(D), torch.zeros(rows, d))


@pytest.mark.parametrize("kind", TILED)
@pytest.mark.parametrize("shift", [0, 1])  # on 32 bytes, where stores may go past the caches, and beside it
@pytest.mark.parametrize("threads", [1, 2])
def test_no_bit_depends_on_how_a_result_is_stored(kind, shift, threads, monkeypatch):
    D, d = 40 * 4096 + 5, 5000
    family = [subspace(kind, D, d, key) for key in (1, 2)]
    base, xs = vector(D), vector(2 * d, 1).view(2, d)
    pool.set_threads(threads)
    plain = raw(add_family(family, base, xs))
    monkeypatch.setattr(rotation, "STREAM", 1)
    memory = torch.empty(D + 16)
    first = (-memory.data_ptr() // 4) % 8 + shift
    assert raw(add_family(family, base, xs, out=memory[first : first + D])) == plain
    assert raw(family[0].expand(xs[0])) == raw(
        family[0].add_expanded_plain(np.zeros(D, np.float32), xs[0].numpy())
    )


@every_kind
@pytest.mark.parametrize("shift", [1, -1])
def test_out_that_overlaps_base_in_part_is_refused(kind, shift):
    """Its early results would overwrite a base that is still to be read."""
    memory = vector(D + 1)
    base, out = (memory[:-1], memory[1:]) if shift == 1 else (memory[1:], memory[:-1])
    with pytest.raises(ValueError, match="shares memory"):
        subspace(kind, D, d, 0).add_expanded(base, vector(d), out=out)


@every_kind
@pytest.mark.parametrize(("operation", "operand"), [("project", "g"), ("expand", "x"), ("add_expanded", "x")])
def test_out_that_is_the_operand_is_refused(kind, operation, operand):
    v = vector(d)
    with pytest.raises(ValueError, match="shares memory"):
        getattr(subspace(kind, d, d, 0), operation)(
            *([vector(d)] if operation == "add_expanded" else []), v, out=v
        )


@every_kind
def test_operands_are_left_as_they_were_and_results_have_memory_of_their_own(kind):
    A, base, x = subspace(kind, D, D, 0), vector(D, 1), vector(D, 2)
    before = raw(base), raw(x)
    results = [A.project(x), A.expand(x), A.add_expanded(base, x), A.expand(x)]
    assert len({v.untyped_storage().data_ptr() for v in [base, x, *results]}) == 6
    assert (raw(base), raw(x)) == before


# The laws of the rotation, and of grouping, which is the rotation with n = 1.

chance = np.random.default_rng(5)
PAIRS = [(D, D) for D in (1, 2, 3, 63, 64, 65, 127, 1000, 2049)]
PAIRS += [
    (int(D), int(d)) for D in chance.integers(1, 3001, 260) for d in [D ** chance.random()]
]  # d log-uniform
PAIRS += [(int(D), int(chance.integers(1, D + 1))) for D in chance.integers(1, 801, 60)]  # d uniform


@pytest.mark.parametrize("kind", TILED)
def test_rows_have_norm_1_and_columns_are_orthogonal_with_floor_or_ceil_of_D_over_d(kind):
    """Hence A has rank d, and is orthogonal when d = D."""
    for D, d in PAIRS:
        dense = subspace(kind, D, d, derive(5, Purpose.SUBSPACE, D, d)).dense().numpy()
        A = scipy.sparse.csr_array(dense).astype(np.float64)
        gram = A.T @ A
        diagonal = gram.diagonal()
        assert np.abs(A.multiply(A).sum(axis=1) - 1).max() < 1e-6, (D, d)
        assert np.abs(gram - scipy.sparse.diags_array(diagonal)).max() < 1e-6 * D / d, (D, d)
        assert np.abs(diagonal - np.round(diagonal)).max() < 1e-6 * D / d, (D, d)
        assert set(np.round(diagonal)) <= {D // d, -(-D // d)}, (D, d)


@pytest.mark.parametrize("kind", TILED)
@pytest.mark.parametrize("D", [1, 2, 5, 64, 100, 4095, 4096, 4097, 100_003])
def test_a_is_orthogonal_when_d_is_D(kind, D):
    A, g = subspace(kind, D, D, 5), vector(D)
    assert norm(A.expand(A.project(g)) - g) <= 1e-6 * norm(g)
    assert norm(A.project(A.expand(g)) - g) <= 1e-6 * norm(g)


@pytest.mark.parametrize("kind", TILED)
@law
@given(shapes())
def test_tiles_are_those_of_the_design(kind, shape):
    """V = min(64, 2^floor(log2 d)) and n = min(64, 2^floor(log2(d/V))), or n = 1 for grouping."""
    spec = subspace(kind, *shape, 0).spec
    assert max(2**i for i in range(7) if 2**i <= spec.d) == spec.V
    assert spec.n == (1 if kind == "grouping" else max(2**i for i in range(7) if 2**i * spec.V <= spec.d))


block_of = lru_cache(1000)(philox)


def row(spec, e):
    """Row e of A from the words of the design and plain Philox: {coordinate: value}."""
    size = spec.n * spec.V
    tiles = spec.D // size
    t = e // size
    if t < tiles:
        first, rows, lanes = t * size, spec.n, spec.V
        position = int(scattered(spec.key, tiles, t, t + 1)[0]) * size
    else:  # the binary expansion of what is left
        first, block = tiles * size, 1 << (spec.D - tiles * size).bit_length() - 1
        while e >= first + block:
            first += block
            block = 1 << (spec.D - first).bit_length() - 1
        lanes = min(spec.V, block)
        rows = block // lanes
        position = first

    def negative(purpose, r, lane, width):
        word = r // 32 * width + lane
        block = block_of((word // 4 & MASK32, word // 4 >> 32, purpose, 1 << 31), spec.key)
        return block[word % 4] >> r % 32 & 1

    start = below(derive(spec.key, Purpose.OFFSET), spec.d) + position
    i, j = divmod(e - first, lanes)
    B = negative(Purpose.SIGNS_COLUMN, e // spec.V, e % spec.V, spec.V)
    G = [negative(Purpose.SIGNS_ROW, first // spec.V + k, 0, 1) for k in range(rows)]
    return {
        (start + k * lanes + j) % spec.d: (-1) ** (B + G[k] + (i & k).bit_count())
        * np.float32(1 / sqrt(rows))
        for k in range(rows)
    }


@pytest.mark.parametrize("kind", TILED)
@pytest.mark.parametrize(
    ("D", "d"), [(1, 1), (7, 3), (100, 63), (300, 70), (1000, 300), (4500, 128), (4351, 4300)]
)
def test_every_row_is_the_one_that_the_design_states(kind, D, d):
    A = subspace(kind, D, d, 12345)
    exact = np.zeros((D, d), np.float32)
    for e in range(D):
        for coordinate, value in row(A.spec, e).items():
            exact[e, coordinate] = value
    assert np.array_equal(A.dense().numpy(), exact)


@pytest.mark.parametrize(
    ("n", "V"), [(1, 1), (2, 1), (1, 2), (8, 4), (64, 2), (64, 1), (4, 64), (32, 64), (64, 64)]
)
@pytest.mark.parametrize("D", [4096, 9001])
def test_tiles_of_any_size_keep_the_laws(n, V, D):
    A = Rotation(D, 4096, 5, n=n, V=V)
    base, x = vector(D, 1), vector(4096, 2)
    assert raw(A.add_expanded(base, x)) == raw(A.add_expanded_plain(base.numpy(), x.numpy()))
    y = A.project(A.expand(x))
    count = torch.round(y / x)
    assert norm(y - count * x) <= rounding(D, 4096) * norm(x)
    assert set(count.tolist()) <= {D // 4096, -(-D // 4096)}


@pytest.mark.parametrize(("n", "V"), [(3, 64), (64, 3), (128, 1), (1, 128), (0, 64), (64, 0), (64, 64)])
def test_tiles_that_are_no_powers_of_two_up_to_64_or_exceed_d_are_refused(n, V):
    with pytest.raises(ValueError, match="powers of two"):
        Rotation(9001, 4095, 5, n=n, V=V)


@pytest.mark.slow
@pytest.mark.parametrize("kind", TILED)
@pytest.mark.parametrize("d", [1000, 16_385])
def test_the_laws_hold_beyond_two_to_the_27(kind, d):
    D = (1 << 27) + 3 * 4096 + 77
    A, x, g = subspace(kind, D, d, 5), vector(d, 1), vector(D, 2)
    y = A.expand(x)
    assert abs(dot(y, g) - dot(x, A.project(g))) <= 2 * rounding(D, d) * norm(x) * norm(g)
    assert abs(dot(y, y) / norm(x) ** 2 / (D / d) - 1) < 1e-3
    for e in (0, 1, 4095, (1 << 26) + 12345, (1 << 27) - 1, 1 << 27, (1 << 27) + 5000, D - 78, D - 77, D - 1):
        exact = row(A.spec, e)
        assert y[e].item() == pytest.approx(sum(float(v) * x[c].item() for c, v in exact.items()), abs=1e-5)
        unit = g.zero_()
        unit[e] = 1
        assert {c: v for c, v in enumerate(A.project(unit).tolist()) if v} == exact
