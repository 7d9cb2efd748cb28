"""One line for whoever has a DDP model already: a state for it, registered."""

from __future__ import annotations

from typing import Any

from torch import nn
from torch.nn.parallel import DistributedDataParallel

from narrowcast.ddp.hook import intrinsic_hook
from narrowcast.ddp.state import IntrinsicState


def compress(model: nn.Module, dim: int, **options: Any) -> IntrinsicState:
    """All-reduce `dim` numbers instead of the gradients of this DDP model, as an IntrinsicState says it.

    It takes the options of IntrinsicState; the process group is the model's own.
    """
    if not isinstance(model, DistributedDataParallel):
        raise ValueError(
            f"the model is a {type(model).__name__} and no DistributedDataParallel: nothing is all-reduced. "
            "Start two processes or more (torchrun --nproc-per-node 2, accelerate launch --num-processes 2) "
            "and give the wrapped model, or leave the compression out"
        )
    state = IntrinsicState(model, dim, process_group=model.process_group, **options)
    model.register_comm_hook(state, intrinsic_hook)
    return state
