"""Random bits in Triton: Philox's streams as `kernels.philox` makes them, the bijection, and its inverse."""

import triton
import triton.language as tl

from narrowcast.numerics.purposes import Purpose

M0, M1 = tl.constexpr(0xD2511F53), tl.constexpr(0xCD9E8D57)
W0, W1 = tl.constexpr(0x9E3779B9), tl.constexpr(0xBB67AE85)
STREAM = tl.constexpr(0x80000000)  # the fourth counter word
ROW, COLUMN = tl.constexpr(int(Purpose.SIGNS_ROW)), tl.constexpr(int(Purpose.SIGNS_COLUMN))

# A subspace in a row of int64: rho, two words of the key, (multiplier, addend) of three rounds, and the
# inverses of the multipliers mod 2^64.
RHO, KEY0, KEY1 = tl.constexpr(0), tl.constexpr(1), tl.constexpr(2)
ROUNDS, INVERSES, META = tl.constexpr(3), tl.constexpr(9), tl.constexpr(12)


@triton.jit
def stream_block(number, stream: tl.constexpr, k0, k1):
    """Blocks `number` (int64) of a stream, four words each."""
    c0, c1 = number.to(tl.uint32), (number >> 32).to(tl.uint32)
    nothing = c0 ^ c0
    c2, c3 = nothing + stream, nothing + STREAM
    m0, m1 = nothing + M0, nothing + M1
    for _ in tl.static_range(10):
        a0, a2 = c0, c2
        c0 = tl.umulhi(a2, m1) ^ c1 ^ k0
        c2 = tl.umulhi(a0, m0) ^ c3 ^ k1
        c1 = a2 * m1
        c3 = a0 * m0
        k0 = (k0 + W0).to(tl.uint32)
        k1 = (k1 + W1).to(tl.uint32)
    return c0, c1, c2, c3


@triton.jit
def column_signs(rows, k0, k1, GROUP: tl.constexpr):
    """(64, 64) B, as the lowest bits, of groups of GROUP <= 32 rows that begin at `rows` (64 / GROUP,); the
    rows of a group share a row of words."""
    blocks = (rows // 32 * 16)[:, None] + tl.arange(0, 16)[None, :]
    w0, w1, w2, w3 = stream_block(tl.reshape(blocks, [1024 // GROUP]), COLUMN, k0, k1)
    words = tl.reshape(tl.join(tl.join(w0, w2), tl.join(w1, w3)), [64 // GROUP, 1, 64])
    bit = (rows % 32).to(tl.uint32)[:, None] + tl.arange(0, GROUP).to(tl.uint32)[None, :]
    return tl.reshape(words >> bit[:, :, None], [64, 64])


@triton.jit
def row_signs(rows, k0, k1, GROUP: tl.constexpr):
    """(64, 1) G of the same rows."""
    w0, w1, w2, w3 = stream_block(rows // 128, ROW, k0, k1)
    which = rows // 32 % 4
    word = tl.where(which < 2, tl.where(which == 0, w0, w1), tl.where(which == 2, w2, w3))
    bit = (rows % 32).to(tl.uint32)[:, None] + tl.arange(0, GROUP).to(tl.uint32)[None, :]
    return tl.reshape(word[:, None] >> bit, [64, 1])


@triton.jit
def flip(x, bits):
    """x, negated where the lowest bit is set."""
    return (x.to(tl.uint32, bitcast=True) ^ (bits << 31)).to(tl.float32, bitcast=True)


@triton.jit
def permute(x, half, mask, meta):
    for r in tl.static_range(3):
        x = (x * tl.load(meta + ROUNDS + 2 * r) + tl.load(meta + ROUNDS + 2 * r + 1)) & mask
        x = x ^ (x >> half)
    return x


@triton.jit
def places_of(t, tiles, half, mask, meta):
    """pi(t): the bijection of 2^bits numbers, walked until all have landed below `tiles`."""
    x = permute(t, half, mask, meta)
    while tl.max(x, 0) >= tiles:
        x = tl.where(x >= tiles, permute(x, half, mask, meta), x)
    return x


@triton.jit
def unpermute(x, half, mask, meta):
    """The inverse: x ^ x >> half undoes itself, since half is at least half of the bits."""
    for i in tl.static_range(3):
        x = x ^ (x >> half)
        x = ((x - tl.load(meta + ROUNDS + 5 - 2 * i)) * tl.load(meta + INVERSES + 2 - i)) & mask
    return x


@triton.jit
def tiles_at(p, tiles, half, mask, meta):
    """pi^-1(p)."""
    x = unpermute(p, half, mask, meta)
    while tl.max(x, 0) >= tiles:
        x = tl.where(x >= tiles, unpermute(x, half, mask, meta), x)
    return x
