"""torch DDP: gradients are projected, d numbers are all-reduced, and expanded again.

    state = IntrinsicState(model, dim=16384)
    ddp_model.register_comm_hook(state, intrinsic_hook)

or `state = compress(ddp_model, dim=16384)`. In step t every worker w replaces its gradient g_w by

    (d/D) A_{e,k} mean_w(A_{e,k}^T g_w),   e = t // refresh,   k = t mod K

so an optimiser that adds multiples of it to theta trains theta = base_e + sum_k A_{e,k} Sigma_{e,k}, with the
matrices of `methods.intrinsic`. `state.py` is the mathematics, `sums.py` the mean in float32 or in few bits,
`hook.py` what DDP's buckets need, `huggingface.py` a callback for Trainer.
"""

from narrowcast.ddp.hook import intrinsic_hook
from narrowcast.ddp.register import compress
from narrowcast.ddp.state import IntrinsicState

__all__ = ["IntrinsicState", "compress", "intrinsic_hook"]
