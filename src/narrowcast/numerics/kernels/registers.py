"""Butterflies that stay in registers: H_n on n rows at any stride, and H_64 along a row.

The compiler makes no vectors of butterflies between neighbours in a row, nor of rows at a stride that it
does not know; both are written out here, in vectors of sixteen floats that it cuts to what the CPU has.
"""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from narrowcast.numerics.kernels.butterfly import LANES
from narrowcast.numerics.kernels.memory import pointer

WIDE = 16
FLOATS = ir.VectorType(ir.FloatType(), WIDE)
WORDS = ir.VectorType(ir.IntType(32), WIDE)


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
        second = ir.Constant(WORDS, [0x80000000 if i & step else 0 for i in range(WIDE)])
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
                return pointer(context, builder, signature.args[array], args[array], place, FLOATS)

            v = [builder.load(row(3, i), align=4) for i in range(count)]
            for i, value in enumerate(_across(builder, v)):
                builder.store(value, row(0, i), align=4)
            return context.get_dummy_value()

        return types.void(y, types.intp, types.intp, x, types.intp, types.intp), codegen

    return transform


rows2, rows4, rows8 = _rows(2), _rows(4), _rows(8)


@intrinsic
def row64(typingctx, x, p):
    """x[p : p + 64] <- H_64 of it: levels h = 1 .. 32, in order."""

    def codegen(context, builder, signature, args):
        at = [
            pointer(
                context, builder, signature.args[0], args[0], builder.add(args[1], args[1].type(i)), FLOATS
            )
            for i in range(0, LANES, WIDE)
        ]
        v = [_within(builder, builder.load(place, align=4)) for place in at]
        for value, place in zip(_across(builder, v), at, strict=True):
            builder.store(value, place, align=4)
        return context.get_dummy_value()

    return types.void(x, types.intp), codegen
