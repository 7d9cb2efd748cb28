"""CPU kernels: numba functions that release the GIL, each over a half-open range of blocks.

Nothing here knows what a subspace is. `philox` makes bits, `butterfly` transforms strips; `numerics.pool`
drives a kernel over its blocks with threads. The plain twins of these kernels stand beside the mathematics
they speed up, in `numerics/keyed.py`, `numerics/hadamard.py` and `subspaces/`.
"""

from narrowcast.numerics.kernels.caching import ensure_place

ensure_place()  # before the first of them is decorated
