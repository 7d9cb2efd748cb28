"""The k largest: what a stable sort gives."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from narrowcast.numerics.largest import largest

NUMBERS = st.lists(
    st.one_of(st.sampled_from([0.0, -0.0, 1.0, -1.0, 1e-45]), st.floats(width=32, allow_nan=False)),
    min_size=1,
)


@settings(deadline=None)
@given(NUMBERS, st.data())
def test_they_are_the_first_of_a_stable_sort(numbers, data):
    k = data.draw(st.integers(1, len(numbers)))
    x = torch.tensor(numbers, dtype=torch.float32)
    sizes = np.abs(np.array(numbers, np.float32))
    assert largest(x, k).tolist() == sorted(np.argsort(-sizes, kind="stable")[:k].tolist())


@pytest.mark.parametrize("k", [1, 50, 1000, 25_000, 99_999, 100_000])
@pytest.mark.parametrize("step", [1e-8, 0.01, 1.0])
def test_many_with_few_and_many_equals(k, step):
    x = torch.round(torch.randn(100_000, generator=torch.Generator().manual_seed(0)) / step) * step
    truth = np.sort(np.argsort(-x.abs().numpy(), kind="stable")[:k])
    assert (largest(x, k).numpy() == truth).all()
    assert (largest(x.repeat_interleave(2)[::2], k).numpy() == truth).all()  # not contiguous


@pytest.mark.parametrize("k", [0, -1, 4])
def test_more_than_there_are_or_none_is_refused(k):
    with pytest.raises(ValueError, match="cannot take"):
        largest(torch.ones(3), k)
