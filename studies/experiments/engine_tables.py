"""Tables of what engine.py has measured: reads the JSON files, writes Markdown beside them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

Row = dict[str, Any]
COMMAND = (
    "`python studies/experiments/engine.py --only {}`, on two cores shared with other work; "
    "loopback, no TLS.\n"
)


def write(folder: Path) -> None:
    found = {path.stem: json.loads(path.read_text()) for path in sorted(folder.glob("*.json"))}
    if "wire" in found and "idle" in found:
        (folder / "wire.md").write_text(wire(found["wire"], found["idle"][0]))
    if "amortise" in found:
        (folder / "amortise.md").write_text(amortise(found["amortise"]))
    if "sizes" in found:
        (folder / "sizes.md").write_text(sizes(found["sizes"]))


def wire(rows: list[Row], idle: Row) -> str:
    poll = idle["up_a_minute"] + idle["down_a_minute"]
    lines = []
    for row in rows:
        payload = row["payload_up"] + row["payload_down"]
        added = row["wire_up"] + row["wire_down"] - payload
        polled = poll * row["seconds"] / 60
        lines.append(
            [
                f"{row['d']:,}".replace(",", " "), size(row["payload_up"]), size(row["payload_down"]),
                size(row["wire_up"]), size(row["wire_down"]), size(added), size(added - polled),
                f"{(payload + added) / payload:.4g}", f"{row['seconds']:.1f}",
            ]
        )  # fmt: skip
    head = [
        "d", "payload up", "payload down", "wire up", "wire down", "added", "added, polling aside",
        "wire / payload", "seconds a round",
    ]  # fmt: skip
    about = (
        f"The static method, D = 1 048 577, two nodes with a client each; means a node and round over "
        f"{rows[0]['rounds']} rounds, counted by a TCP proxy before the SuperLink: HTTP headers, Flower's "
        "own requests and the nodes' polling during the round are in it. The payload is what narrowcast "
        "counts: 4d bytes and at most 64 + 8.\n"
    )
    rest = (
        f"A node with nothing to do costs {size(idle['up_a_minute'])} up and "
        f"{size(idle['down_a_minute'])} down a minute (heartbeats, polling; over {idle['seconds']:.0f} s), "
        f"and {size(idle['joining'])} to join.\n"
    )
    return page("Payload against wire", "wire idle", about, table(head, lines), rest)


def fill(page: str, rows: list[Row]) -> str:
    """The page with a short table of payload and wire between its marks."""
    head = ["d", "payload, up and down", "wire", "added by the engine", "wire / payload"]
    lines = []
    for row in rows:
        payload = row["payload_up"] + row["payload_down"]
        total = row["wire_up"] + row["wire_down"]
        words = size(payload), size(total), size(total - payload), f"{total / payload:.4g}"
        lines.append([f"{row['d']:,}".replace(",", " "), *words])
    before, _, rest = page.partition("<!-- wire -->\n")
    _, _, after = rest.partition("<!-- /wire -->")
    return f"{before}<!-- wire -->\n{table(head, lines)}<!-- /wire -->{after}"


def amortise(rows: list[Row]) -> str:
    head = [
        "clients a node", "local steps", "seconds a round", "clients a second", "client steps a second",
        "payload a client", "wire a client",
    ]  # fmt: skip
    lines = [
        [
            str(row["clients"]), str(row["steps"]), f"{row['seconds']:.1f}", f"{row['clients_a_second']:.2f}",
            f"{row['steps_a_second']:.1f}", size(row["payload_a_client"]), size(row["wire_a_client"]),
        ]
        for row in rows
    ]  # fmt: skip
    about = (
        f"Digits, time-varying, d = 512, two nodes, {rows[0]['rounds']} rounds. A round waits for two polls "
        "of three seconds and for a new client process on every node, whatever is done in it.\n"
    )
    return page("Several clients and several steps a message", "amortise", about, table(head, lines))


def sizes(rows: list[Row]) -> str:
    kinds = ["flwr-serverapp", "flower-superlink", "flower-supernode", "flwr-clientapp"]
    head = [
        "parameters",
        "whole model",
        "piece",
        "seconds a round",
        *(f"{k.split('-')[1]} MiB" for k in kinds),
    ]
    lines = [
        [
            f"{row['size']:,}".replace(",", " "), size(4 * row["size"]), size(row["chunk"], binary=True),
            f"{row['seconds']:.1f}", *(f"{row['memory'].get(kind, 0) >> 20}" for kind in kinds),
        ]
        for row in rows
    ]  # fmt: skip
    about = (
        "One node, `uncompressed`: the whole model goes down and a gradient of its size comes up in every "
        "round. Content is cut into records of a piece each (`narrowcast.flower.messages.CHUNK`). Memory is "
        "the peak of the process.\n"
    )
    return page("Large messages", "sizes", about, table(head, lines))


def page(title: str, pieces: str, *parts: str) -> str:
    return "\n".join([f"# {title}\n", COMMAND.format(pieces), *parts])


def size(count: float, binary: bool = False) -> str:
    """Bytes, in units of 1000 (or 1024)."""
    step = 1024 if binary else 1000
    units = ["B", "KiB", "MiB", "GiB"] if binary else ["B", "kB", "MB", "GB"]
    for unit in units:
        if abs(count) < step or unit == units[-1]:
            return f"{count:.0f} {unit}" if abs(count) >= 100 or unit == "B" else f"{count:.3g} {unit}"
        count /= step
    raise AssertionError


def table(head: list[str], lines: list[list[str]]) -> str:
    rows = [head, ["---:"] * len(head), *lines]
    return "".join(f"| {' | '.join(row)} |\n" for row in rows)
