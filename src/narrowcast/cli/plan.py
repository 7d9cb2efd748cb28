"""`narrowcast plan`: bytes and hours before anything is run."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from narrowcast.cli.terminal import console, plain_errors
from narrowcast.errors import ConfigError


def plan(
    params: Annotated[str, typer.Option(help="D: parameters of the model, e.g. 124M")],
    epochs: Annotated[int, typer.Option(help="epochs of training")],
    dim: Annotated[str, typer.Option(help="d: numbers in an upload, e.g. 65536")] = "",
    budget: Annotated[
        str,
        typer.Option(help="in place of d: bytes a client sends and is sent, 2MB say; which d and bits fit?"),
    ] = "",
    subspaces: Annotated[int, typer.Option(help="K of the K-subspace methods")] = 8,
    participation: Annotated[
        float, typer.Option(help="chance that a client comes in an epoch; above 1: visits an epoch")
    ] = 1.0,
    clients: Annotated[str, typer.Option(help="number of clients, for the totals")] = "1",
    cohort: Annotated[
        int | None, typer.Option(help="clients a round [default: a tenth of them, at most 100]")
    ] = None,
    refresh: Annotated[
        str, typer.Option(help='time-varying: a new A after every "epoch" or every N rounds')
    ] = "epoch",
    local_steps: Annotated[int, typer.Option(help="local steps of fedavg")] = 5,
    up: Annotated[str, typer.Option(help="a client's upload speed")] = "1Mbps",
    down: Annotated[str, typer.Option(help="a client's download speed")] = "10Mbps",
    network: Annotated[
        str,
        typer.Option(help="links of the clients, for the whole training's time: 4g, dsl, lan, mixed, a file"),
    ] = "",
    examples: Annotated[int, typer.Option(help="with --network: that a client computes on in a step")] = 1,
    uplink: Annotated[str, typer.Option(help="number format of uploads")] = "f32",
    downlink: Annotated[str, typer.Option(help="number format of downloads")] = "f32",
    up_bits: Annotated[float | None, typer.Option(help="bits of a number up, 0.25 to 16 or 32")] = None,
    down_bits: Annotated[float | None, typer.Option(help="bits of a number down, 0.25 to 16 or 32")] = None,
) -> None:
    """The paper's Table 1 for your numbers: bytes and time a client, and in total, for each method."""
    from narrowcast import units
    from narrowcast.bandwidth import planner, table
    from narrowcast.rounds.network import find

    with plain_errors():
        if bool(dim) == bool(budget):
            raise ConfigError("say --dim, or --budget to be told the largest that fits")
        links = find(network) if network else None
        count, D = (units.parse_count(text) for text in (clients, params))
        asked: dict[str, Any] = {
            "participation": participation,
            "clients": count,
            "cohort": cohort,
            "refresh": refresh,
            "local_steps": local_steps,
            "up_bps": units.parse_rate(up),
            "down_bps": units.parse_rate(down),
            "uplink": uplink,
            "downlink": downlink,
            "up_bits": up_bits,
            "down_bits": down_bits,
            "network": links,
            "examples": examples,
        }
        if budget:
            found = planner.fitting(units.parse_bytes(budget), D, epochs, subspaces, **asked)
            console.print(table.fitting(found, D, epochs, budget))
            return
        d = units.parse_count(dim)
        plain = (uplink, downlink) == ("f32", "f32")
        names = (*planner.ROWS, *([planner.NARROW] if plain else []))
        rows = planner.plan(D, d, epochs, subspaces, names=names, **asked)
        console.print(table.terminal(rows, D, d, epochs, count, links.name if links else ""))
