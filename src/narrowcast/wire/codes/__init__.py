"""Codes for what is not a list of numbers: positions, signs, small integers. Compact, exact, hostile-proof.

Each file has `pack` and `unpack`. `unpack(pack(x)) == x`; bytes that `pack` would not have written are a
`FormatError`, so a message has one form and its size is what was paid for.
"""
