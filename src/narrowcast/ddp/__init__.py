"""torch DDP: gradients are projected, d numbers are all-reduced, and expanded again.

    state = IntrinsicState(model, dim=16384)
    ddp_model.register_comm_hook(state, intrinsic_hook)

In step t every worker w replaces its gradient g_w by the same vector

    (d/D) A_{e,k} mean_w(A_{e,k}^T g_w),   e = t // refresh,   k = t mod K

so an optimiser that adds multiples of it to theta trains theta = base_e + sum_k A_{e,k} Sigma_{e,k}, with the
matrices of `methods.intrinsic`. `state.py` is the mathematics, `sums.py` the mean in float32 or in few bits,
`hook.py` what DDP's buckets need.
"""

from narrowcast.ddp.hook import intrinsic_hook
from narrowcast.ddp.state import IntrinsicState

__all__ = ["IntrinsicState", "intrinsic_hook"]
