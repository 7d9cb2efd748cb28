"""The benchmark's rows for the terminal."""

from __future__ import annotations

from narrowcast.bench.device import PASSES
from narrowcast.bench.kernels import Measured
from narrowcast.tables import PlainTable, plain_table
from narrowcast.units import format_count, format_seconds


def subspaces(rows: list[Measured], machine: Measured) -> PlainTable:
    """A line an operation: seconds, over a copy of D floats, against the common Fastfood."""
    lines = []
    for row in rows:
        lines.append(
            [f"D = {format_count(row['D'])}, d = {row['d']}: copy", format_seconds(row["copy_s"]), "1", ""]
        )
        for name in ("project", "add_expanded", "fastfood_project", "fastfood_add_expanded"):
            seconds = row[f"{name}_s"]
            against = f"{row['torch_fastfood_s'] / seconds:,.0f}x" if "torch_fastfood_s" in row else ""
            lines.append([f"  {name}", format_seconds(seconds), f"{seconds / row['copy_s']:.2f}", against])
        if "torch_fastfood_s" in row:
            slow = row["torch_fastfood_s"]
            lines.append(["  torch fastfood", format_seconds(slow), f"{slow / row['copy_s']:.0f}", "1x"])
        lines.append(["  a new subspace", format_seconds(row["new_subspace_s"]), "", ""])
    caption = f"{machine['cpu']}, {machine['threads']} threads; project and add_expanded are the rotation's"
    return plain_table(["", "time", "over copy", "faster than\ntorch fastfood"], lines, caption)


def on_device(rows: list[Measured], described: str) -> PlainTable:
    lines = []
    for row in rows:
        for name in ("copy", *PASSES):
            first = f"D = {format_count(row['D'])}, d = {row['d']}: copy" if name == "copy" else f"  {name}"
            seconds = row[f"{name}_s"]
            lines.append([first, format_seconds(seconds), f"{seconds / row['copy_s']:.2f}"])
    return plain_table(["", "time", "over copy"], lines, described)


def transforms(rows: list[Measured]) -> PlainTable:
    columns = ("one_core", "all_cores", "torch_views", "torch_matmul")
    lines = [
        [f"2^{row['size'].bit_length() - 1}", *(f"{row[f'{c}_gelem_s']:.2f}" for c in columns)]
        for row in rows
    ]
    return plain_table(
        ["fwht", "one core", "all cores", "torch views", "torch matmul"], lines, "Gelements a second"
    )
