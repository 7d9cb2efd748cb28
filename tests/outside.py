"""What a researcher might bring: a method, a task, a kind of A, a number format and a command."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any

import numpy as np
import torch
from pydantic import Field
from torch import Tensor, nn

import narrowcast as nc
from narrowcast.methods import Model, Private, Uncompressed
from narrowcast.subspaces import Rotation, Subspace, SubspaceSpec
from narrowcast.tasks import initialise
from narrowcast.wire import FormatError, Payload


@dataclass(frozen=True)
class Clipped(Uncompressed):
    """theta <- theta - lr (1/W) sum_w clip(v_w, c)

    No number of an update is larger than c.
    """

    clip: Annotated[float, Field(gt=0, description="c: the largest magnitude of a number")] = 2.0
    quiet: bool = False

    @property
    def linear(self) -> bool:
        return False

    @property
    def setting(self) -> str:
        return f"c={self.clip:g}"

    def compress(
        self, private: Private | None, v: Tensor, model: Model, key: int
    ) -> tuple[Private | None, Payload]:
        return super().compress(private, v.clamp(-self.clip, self.clip), model, key)


def blobs(clients: int = 20, key: int = 0, width: int = 12, noise: float = 0.3) -> nc.Task:
    """Two classes of points."""
    generator = torch.Generator().manual_seed(key % 2**32)
    x = torch.randn(200, 5, generator=generator)
    y = (x.sum(1) > 0).long()
    model = nn.Sequential(nn.Linear(5, width), nn.ReLU(), nn.Linear(width, 2))
    initialise(model, key)
    seen = x + noise * torch.randn(x.shape, generator=generator)
    return nc.TorchTask(model, train=(seen, y), test=(x, y), clients=nc.iid(200, clients, key))


class Backwards(Subspace):
    """A rotation whose rows stand in the opposite order."""

    def __init__(self, D: int, d: int, key: int) -> None:
        super().__init__(D, d, key)
        self._turned = Rotation(D, d, key)
        self.spec = SubspaceSpec("backwards", D, d, key)

    def add_expanded_plain(self, base: Any, x: Any) -> Any:
        return base + self._turned.add_expanded_plain(np.zeros(self.D, np.float32), x)[::-1]

    def _project(self, g: Any, out: Any) -> None:
        self._turned._project(np.ascontiguousarray(g[::-1]), out)

    def _add_expanded(self, base: Any, x: Any, out: Any) -> None:
        made = np.empty(self.D, np.float32)
        self._turned._add_expanded(np.empty(0, np.float32), x, made)
        out[:] = base + made[::-1] if base.size else made[::-1]


class Brain16:
    """bfloat16: the upper half of a float32, rounded towards zero."""

    name, exact = "bf16", False

    def size(self, count: int) -> int:
        return 2 * count

    def pack(self, x: Any, key: int) -> bytes:
        if not np.isfinite(x).all():
            raise FormatError("cannot encode a NaN or an infinity")
        return (x.astype("<f4").view("<u4") >> 16).astype("<u2").tobytes()

    def unpack(self, data: bytes, count: int) -> Any:
        return (np.frombuffer(data, "<u2").astype(np.uint32) << 16).view(np.float32)


def hello(name: str = "you") -> None:
    """Say hello, from outside."""
    print(f"hello {name}")
