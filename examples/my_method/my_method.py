"""Pooled: of every b neighbouring numbers of an update, only their mean is sent."""

from dataclasses import dataclass, replace
from typing import Annotated

import torch
from pydantic import Field
from torch import Tensor

from narrowcast.methods import Accumulator, Model, Private, RoundInfo, Uncompressed
from narrowcast.wire import Payload, block, payload


@dataclass(frozen=True)
class Pooled(Uncompressed):
    """theta <- theta - lr (1/W) sum_w M^T M v_w,  M v: the sums of b neighbours over sqrt(b)

    D/b numbers up, the whole model down. M M^T = I, so a step is the projection of the mean update on
    updates that are constant within every group of b.
    """

    pool: Annotated[int, Field(ge=1, description="b: neighbours that share a number")] = 8

    @property
    def setting(self) -> str:
        return f"b={self.pool}"

    def compress(
        self, private: Private | None, v: Tensor, model: Model, key: int
    ) -> tuple[Private | None, Payload]:
        padded = torch.nn.functional.pad(v, (0, -v.numel() % self.pool))
        return private, payload([block(padded.view(-1, self.pool).mean(1))])

    def zero(self, server):
        return Accumulator(torch.zeros(1, self.upload_numbers(server.weights.numel())))

    def step(self, server, acc: Accumulator, round: RoundInfo):
        spread = acc.total.repeat_interleave(self.pool, 1)[:, : server.weights.numel()]
        return super().step(server, replace(acc, total=spread), round)

    def upload_numbers(self, D: int) -> int:
        return -(-D // self.pool)
