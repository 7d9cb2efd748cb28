"""Curves of thousands of points, thinned to what a screen can show."""

from __future__ import annotations

from collections.abc import Sequence


def thinned(values: Sequence[float | None], most: int) -> list[int]:
    """The positions to keep: both ends, and of every bucket between them the least and the greatest.

    What is not a number (None, nan) is left out. No peak is lost, and where few points are, all of them stay.
    """
    known = [i for i, value in enumerate(values) if value is not None and value == value]
    if len(known) <= most:
        return known
    inner, buckets = known[1:-1], (most - 2) // 2
    kept = {known[0], known[-1]}
    for b in range(buckets):
        bucket = inner[b * len(inner) // buckets : (b + 1) * len(inner) // buckets]
        kept |= {min(bucket, key=lambda i: values[i]), max(bucket, key=lambda i: values[i])}  # type: ignore[arg-type, return-value]
    return sorted(kept)
