"""Random bits that are the same on every machine: counter-based, keyed, never stored.

A *key* is an int of 64 bits. New keys come from `derive(key, purpose, ...)`, never from arithmetic on seeds,
so streams for different purposes cannot collide. Everything random in narrowcast that two machines must
agree on (A, the route of a client, the sampling of cohorts, theta0) comes from here.
"""

from __future__ import annotations

import hashlib
from functools import cache
from statistics import NormalDist
from typing import Any

import numpy as np
from numpy.typing import NDArray

from narrowcast.numerics import pool
from narrowcast.numerics.kernels import philox as _k
from narrowcast.numerics.purposes import TABLE_BITS as TABLE_BITS
from narrowcast.numerics.purposes import Key as Key
from narrowcast.numerics.purposes import Purpose as Purpose

MASK31, MASK32, MASK64 = 0x7FFFFFFF, 0xFFFFFFFF, 0xFFFFFFFFFFFFFFFF


def split(key: Key) -> tuple[np.uint32, np.uint32]:
    """The two words of a key, as kernels take it."""
    if not 0 <= key <= MASK64:
        raise ValueError(f"a key is an int of 64 bits, got {key}")
    return np.uint32(key & MASK32), np.uint32(key >> 32)


def philox(counter: tuple[int, int, int, int], key: Key) -> tuple[int, int, int, int]:
    """Philox4x32-10 in plain Python: the definition that the compiled one is held to."""
    c0, c1, c2, c3 = counter
    k0, k1 = key & MASK32, key >> 32
    for _ in range(10):
        p0, p1 = c0 * 0xD2511F53, c2 * 0xCD9E8D57
        c0, c1, c2, c3 = (p1 >> 32) ^ c1 ^ k0, p1 & MASK32, (p0 >> 32) ^ c3 ^ k1, p0 & MASK32
        k0, k1 = (k0 + 0x9E3779B9) & MASK32, (k1 + 0xBB67AE85) & MASK32
    return c0, c1, c2, c3


def derive(key: Key, purpose: Purpose, a: int = 0, b: int = 0) -> Key:
    """A new key for (purpose, a, b): a below 2^64, b below 2^31 (above lie the streams)."""
    if not (0 <= key <= MASK64 and 0 <= a <= MASK64 and 0 <= b <= MASK31):
        raise ValueError(f"derive takes 0 <= key, a < 2^64 and 0 <= b < 2^31, got key={key}, a={a}, b={b}")
    return int(_k.derived(int(purpose), a & MASK32, a >> 32, b, key & MASK32, key >> 32))


def derive_many(key: Key, purpose: Purpose, a: int, b: NDArray[np.int64]) -> list[Key]:
    """[derive(key, purpose, a, i) for i in b], compiled."""
    if len(b) and not (b.min() >= 0 and b.max() <= MASK31):
        raise ValueError(f"derive takes 0 <= b < 2^31, got {b.min()} .. {b.max()}")
    out = np.empty(len(b), np.uint64)
    low, high = np.uint32(a & MASK32), np.uint32(a >> 32)
    pool.run(_k.fill_derived, len(b), out, np.uint32(purpose), low, high, b, *split(key), grain=4096)
    keys: list[Key] = out.tolist()
    return keys


def below(key: Key, n: int) -> int:
    """A number in {0 .. n-1}: 64 random bits modulo n (bias under n / 2^64)."""
    return key % n


def words(key: Key, purpose: Purpose, count: int, first_block: int = 0) -> NDArray[np.uint32]:
    """`count` uniform uint32 words of a stream, from block `first_block` (4 words a block)."""
    out: NDArray[np.uint32] = np.empty(4 * -(-count // 4), np.uint32)
    pool.run(_k.fill_words, out.size // 4, out, first_block, np.uint32(purpose), *split(key), grain=4096)
    return out[:count]


def uniforms(key: Key, purpose: Purpose, count: int) -> NDArray[np.float64]:
    """`count` numbers in [0, 1), multiples of 2^-32."""
    return words(key, purpose, count).astype(np.float64) * 2.0**-32


_TABLE_DIGEST = "fcabc0d5e53984f1"


@cache
def normal_table() -> NDArray[np.float32]:
    """|z| of 2^12 equally likely standard normals, scaled to variance 1: the same bits on every machine.

    The quantiles are rounded to multiples of 2^-20, far coarser than the last-bit differences between
    mathematics libraries, and the digest is checked.
    """
    size = 1 << TABLE_BITS
    z = np.array([NormalDist().inv_cdf(0.5 + (i + 0.5) / (2 * size)) for i in range(size)])
    z /= np.sqrt(np.mean(np.square(z)))
    table: NDArray[np.float32] = (np.round(z * 2.0**20) * 2.0**-20).astype(np.float32)
    digest = hashlib.sha256(table.astype("<f4").tobytes()).hexdigest()[:16]
    if digest != _TABLE_DIGEST:
        raise RuntimeError(
            f"the table of normals has digest {digest}, expected {_TABLE_DIGEST}: this machine's mathematics "
            "library rounds differently, and its A would differ from other machines'. Please report this."
        )
    table.setflags(write=False)
    return table


def normals(key: Key, purpose: Purpose, count: int) -> NDArray[np.float32]:
    """`count` standard normals: the top bit of a word is the sign, the next 12 look up `normal_table`."""
    w = words(key, purpose, count)
    z = normal_table()[(w >> np.uint32(31 - TABLE_BITS)) & np.uint32((1 << TABLE_BITS) - 1)]
    signed: NDArray[np.float32] = np.where(w >> np.uint32(31), -z, z)
    return signed


def bijection_keys(key: Key) -> NDArray[np.uint64]:
    """The three rounds of a keyed bijection: (odd multiplier, addend) each."""
    keys = np.array([derive(key, Purpose.BIJECTION, r) for r in range(6)], np.uint64)
    keys[::2] |= np.uint64(1)
    return keys


def bijection_args(key: Key, n: int) -> tuple[Any, ...]:
    """(n, bits, mask, keys) for `kernels.philox.permute_below`: a bijection of {0 .. n-1}."""
    bits = max(1, (n - 1).bit_length())
    return n, bits, np.uint64((1 << bits) - 1), bijection_keys(key)


def _check_range(n: int, start: int, stop: int) -> None:
    if not 0 <= start <= stop <= n < 1 << 62:
        raise ValueError(f"need 0 <= start <= stop <= n < 2^62, got start={start}, stop={stop}, n={n}")


def scattered(key: Key, n: int, start: int = 0, stop: int | None = None) -> NDArray[np.int64]:
    """pi(start) .. pi(stop - 1) for the quick bijection that places the tiles of A.

    It spreads well enough for that, but not every permutation is equally likely: people are drawn with
    `permuted`.
    """
    stop = n if stop is None else stop
    _check_range(n, start, stop)
    out = np.empty(stop - start, np.int64)
    pool.run(_k.fill_scattered, out.size, out, start, *bijection_args(key, n), grain=8192)
    return out


def permuted(key: Key, n: int, start: int = 0, stop: int | None = None) -> NDArray[np.int64]:
    """pi(start) .. pi(stop - 1) for a fair permutation pi of {0 .. n-1}; no table is made.

    Swap-or-not (Hoang, Morris, Rogaway 2012). After r rounds q elements are within about
    n^1.5 ((n + q) / 2n)^(r/2) of uniform, so 64 rounds and 8 more a bit leave nothing to see.
    """
    stop = n if stop is None else stop
    _check_range(n, start, stop)
    rounds = 64 + 8 * n.bit_length()
    pivots, keys = np.empty(rounds, np.int64), np.empty(rounds, np.uint64)
    _k.swap_or_not(pivots, keys, max(1, n), np.uint32(Purpose.PIVOT), *split(key))
    out = np.empty(stop - start, np.int64)
    pool.run(_k.fill_permuted, out.size, out, start, n, pivots, keys, grain=1024)
    return out
