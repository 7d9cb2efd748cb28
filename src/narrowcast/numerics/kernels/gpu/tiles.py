"""The rotation's whole tiles in Triton, for V = 64 lanes: base + sum_k A_k x_k, and A^T g without atomics.

Unroll the circle of windows to a line of D numbers: the tile at place p stands at p n V, and number u of the
line belongs to coordinate (rho + u) mod d. `rotate` writes a band of the line, place by place (for which it
needs the bijection's inverse), and `fold` adds those of the band's numbers that share a coordinate, in the
order of the line. Every sum has its order, whatever the band's length and the device.

Sizes below 2^31 arrive as int32: they are widened before anything is multiplied.
"""

import triton
import triton.language as tl

from narrowcast.numerics.kernels.gpu.bits import (
    KEY0,
    KEY1,
    META,
    RHO,
    column_signs,
    flip,
    places_of,
    row_signs,
    tiles_at,
)


@triton.jit
def butterflies(s, n: tl.constexpr):
    """H_n on each n of the 64 rows of s, levels h = 1, 2, 4, ... of adding and subtracting.

    Each level pairs neighbours, and moves the bit that tells them apart to the front of the row's number: the
    next level's pairs are neighbours then, and after six levels all rows are back in their places.
    """
    for level in tl.static_range(6):
        if (1 << level) < n:
            a, b = tl.split(tl.permute(tl.reshape(s, [32, 2, 64]), (0, 2, 1)))
            s = tl.reshape(tl.permute(tl.join(a + b, a - b), (2, 0, 1)), [64, 64])
    if n > 1 and n < 64:
        s = tl.reshape(tl.permute(tl.reshape(s, [n, 64 // n, 64]), (1, 0, 2)), [64, 64])
    return s


@triton.jit(do_not_specialize=["d", "tiles", "half", "mask", "K"])
def expand(out, base, xs, metas, d, tiles, half, mask, K, n: tl.constexpr):
    """out = base + A_1 x_1 + ... + A_K x_K, in this order, on the whole tiles; out may be base.

    xs (K, d + 64 n) are scaled, and followed by their own beginnings, so that no window wraps.
    """
    T: tl.constexpr = 64 // n
    d, tiles, half, mask = d.to(tl.int64), tiles.to(tl.int64), half.to(tl.int64), mask.to(tl.int64)
    strip, lane = tl.program_id(0).to(tl.int64), tl.arange(0, 64)[None, :]
    t = tl.minimum(strip * T + tl.arange(0, T), tiles - 1)
    halves = strip * 64 + 32 * tl.arange(0, 2)
    row = tl.arange(0, 64)  # in 32 bits, and so are offsets within the strip: registers
    at = row[:, None] * 64 + lane
    there = None if n == 64 else (row < tiles * n - strip * 64)[:, None]
    out, base = out + strip * 4096, base + strip * 4096
    total = tl.load(base + at, there)
    for k in range(K):
        meta, x = metas + k * META, xs + tl.cast(k, tl.int64) * (d + 64 * n)
        k0, k1 = tl.load(meta + KEY0).to(tl.uint32), tl.load(meta + KEY1).to(tl.uint32)
        window = (tl.load(meta + RHO) + places_of(t, tiles, half, mask, meta) * (64 * n)) % d
        rows = tl.reshape(window[:, None] + 64 * tl.arange(0, n)[None, :], [64, 1])
        s = butterflies(flip(tl.load(x + (rows + lane)), row_signs(halves, k0, k1, 32)), n)
        total += flip(s, column_signs(halves, k0, k1, 32))
    tl.store(out + at, total, there)


@triton.jit(do_not_specialize=["first", "tiles", "half", "mask", "scale"])
def rotate(line, g, meta, first, tiles, half, mask, scale, n: tl.constexpr):
    """Places `first` and on of the line: G H B g / sqrt(n) of the tiles there, 64 rows a program."""
    T: tl.constexpr = 64 // n
    GROUP: tl.constexpr = 32 if n == 64 else n
    first, tiles, half, mask = first.to(tl.int64), tiles.to(tl.int64), half.to(tl.int64), mask.to(tl.int64)
    strip, lane = tl.program_id(0).to(tl.int64), tl.arange(0, 64)[None, :]
    k0, k1 = tl.load(meta + KEY0).to(tl.uint32), tl.load(meta + KEY1).to(tl.uint32)
    p = tl.minimum(first + strip * T + tl.arange(0, T), tiles - 1)
    groups = tiles_at(p, tiles, half, mask, meta)[:, None] * n + GROUP * tl.arange(0, n // GROUP)[None, :]
    groups = tl.reshape(groups, [64 // GROUP])
    rows = tl.reshape(groups[:, None] + tl.arange(0, GROUP)[None, :], [64, 1])
    y = tl.load(g + (rows * 64 + lane)).to(tl.float32)
    s = butterflies(flip(y, column_signs(groups, k0, k1, GROUP)), n)
    row = strip * 64 + tl.arange(0, 64)
    there = None if n == 64 else (first * n + row < tiles * n)[:, None]
    tl.store(line + (row[:, None] * 64 + lane), flip(s, row_signs(groups, k0, k1, GROUP)) * scale, there)


@triton.jit(do_not_specialize=["rho", "d", "first", "count", "parts"])
def fold(sums, line, rho, d, first, count, parts, BLOCK: tl.constexpr):
    """sums[p, c] += the numbers u = first .. first + count of the line with (rho + u) mod d = c and (rho + u)
    // d mod parts = p, in their order; sums is (parts, d)."""
    rho, d, first, count = rho.to(tl.int64), d.to(tl.int64), first.to(tl.int64), count.to(tl.int64)
    part, parts = tl.program_id(1).to(tl.int64), parts.to(tl.int64)
    c = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    total = tl.load(sums + part * d + c, c < d, 0.0)
    wrap = (rho + first) // d
    wrap += (part - wrap % parts + parts) % parts
    while wrap * d <= rho + first + count - 1:
        u = wrap * d + c - rho - first
        total += tl.load(line + u, (u >= 0) & (u < count) & (c < d), 0.0)
        wrap += parts
    tl.store(sums + part * d + c, total, c < d)
