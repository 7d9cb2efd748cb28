"""The order-free digest in Triton: `kernels.mixing` on a device."""

import triton
import triton.language as tl

P1, P2 = tl.constexpr(0x9E3779B97F4A7C15 - (1 << 64)), tl.constexpr(0xD6E8FEB86659FD93 - (1 << 64))
KEY = tl.constexpr(5)
LOW35, LOW32 = tl.constexpr((1 << 35) - 1), tl.constexpr((1 << 32) - 1)


@triton.jit(do_not_specialize=["size", "first"])
def sum_mixed(sums, pairs, size, first, BLOCK: tl.constexpr):
    """sums[b] = the sum of mix(pair_i, first + i) over the pairs i of block b, mod 2^64."""
    i = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    x = (tl.load(pairs + i, i < size, 0) ^ ((first.to(tl.int64) + i) * P1 + KEY)) * P2
    x = (x ^ ((x >> 32) & LOW32)) * P1
    x = x ^ ((x >> 29) & LOW35)
    tl.store(sums + tl.program_id(0), tl.sum(tl.where(i < size, x, 0)))
