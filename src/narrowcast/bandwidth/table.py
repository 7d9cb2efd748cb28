"""The planner's rows for the terminal."""

from __future__ import annotations

from narrowcast.bandwidth.planner import Fitting, PlanRow
from narrowcast.tables import PlainTable, plain_table, times
from narrowcast.units import format_bytes, format_count, format_seconds

HEAD = ["method", "up", "down", "compression\nup/down/total", "time up", "time down", "dims"]
LINK = ("time up", "time down")  # of one speed for all, where no network is asked for


def terminal(rows: list[PlanRow], D: int, d: int, epochs: int, clients: int, network: str = "") -> PlainTable:
    caption = (
        f"One client over {epochs} epochs, D = {D:,}, d = {d:,}. Bytes as encoded, headers included; "
        "compression against the uncompressed row; dims: dimensions explored."
    )
    if network:
        caption += " Training: all rounds, each until the slowest client of its cohort is done."
    everyone = [f"{format_count(clients)}\nclients"] if clients > 1 else []
    trained = [f"training\non {network}"] if network else []
    head = [title for title in HEAD if not (network and title in LINK)] + everyone + trained
    return plain_table(head, [_row(row, bool(everyone)) for row in rows], caption)


def _row(row: PlanRow, everyone: bool) -> list[str]:
    return [
        row.method,
        format_bytes(row.bytes_up),
        format_bytes(row.bytes_down),
        times(row.compression_up, row.compression_down, row.compression),
        *(
            [format_seconds(row.seconds_up), format_seconds(row.seconds_down)]
            if row.training_seconds is None
            else []
        ),
        format_count(row.dimensions),
        *([format_bytes(row.bytes_all_clients)] if everyone else []),
        *([format_seconds(row.training_seconds)] if row.training_seconds is not None else []),
    ]


def fitting(found: list[Fitting], D: int, epochs: int, budget: str) -> PlainTable:
    """What a budget lets each method send."""
    if not found:
        raise ValueError(f"not even d = 1 fits {budget} a client in {epochs} epochs")
    head = ["method", "d", "bits up/down", "up", "down", "dims"]
    fits = f"The largest d at which a client's bytes over {epochs} epochs, up and down,"
    rows = [
        [
            fit.row.method,
            f"{fit.dim:,}",
            f"{fit.up_bits:g}/{fit.down_bits:g}",
            format_bytes(fit.row.bytes_up),
            format_bytes(fit.row.bytes_down),
            format_count(fit.row.dimensions),
        ]
        for fit in found
    ]
    return plain_table(head, rows, f"{fits} fit {budget}. D = {D:,}.")
