"""What random streams are for: numbers that kernels and `keyed` agree on."""

from __future__ import annotations

from enum import IntEnum

Key = int  # of 64 bits
TABLE_BITS = 12  # of a word look a normal up, see `keyed.normal_table`


class Purpose(IntEnum):
    """What a derived key or stream is for. Values are part of the format: never renumber, only append."""

    SUBSPACE = 1
    ROUTE = 2
    SAMPLE = 3
    ATTEND = 4
    DROP = 5
    INIT = 6
    AUGMENT = 7
    PARTITION = 8
    LOCAL = 9
    SIGNS_ROW = 10
    SIGNS_COLUMN = 11
    OFFSET = 12
    BIJECTION = 13
    NORMALS = 14
    RUN = 15
    ROUNDING = 16
    DATA = 17
    PIVOT = 18
    DITHER = 19
    NETWORK = 20
    ATTACK = 21
