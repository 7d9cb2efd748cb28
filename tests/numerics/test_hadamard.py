"""The laws of fwht: the kernel is its plain twin bit for bit, and both are the Hadamard matrix."""

import numpy as np
import pytest
import torch
from scipy.linalg import hadamard

from narrowcast.numerics import pool
from narrowcast.numerics.hadamard import fwht, fwht_plain

ORDERS = range(21)
UNIT = 2.0**-24  # half the distance of neighbouring float32: the error of one operation


def vector(size, seed=0):
    return torch.randn(size, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("m", ORDERS)
def test_fwht_equals_fwht_plain_bit_for_bit(m):
    for seed, scale in enumerate((1.0, 1e-42, 1e30)):  # 1e-42: denormal numbers
        x = scale * vector(1 << m, seed)
        assert fwht(x).numpy().tobytes() == fwht_plain(x).numpy().tobytes()


@pytest.mark.parametrize("threads", [1, 2, 3, 5])
@pytest.mark.parametrize("m", [11, 12, 13, 17, 19, 20])
def test_no_bit_depends_on_the_number_of_threads(m, threads):
    pool.set_threads(threads)
    x = vector(1 << m)
    assert fwht(x).numpy().tobytes() == fwht_plain(x).numpy().tobytes()


@pytest.mark.parametrize("m", range(12))
@pytest.mark.parametrize("transform", [fwht, fwht_plain])
def test_both_are_the_hadamard_matrix(transform, m):
    """m additions a number: |error| <= m u sum|x|, to first order."""
    x = vector(1 << m)
    exact = hadamard(1 << m).astype(np.float64) @ x.double().numpy()
    assert (
        np.abs(transform(x).double().numpy() - exact).max() <= (m + 1) * UNIT * x.double().abs().sum().item()
    )


@pytest.mark.parametrize("m", ORDERS)
def test_column_k_of_h_is_the_parity_of_i_and_k(m):
    """H[i, k] = (-1)^popcount(i & k), exactly, for orders where H itself would not fit."""
    i = np.arange(1 << m)
    for k in {0, 1, (1 << m) // 3, (1 << m) - 1} & set(range(1 << m)):
        e = torch.zeros(1 << m)
        e[k] = 1
        assert np.array_equal(fwht(e).numpy(), 1 - 2.0 * (np.bitwise_count(i & k) % 2))


@pytest.mark.parametrize("m", ORDERS)
def test_h_squared_is_two_to_the_m(m):
    """Exactly, where all sums of small integers fit 24 bits, and within 2 m roundings beyond."""
    x = torch.randint(-8, 9, (1 << m,), generator=torch.Generator().manual_seed(m)).float()
    twice = fwht(fwht(x)) / 2**m
    assert (
        torch.equal(twice, x)
        if m <= 10
        else torch.linalg.norm(twice - x) <= 2 * m * UNIT * torch.linalg.norm(x)
    )


@pytest.mark.parametrize("m", [3, 13])
def test_fwht_plain_transforms_the_last_axis_of_any_dtype(m):
    x = torch.stack([vector(1 << m, seed) for seed in range(6)]).double().reshape(2, 3, -1)
    y = fwht_plain(x)
    assert y.dtype == torch.float64
    assert torch.equal(y[1, 2], fwht_plain(x[1, 2]))
    assert torch.allclose(fwht_plain(y), 2.0**m * x, rtol=0, atol=1e-11 * 2**m)


@pytest.mark.parametrize("size", [1, 64, 4096, 1 << 15])
def test_the_input_is_left_as_it_was_and_the_output_has_memory_of_its_own(size):
    x = vector(size)
    before = x.clone()
    for y in (fwht(x), fwht(x.requires_grad_())):
        assert not y.requires_grad
        y.fill_(7)
        assert torch.equal(x.detach(), before)


def test_strided_input_is_transformed_like_its_copy():
    x = vector(1 << 14)[::4]
    assert torch.equal(fwht(x), fwht(x.contiguous()))
    assert torch.equal(fwht(torch.ones(1).expand(8192)), fwht(torch.ones(8192)))


@pytest.mark.parametrize("shape", [(0,), (3,), (12,), (4095,), (4097,), (), (2, 2), (1, 4)], ids=str)
def test_a_shape_that_is_no_vector_of_a_power_of_two_is_refused(shape):
    with pytest.raises(ValueError, match="power of two"):
        fwht(torch.zeros(shape))


@pytest.mark.parametrize(
    "dtype", [torch.float64, torch.float16, torch.bfloat16, torch.int32, torch.complex64]
)
def test_a_dtype_other_than_float32_is_refused(dtype):
    with pytest.raises(ValueError, match="float32"):
        fwht(torch.zeros(4, dtype=dtype))


def test_a_device_other_than_the_cpu_is_refused():
    with pytest.raises(ValueError, match="CPU"):
        fwht(torch.zeros(4, device="meta"))
