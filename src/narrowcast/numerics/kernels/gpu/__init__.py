"""GPU kernels, in Triton: the rotation's passes and the digest. Imported only where one is used.

A program takes a strip of 64 rows by 64 lanes. The arithmetic is that of the kernels for the CPU, addition by
addition. They are launched with `EXACT`: an addition fused with a multiplication would give other bits.
"""

EXACT = {"num_warps": 4, "num_stages": 1, "enable_fp_fusion": False}
