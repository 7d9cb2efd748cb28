"""Laws of the partitions: every example exactly once, sizes even, one class a client where promised."""

import hashlib
from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from narrowcast.tasks.partition import Partition, by_class, dirichlet, iid, natural

LABELS = np.arange(2000) * 7 % 10  # 200 of each class, interleaved

KINDS = {
    "iid": lambda y, clients, key: iid(len(y), clients, key),
    "class": by_class,
    "dirichlet": lambda y, clients, key: dirichlet(y, clients, 0.3, key),
}


@st.composite
def labelled(draw):
    labels = draw(st.lists(st.integers(0, 4), min_size=5, max_size=80)) + list(range(5))
    return np.array(labels), draw(st.integers(5, len(labels))), draw(st.integers(0, 2**64 - 1))


@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=40, deadline=None)
@given(case=labelled())
def test_every_example_has_exactly_one_client(kind, case):
    labels, clients, key = case
    cut = KINDS[kind](labels, clients, key)
    assert len(cut) == clients
    assert np.array_equal(np.sort(np.concatenate(list(cut))), np.arange(len(labels)))
    assert all(len(c) >= 1 for c in cut)


@pytest.mark.parametrize("kind", ["iid", "dirichlet"])
@settings(max_examples=40, deadline=None)
@given(case=labelled())
def test_clients_differ_in_size_by_at_most_one(kind, case):
    sizes = [len(c) for c in KINDS[kind](*case)]
    assert max(sizes) - min(sizes) <= 1


@settings(max_examples=60, deadline=None)
@given(case=labelled())
def test_by_class_has_one_class_a_client_and_even_sizes_within_a_class(case):
    labels, clients, key = case
    sizes = {}
    for c in by_class(labels, clients, key):
        (label,) = set(labels[c])
        sizes.setdefault(label, []).append(len(c))
    assert set(sizes) == set(labels)
    assert all(max(s) - min(s) <= 1 for s in sizes.values())


def test_the_papers_cut_has_five_images_of_one_class_a_client():
    cut = by_class(np.repeat(np.arange(10), 500), 1000, key=1)
    assert {len(c) for c in cut} == {5}


@pytest.mark.parametrize("kind", KINDS)
def test_same_key_same_cut_other_key_other_cut(kind):
    a, b, c = (KINDS[kind](LABELS, 100, key) for key in (5, 5, 6))
    assert np.array_equal(a.order, b.order)
    assert not np.array_equal(a.order, c.order)


@pytest.mark.parametrize(
    ("kind", "golden"),
    [("iid", "a62c32d668659342"), ("class", "e7083bf3e7721d68"), ("dirichlet", "e45fa968d880f9a6")],
)
def test_the_cut_is_the_same_on_every_machine(kind, golden):
    cut = KINDS[kind](LABELS, 100, 2026)
    assert hashlib.sha256(cut.order.astype("<i8").tobytes()).hexdigest()[:16] == golden


def classes_per_client(alpha):
    return np.mean([len(set(LABELS[c])) for c in dirichlet(LABELS, 50, alpha, key=3)])


@pytest.mark.parametrize("kind", KINDS)
def test_numpys_integers_are_integers(kind):
    one, other = KINDS[kind](LABELS, np.int64(50), np.uint64(9)), KINDS[kind](LABELS, 50, 9)
    assert np.array_equal(one.order, other.order)
    assert np.array_equal(iid(np.int64(60), np.int32(7)).offsets, iid(60, 7).offsets)


def test_dirichlet_goes_from_one_class_to_iid():
    few, some, many = (classes_per_client(alpha) for alpha in (1e-300, 0.5, 1e9))
    iid_classes = np.mean([len(set(LABELS[c])) for c in iid(len(LABELS), 50, 3)])
    assert few < 2 < some < many - 1
    assert abs(many - iid_classes) < 0.3


def test_dirichlet_follows_the_dirichlet_multinomial():
    """Counts of a class among m draws have variance m p (1 - p) (m + A) / (1 + A), A = classes x alpha."""
    labels, alpha, m = np.arange(200_000) % 2, 2.0, 20
    # The first clients only: by then no class has run out.
    cut = dirichlet(labels, len(labels) // m, alpha, key=11)
    counts = np.array([np.sum(labels[c]) for c in cut[:2000]])
    total = 2 * alpha
    expected = m * 0.25 * (m + total) / (1 + total)
    assert abs(counts.mean() - m / 2) < 4 * np.sqrt(expected / 2000)
    assert abs(counts.var() / expected - 1) < 0.15


def test_natural_groups_by_id_in_the_order_of_the_ids():
    cut = natural(["bo", "al", "bo", "cy"])
    assert [c.tolist() for c in cut] == [[1], [0, 2], [3]]


def test_a_partition_is_a_sequence():
    cut = Partition([4, 3, 2, 1, 0], [2, 3])
    assert cut[-1].tolist() == [2, 1, 0]
    assert [c.tolist() for c in cut[:1]] == [[4, 3]]
    with pytest.raises(IndexError, match="client 2 of 2"):
        cut[2]
    assert np.shares_memory(cut[0], cut.order)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: iid(3, 4), "3 examples cannot be cut into 4 clients"),
        (lambda: iid(3, 0), "cut into 0 clients"),
        (lambda: iid(3, -1), "cut into -1 clients"),
        (lambda: by_class([], 1), "0 examples"),
        (lambda: by_class([0, 1, 2], 2), "2 single-class clients cannot hold 3 classes"),
        (lambda: by_class([0.0, np.nan], 1), "without NaN"),
        (lambda: by_class([[0, 1]], 1), r"shape \(1, 2\)"),
        (lambda: dirichlet([0, 1], 1, 0.0), "alpha"),
        (lambda: dirichlet([0, 1], 1, -1.0), "got -1"),
        (lambda: dirichlet([0, 1], 1, float("nan")), "got nan"),
        (lambda: dirichlet([0, 1], 1, float("inf")), "use iid"),
        (lambda: natural([]), "no examples"),
        (lambda: natural([1.0, np.nan]), "without NaN"),
        (lambda: Partition([0, 1], [1]), "sum to 1 for 2 examples"),
        (lambda: Partition([0, 1], [2, 0]), "at least one example"),
        (lambda: Partition([0, 0], [1, 1]), "names an example twice"),
        (lambda: iid(3, 2, key=-1), "key=-1"),
        (lambda: iid(3, 2, key=1 << 64), "2\\^64"),
    ],
)
def test_bad_input_is_refused_by_name(make, message):
    with pytest.raises(ValueError, match=message):
        make()


class Column(Sequence):
    """What `datasets.Dataset["label"]` is: rows from a file, all at once when sliced."""

    def __init__(self, rows):
        self.rows, self.asked = rows, []

    def __len__(self):
        return len(self.rows)

    def __getitem__(self, which):
        self.asked.append(which)
        return self.rows[which]


@pytest.mark.parametrize("kind", ["class", "dirichlet", "natural"])
def test_a_column_of_a_dataset_is_read_once_and_cut_as_its_array(kind):
    cuts = KINDS | {"natural": lambda y, clients, key: natural(y)}
    names = [f"speaker {n}" for n in LABELS] if kind == "natural" else LABELS.tolist()
    column = Column(names)
    cut, want = cuts[kind](column, 40, 3), cuts[kind](np.array(names), 40, 3)
    assert [c.tolist() for c in cut] == [c.tolist() for c in want]
    assert column.asked == [slice(None)]
    assert [c.tolist() for c in cuts[kind](np.array(names, object), 40, 3)] == [c.tolist() for c in want]


@pytest.mark.parametrize("missing", [None, float("nan")])
def test_a_label_that_is_missing_is_refused(missing):
    with pytest.raises(ValueError, match="without NaN or None"):
        natural(Column([1, 2, missing]))
