"""Butterflies that stay in registers: H_n on n rows at any stride, H_64 along a row, and a strip's rows with
their random signs on the way in or out.

The compiler makes no vectors of butterflies between neighbours in a row, nor of rows at a stride that it
does not know; so the vectors are written out here, and the compiler cuts them to what the CPU has. Arrays are
named by their `address`.
"""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba import njit, types
from numba.extending import intrinsic

from narrowcast.numerics.kernels.memory import pointer_at, prefetch
from narrowcast.numerics.kernels.strip import LANES

WIDE = 16  # floats at a time: a line of the cache
FLOATS = ir.VectorType(ir.FloatType(), WIDE)
WORDS = ir.VectorType(ir.IntType(32), WIDE)
HALF = 8  # where eight rows are held at once: half of sixteen registers, if they have 256 bits
FLOATS8 = ir.VectorType(ir.FloatType(), HALF)
WORDS8 = ir.VectorType(ir.IntType(32), HALF)
SIGN = 0x80000000


def _across(builder: Any, v: list[Any]) -> list[Any]:
    """H_n on n vectors: levels 1, 2, 4, ... of adding and subtracting whole vectors."""
    v, step = list(v), 1
    while step < len(v):
        for i in (i for i in range(len(v)) if not i & step):
            v[i], v[i + step] = builder.fadd(v[i], v[i + step]), builder.fsub(v[i], v[i + step])
        step *= 2
    return v


def _within(builder: Any, v: Any) -> Any:
    """H_16 along a vector: (a, b) -> (a + b, a - b) is the vector with its pairs swapped plus itself with the
    second of each pair negated. Swapping and negating are exact: the bits are the butterfly's."""
    step = 1
    while step < WIDE:
        order = ir.Constant(WORDS, [i ^ step for i in range(WIDE)])
        second = ir.Constant(WORDS, [SIGN if i & step else 0 for i in range(WIDE)])
        swapped = builder.shuffle_vector(v, ir.Constant(FLOATS, ir.Undefined), order)
        v = builder.fadd(swapped, builder.bitcast(builder.xor(builder.bitcast(v, WORDS), second), FLOATS))
        step *= 2
    return v


def _rows(count: int) -> Any:
    """y[q + i k :][:16] = H_count of the rows x[p + i h :][:16], i < count; y may be x, row by row."""

    @intrinsic
    def transform(typingctx, y, q, k, x, p, h):
        def codegen(context, builder, signature, args):
            def row(array: int, i: int) -> Any:
                first, stride = args[array + 1], args[array + 2]
                place = builder.add(first, builder.mul(stride, stride.type(i)))
                return pointer_at(builder, args[array], place, FLOATS)

            v = [builder.load(row(3, i), align=4) for i in range(count)]
            for i, value in enumerate(_across(builder, v)):
                builder.store(value, row(0, i), align=4)
            return context.get_dummy_value()

        return types.void(*[types.intp] * 6), codegen

    return transform


rows2, rows4, rows8 = _rows(2), _rows(4), _rows(8)


@intrinsic
def row64(typingctx, x, p):
    """x[p : p + 64] <- H_64 of it: levels h = 1 .. 32, in order."""

    def codegen(context, builder, signature, args):
        x, p = args
        at = [pointer_at(builder, x, builder.add(p, p.type(i)), FLOATS) for i in range(0, LANES, WIDE)]
        v = [_within(builder, builder.load(place, align=4)) for place in at]
        for value, place in zip(_across(builder, v), at, strict=True):
            builder.store(value, place, align=4)
        return context.get_dummy_value()

    return types.void(types.intp, types.intp), codegen


def _spread(builder: Any, word: Any) -> Any:
    """A 32-bit word in all places of a vector."""
    one = builder.insert_element(ir.Constant(WORDS8, ir.Undefined), word, ir.IntType(32)(0))
    return builder.shuffle_vector(one, ir.Constant(WORDS8, ir.Undefined), ir.Constant(WORDS8, [0] * HALF))


def _flip(builder: Any, v: Any, mask: Any) -> Any:
    return builder.bitcast(builder.xor(builder.bitcast(v, WORDS8), mask), FLOATS8)


def _signed(count: int, before: str, after: str, add: bool) -> Any:
    """y[q + 64 k i + j] = (or +=) H_count of x[p + 64 k i + j], i < count, with signs before and after, for
    64 / count lanes j from `lane` on: eight vectors are held at once.

    Row i is row r + k i of a strip. "row" signs are bit r + k i of `bits`; "column" signs are bit
    (r + k i) % 32 of words[at + 64 ((r + k i) // 32) + j]. Column signs are on the memory's side: there the
    same rows are fetched from the address `next` on, which are wanted soon, a few lines at a time, so that
    they come while this computes.
    """

    @intrinsic
    def transform(typingctx, y, q, x, p, k, r, lane, bits, words, at, next):
        def codegen(context, builder, signature, args):
            names = ("y", "q", "x", "p", "k", "r", "lane", "bits", "words", "at", "next")
            given = dict(zip(names, args, strict=True))
            number, short, long = given["q"].type, ir.IntType(32), ir.IntType(64)

            def at(array: str, first: Any, j: int, to: Any) -> Any:
                index = builder.add(first, builder.add(given["lane"], number(j)))
                return pointer_at(builder, given[array], index, to)

            def place(array: str, first: Any, i: int, j: int, to: Any = FLOATS8) -> Any:
                row = builder.add(first, builder.mul(given["k"], number(LANES * i)))
                return at(array, row, j, to)

            def mask(which: str, i: int, j: int) -> Any:
                row = builder.add(given["r"], builder.mul(given["k"], number(i)))
                if which == "row":
                    bit = builder.and_(builder.lshr(given["bits"], row), long(1))
                    return _spread(builder, builder.shl(builder.trunc(bit, short), short(31)))
                half = builder.add(given["at"], builder.mul(builder.lshr(row, number(5)), number(LANES)))
                shift = builder.sub(short(31), builder.and_(builder.trunc(row, short), short(31)))
                found = builder.load(at("words", half, j, WORDS8), align=4)
                return builder.and_(
                    builder.shl(found, _spread(builder, shift)), ir.Constant(WORDS8, [SIGN] * HALF)
                )

            for j in range(0, LANES // count, HALF):
                if "column" in (before, after):
                    for i in range(count):
                        prefetch(builder, place("next", number(0), i, j, ir.IntType(8)))
                v = [builder.load(place("x", given["p"], i, j), align=4) for i in range(count)]
                if before:
                    v = [_flip(builder, value, mask(before, i, j)) for i, value in enumerate(v)]
                v = _across(builder, v)
                if after:
                    v = [_flip(builder, value, mask(after, i, j)) for i, value in enumerate(v)]
                for i, value in enumerate(v):
                    to = place("y", given["q"], i, j)
                    total = builder.fadd(builder.load(to, align=4), value) if add else value
                    builder.store(total, to, align=4)
            return context.get_dummy_value()

        return types.void(*[types.intp] * 7, types.uint64, *[types.intp] * 3), codegen

    return transform


def _sized(before: str, after: str, add: bool = False) -> Any:
    """`_signed` over all 64 lanes, for as many rows as `count` says: 1, 2, 4 or 8."""
    one, two, four, eight = (_signed(count, before, after, add) for count in (1, 2, 4, 8))

    @njit(inline="always")
    def over_lanes(count, y, q, x, p, k, r, bits, words, at, next):
        if count == 8:
            for lane in range(0, LANES, LANES // 8):
                eight(y, q, x, p, k, r, lane, bits, words, at, next)
        elif count == 4:
            for lane in range(0, LANES, LANES // 4):
                four(y, q, x, p, k, r, lane, bits, words, at, next)
        elif count == 2:
            for lane in range(0, LANES, LANES // 2):
                two(y, q, x, p, k, r, lane, bits, words, at, next)
        else:
            one(y, q, x, p, k, r, 0, bits, words, at, next)

    return over_lanes


# What expanding does with rows of a strip: x in with the signs G, out with the signs B, or both at once.
row_in, column_out, row_in_column_out = _sized("row", ""), _sized("", "column"), _sized("row", "column")
# And projecting: in with the signs B, added up with the signs G, or both at once.
column_in, row_added = _sized("column", ""), _sized("", "row", add=True)
column_in_row_added = _sized("column", "row", add=True)
