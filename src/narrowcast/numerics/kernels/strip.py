"""The unit of work of the kernels: a strip of ROWS rows of LANES consecutive floats, 16 KiB, which the
first-level cache holds. Transforms run down its rows, so that a butterfly is an addition of vectors."""

ROWS = 64
LANES = 64
STRIP = ROWS * LANES
