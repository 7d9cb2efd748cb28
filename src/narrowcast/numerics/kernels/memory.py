"""What numba has no words for: eight floats at once, stores that go past the caches, prefetches.

A plain store first reads the line that it is about to overwrite, a third of the traffic of y = b + s. A
streaming store does not, but leaves y outside the caches: it pays where y is larger than they are. Whoever
uses them calls `fence` before another thread may read y.
"""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from narrowcast.numerics.kernels.strip import STRIP

ALIGNED = 32  # bytes on which a streamed array must lie
EIGHT = ir.VectorType(ir.FloatType(), 8)


def _pointer(context: Any, builder: Any, kind: Any, array: Any, index: Any, to: Any) -> Any:
    """The address of array[index], as a pointer to `to`."""
    data = context.make_array(kind)(context, builder, array).data
    return builder.bitcast(builder.gep(data, [index]), to.as_pointer())


@intrinsic
def address(typingctx, array):
    """Where an array's numbers begin, for as long as whoever asks keeps the array.

    Numba counts references to an array, by atomic additions, wherever it is sliced or handed to a function.
    """

    def codegen(context, builder, signature, args):
        data = context.make_array(signature.args[0])(context, builder, args[0]).data
        return builder.ptrtoint(data, context.get_value_type(types.intp))

    return types.intp(array), codegen


def pointer_at(builder: Any, array: Any, index: Any, to: Any) -> Any:
    """Number `index` of what begins at the address `array`, each of four bytes, as a pointer to `to`."""
    place = builder.add(array, builder.shl(index, index.type(2)))
    return builder.inttoptr(place, to.as_pointer())


def _adder(stream: bool) -> Any:
    """y = b + s on the strips from y[i], b[j] and s[0] on; y may be b. Numba would count references here."""

    @intrinsic
    def add(typingctx, y, i, b, j, s):
        def codegen(context, builder, signature, args):
            number = context.get_value_type(types.intp)
            places = ((0, args[1]), (2, args[3]), (4, number(0)))
            with cgutils.for_range_slice(builder, number(0), number(STRIP), number(8), number) as (p, _):
                to, left, right = (
                    _pointer(context, builder, signature.args[k], args[k], builder.add(first, p), EIGHT)
                    for k, first in places
                )
                total = builder.fadd(builder.load(left, align=4), builder.load(right, align=4))
                store = builder.store(total, to, align=ALIGNED if stream else 4)
                if stream:
                    store.set_metadata("nontemporal", builder.module.add_metadata([ir.IntType(32)(1)]))
            return context.get_dummy_value()

        return types.void(y, types.intp, b, types.intp, s), codegen

    return add


add_strip, stream_strip = _adder(False), _adder(True)


@intrinsic
def fence(typingctx):
    """Whatever was stored before is seen by all before anything that is stored after."""

    def codegen(context, builder, signature, args):
        builder.fence("seq_cst")
        return context.get_dummy_value()

    return types.void(), codegen


def prefetch(builder: Any, place: Any) -> None:
    """Bring the line of a place into the second cache; harmless beyond the end of an array."""
    byte, number = ir.IntType(8), ir.IntType(32)
    kind = ir.FunctionType(ir.VoidType(), [byte.as_pointer(), number, number, number])
    call = cgutils.get_or_insert_function(builder.module, kind, "llvm.prefetch.p0i8")
    builder.call(call, [place, number(0), number(2), number(1)])  # to read, not into the first, data
