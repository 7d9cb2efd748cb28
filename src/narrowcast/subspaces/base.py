"""The matrix A in R^{D x d}: what every kind promises, and how it is named on the wire."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, ClassVar, Self

import msgspec
import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from narrowcast.numerics.keyed import MASK64, Key

Floats = NDArray[np.float32]
MAX_D = 1 << 40


class SubspaceSpec(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """All there is to know of A: small, hashable, fit for the wire. The same spec is the same A.

    >>> import narrowcast as nc
    >>> nc.subspace("rotation", D=1000, d=64, key=7).spec
    SubspaceSpec(kind='rotation', D=1000, d=64, key=7, n=1, V=64)
    """

    kind: str
    D: int
    d: int
    key: Key
    n: int = 0  # rotation and grouping: rows of a tile
    V: int = 0  # rotation and grouping: lanes of a tile


class Subspace(ABC):
    """A in R^{D x d} with E[A A^T] = I_D, from `spec` alone, never stored. Vectors are of float32; those of D
    numbers may lie on a device where the kind can work there (`on_device`), those of d are on the CPU.

    >>> import torch, narrowcast as nc
    >>> A = nc.subspace("rotation", D=1000, d=64, key=7)
    >>> x, g = torch.randn(64), torch.randn(1000)
    >>> bool(torch.isclose(A.expand(x) @ g, x @ A.project(g), rtol=1e-3, atol=1e-3))  # <A x, g> = <x, A^T g>
    True
    """

    spec: SubspaceSpec
    on_device: ClassVar[bool] = False  # whether vectors of D numbers may lie on a device

    def __init__(self, D: int, d: int, key: Key) -> None:
        if not 1 <= d <= D <= MAX_D:
            raise ValueError(f"a subspace needs 1 <= d <= D <= 2^40, got d={d}, D={D}")
        if not 0 <= key <= MASK64:
            raise ValueError(f"the key of a subspace is an int of 64 bits, got {key}")
        self.D, self.d, self.key = D, d, key

    def project(self, g: Tensor, out: Tensor | None = None) -> Tensor:
        """A^T g, (D,) -> (d,). Of a g on a device, where it may be bfloat16 or float16 too, A^T g is here."""
        y = self._result(out, self.d, g, here=True)
        if _there(g):
            return y.copy_(self._project_there(self._there("g", g, self.D)))
        self._project(self._vector("g", g, self.D), y.numpy())
        return y

    def project_many(self, gs: Tensor, out: Tensor | None = None) -> Tensor:
        """A^T g of every row, (W, D) -> (W, d): bit for bit what `project` makes of each."""
        if gs.ndim != 2 or gs.shape[1] != self.D or (out is not None and out.shape != (len(gs), self.d)):
            there = "" if out is None else f" into {tuple(out.shape)}"
            raise ValueError(
                f"gs must have a vector a row, (W, {self.D}), for (W, {self.d}), got {tuple(gs.shape)}{there}"
            )
        if _there(gs):
            y = torch.empty(len(gs), self.d) if out is None else out
            for g, row in zip(gs, y, strict=True):
                self.project(g, row)
            return y
        count, flat = len(gs), gs.reshape(-1)
        y = self._result(None if out is None else out.view(-1), count * self.d, flat)
        rows = self._vector("gs", flat, count * self.D).reshape(count, self.D)
        self._project_many(rows, y.numpy().reshape(count, self.d))
        return y.view(count, self.d)

    def expand(self, x: Tensor, out: Tensor | None = None) -> Tensor:
        """A x, (d,) -> (D,), where `out` is."""
        y = self._result(out, self.D, x)
        if _there(y):
            self._add_family_there([self], None, x[None], self._there("out", y, self.D))
            return y
        self._add_expanded(np.empty(0, np.float32), self._vector("x", x, self.d), y.numpy())
        return y

    def add_expanded(self, base: Tensor, x: Tensor, out: Tensor | None = None) -> Tensor:
        """base + A x in one pass, (D,), (d,) -> (D,), where `base` is. `out` may be `base` itself."""
        return add_family([self], base, x[None], out)

    def dense(self) -> Tensor:
        """A itself, (D, d): for tests and toys."""
        return torch.stack([self.expand(e) for e in torch.eye(self.d)], dim=1)

    @abstractmethod
    def add_expanded_plain(self, base: Floats, x: Floats) -> Floats:
        """base + A x in plain NumPy: slow, obvious, and equal to `add_expanded` bit for bit."""

    @abstractmethod
    def _project(self, g: Floats, out: Floats) -> None: ...

    def _project_many(self, gs: Floats, out: Floats) -> None:
        for g, row in zip(gs, out, strict=True):
            self._project(g, row)

    @abstractmethod
    def _add_expanded(self, base: Floats, x: Floats, out: Floats) -> None:
        """out = base + A x; an empty base is zero."""

    def _add_family(self, family: Sequence[Self], base: Floats, xs: Floats, out: Floats) -> None:
        """out = base + A_1 x_1 + ... + A_K x_K, added in this order, where self is A_1."""
        for A, x in zip(family, xs, strict=True):
            A._add_expanded(base, x, out)
            base = out

    def _project_there(self, g: Tensor) -> Tensor:
        """A^T g of a vector on a device."""
        raise NotImplementedError

    def _add_family_there(self, family: Sequence[Self], base: Tensor | None, xs: Tensor, out: Tensor) -> None:
        """`_add_family` of vectors on a device, xs being here; None is zero."""
        raise NotImplementedError

    def _there(self, name: str, v: Tensor, size: int) -> Tensor:
        """A vector on a device, if this kind can work there."""
        if not self.on_device:
            raise ValueError(
                f"{name} is on {v.device}: {self.spec.kind} has kernels for the CPU alone. Use rotation or "
                "grouping there, or the CPU"
            )
        narrow = name == "g" and v.dtype in (torch.bfloat16, torch.float16)
        if not (v.dtype == torch.float32 or narrow) or v.shape != (size,):
            raise ValueError(
                f"{name} must be a float32 vector of {size} numbers, got {v.dtype}, shape {tuple(v.shape)}"
            )
        return v.detach().contiguous()

    def _vector(self, name: str, v: Tensor, size: int) -> Floats:
        if v.dtype != torch.float32 or v.device.type != "cpu" or v.shape != (size,):
            raise ValueError(
                f"{name} must be a float32 CPU vector of {size} numbers, "
                f"got {v.dtype} on {v.device} with shape {tuple(v.shape)}"
            )
        array: Floats = v.detach().contiguous().numpy()
        return array

    def _result(self, out: Tensor | None, size: int, *operands: Tensor, here: bool = False) -> Tensor:
        if out is None:
            return torch.empty(size, dtype=torch.float32)
        if here or not _there(out):
            self._vector("out", out, size)
        if not out.is_contiguous() or out.requires_grad:
            raise ValueError("out must be contiguous and must not require gradients")
        if any(_overlap(out, operand) for operand in operands):
            raise ValueError("out shares memory with the operand: give it memory of its own")
        return out


def add_family(family: Sequence[Subspace], base: Tensor, xs: Tensor, out: Tensor | None = None) -> Tensor:
    """base + A_1 x_1 + ... + A_K x_K, (D,), (K, d) -> (D,): bit for bit one `add_expanded` after the other.

    The subspaces differ in their keys only. `out` may be `base` itself.
    """
    A = family[0]
    if len({msgspec.structs.replace(each.spec, key=0) for each in family}) > 1 or len(xs) != len(family):
        raise ValueError(
            f"need subspaces that differ in their keys only and one row of xs for each, got {len(xs)} rows "
            f"for {[each.spec for each in family]}"
        )
    y = A._result(torch.empty_like(base) if out is None and _there(base) else out, A.D, *xs)
    if out is not None and _overlap(out, base) and out.data_ptr() != base.data_ptr():
        raise ValueError("out shares memory with base without being base: give it memory of its own")
    rows = np.stack([A._vector("x", x, A.d) for x in xs])
    if _there(base):
        if y.device != base.device:
            raise ValueError(f"out is on {y.device}, base on {base.device}: they must be on one device")
        A._add_family_there(
            family, A._there("base", base, A.D), torch.from_numpy(rows), A._there("out", y, A.D)
        )
        return y
    A._add_family(family, A._vector("base", base, A.D), rows, y.numpy())
    return y


def as_kind(name: str, found: Any) -> type[Subspace]:
    """A kind of A that somebody else has brought."""
    if not (isinstance(found, type) and issubclass(found, Subspace)):
        raise ValueError(
            f"the kind of subspace {name!r} is {found!r}: it must be a class that inherits from Subspace"
        )
    if missing := sorted(getattr(found, "__abstractmethods__", ())):
        raise ValueError(
            f"the kind of subspace {name!r} lacks {', '.join(missing)}: {found.__name__} must define them"
        )
    return found


def _there(v: Tensor) -> bool:
    """Whether a vector is on a device, and not here; one without memory is nowhere."""
    return v.device.type not in ("cpu", "meta")


def _overlap(a: Tensor, b: Tensor) -> bool:
    """Whether two vectors lie in common memory."""
    if not a.numel() or not b.numel() or a.device != b.device:
        return False
    (a0, a1), (b0, b1) = ((v.data_ptr(), v[-1:].data_ptr() + v.element_size()) for v in (a, b))
    return a0 < b1 and b0 < a1
