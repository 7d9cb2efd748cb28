"""Token sequences of many lengths in one vector, and batches of them with little padding."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from narrowcast.rounds.task import IndexArray


class Ragged:
    """Sequence i is values[starts[i] : starts[i + 1]]: the tokens themselves, and no padding."""

    def __init__(self, sequences: Sequence[Sequence[int]]) -> None:
        self.lengths = np.array([len(s) for s in sequences], np.int64)
        if not self.lengths.all():
            raise ValueError(f"sequence {int(self.lengths.argmin())} is empty: it needs at least one token")
        self.starts = np.concatenate([[0], np.cumsum(self.lengths)])
        self.values = torch.tensor([token for s in sequences for token in s], dtype=torch.int32)

    @classmethod
    def of(cls, ids: NDArray[np.int32]) -> Ragged:
        """The rows of (n, L) ids, all as long."""
        made = cls.__new__(cls)
        made.lengths = np.full(len(ids), ids.shape[1], np.int64)
        made.starts = np.arange(len(ids) + 1) * ids.shape[1]
        made.values = torch.from_numpy(ids.reshape(-1).astype(np.int32, copy=False))
        return made

    def __len__(self) -> int:
        return len(self.lengths)

    def padded(
        self,
        index: IndexArray,
        left: bool = False,
        pad: int = 0,
        device: torch.device | None = None,
    ) -> tuple[Tensor, Tensor]:
        """(ids (B, L), mask (B, L)) of these sequences, `pad` after each, or before it with `left`."""
        lengths = self.lengths[index]
        widest = int(lengths.max())
        column = np.arange(widest) - (widest - lengths if left else 0 * lengths)[:, None]
        inside = (column >= 0) & (column < lengths[:, None])
        place = self.starts[:-1][index][:, None] + np.where(inside, column, 0)
        mask = torch.from_numpy(inside)
        ids = self.values[torch.from_numpy(place)].masked_fill(~mask, pad)
        return ids.to(device).long(), mask.to(device).long()


def by_length(lengths: IndexArray, tokens: int) -> list[IndexArray]:
    """Positions of sequences in groups of like length, each of at most `tokens` with its padding."""
    order = np.argsort(lengths, kind="stable")
    groups, start = [], 0
    for i in range(1, len(order) + 1):
        if i == len(order) or (i - start + 1) * int(lengths[order[i]]) > tokens:
            groups.append(order[start:i])
            start = i
    return groups
