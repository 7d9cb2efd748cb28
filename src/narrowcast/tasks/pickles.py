"""Reading a pickle of plain containers and byte arrays without running anything it asks for.

A pickle names functions and calls them. Here every name that an array of bytes needs leads to an inert
stand-in below, which only notes its arguments, and any other name is refused; numpy itself is never called
with what the file says.
"""

from __future__ import annotations

import io
import math
import pickle
import pickletools
from pathlib import Path
from typing import Any, NoReturn

import numpy as np

from narrowcast.tasks.files import Bytes, DataError, reading


class _Dtype:
    """Stands in for numpy.dtype(code, align, copy); its state is about byte order, which bytes lack."""

    def __init__(self, code: object = None, *_: object) -> None:
        self.code = code

    def __setstate__(self, state: object) -> None:
        pass


class PickledArray:
    """Stands in for numpy.ndarray: what the pickle says its shape, type and bytes are, unchecked."""

    state: Any = None

    def __setstate__(self, state: object) -> None:
        self.state = state

    def checked(self, shape: tuple[int, ...]) -> Bytes:
        """The array, when it is one of bytes in C order of this shape (-1: any number of rows)."""
        match self.state:
            case (int(), (int(rows), *tail), _Dtype(code=("u1" | b"u1")), False | 0, bytes(data)):
                if (
                    tuple(tail) == shape[1:]
                    and shape[0] in (-1, rows)
                    and math.prod((rows, *tail)) == len(data) > 0
                ):
                    return np.frombuffer(bytearray(data), np.uint8).reshape(rows, *tail)
        raise DataError(f"the pickled array is not uint8 in C order of shape {shape}")


class _Reconstruct:
    """Stands in for numpy's _reconstruct(type, shape, code), which makes an empty array to be filled."""

    def __new__(cls, *_: object) -> Any:
        return PickledArray()

    def __setstate__(self, state: object) -> NoReturn:  # else BUILD could set attributes of this very class
        raise pickle.UnpicklingError("state for a function")


class _Encode:
    """Stands in for _codecs.encode(text, "latin1"): how Python 3 writes bytes in old pickles."""

    def __new__(cls, text: str = "", encoding: str = "latin1") -> Any:
        if encoding != "latin1":
            raise pickle.UnpicklingError(f"encoding {encoding!r}")
        return str.encode(text, "latin1")

    def __setstate__(self, state: object) -> NoReturn:
        raise pickle.UnpicklingError("state for a function")


_STAND_INS: dict[tuple[str, str], type] = {
    ("numpy", "dtype"): _Dtype,
    ("numpy", "ndarray"): PickledArray,
    ("numpy.core.multiarray", "_reconstruct"): _Reconstruct,
    ("numpy._core.multiarray", "_reconstruct"): _Reconstruct,
    ("_codecs", "encode"): _Encode,
}


class _Unpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> type:
        if (module, name) not in _STAND_INS:
            raise pickle.UnpicklingError(f"it asks for {module}.{name}, and only arrays of bytes are read")
        return _STAND_INS[module, name]


def _check_sizes(data: bytes) -> None:
    """Refuse lengths and memo numbers beyond the file: the unpickler takes memory for them unseen."""
    for operation, argument, _ in pickletools.genops(data):
        if operation.name.endswith("PUT") and int(argument) > len(data):  # type: ignore[arg-type]
            raise pickle.UnpicklingError(f"memo number {argument} in {len(data)} bytes")


def read_pickle(path: Path, limit: int) -> dict[str, Any]:
    """A pickled dict by its names (Python 2's strings are bytes); arrays come as `PickledArray`."""
    with reading(path, "a pickle of plain arrays"):
        if path.stat().st_size > limit:
            raise DataError(
                f"{path} has {path.stat().st_size} bytes, at most {limit} are read. Check the file"
            )
        data = path.read_bytes()
        _check_sizes(data)
        value = _Unpickler(io.BytesIO(data), encoding="bytes").load()
        if type(value) is not dict:
            raise DataError(f"{path} holds a {type(value).__name__}, needed a dict")
        return {k.decode("latin1") if isinstance(k, bytes) else str(k): v for k, v in value.items()}
