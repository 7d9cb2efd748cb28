"""What a training run costs each client on the link: the paper's Table 1 for one's own numbers, in bytes.

D parameters, d dimensions, K subspaces, E epochs. A client that comes once an epoch uploads d E numbers and
downloads d E (static), (2E-1) d (time-varying), d E K (k-subspace), (2E-1) d K (both); uncompressed it is D E
each way. A download holds what the client lacks: with m finished stages missing, (m+1) d K numbers, or the
base and the current stage, D + d K, where the base is smaller than the m stages.

Bytes are those of the messages that the simulator and the drivers send: the envelope is measured on an
encoded message without numbers, blocks are counted as `wire` and `formats` write them. No message of size D
is built.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from narrowcast.bandwidth.hours import FLOPS, training
from narrowcast.bandwidth.visits import lags, stages
from narrowcast.measure.candidates import largest
from narrowcast.methods.sizes import shape_of
from narrowcast.methods.table import METHODS
from narrowcast.rounds.network import Network
from narrowcast.rounds.sampling import default_cohort

ROWS = ("uncompressed", "fedavg", "static", "time-varying", "k-subspace", "k-subspace-time-varying")
NARROW = "narrow"  # a row more, whose bytes are as near as its rate is to the bits asked for


@dataclass(frozen=True)
class PlanRow:
    """One method: expected totals of one client over the whole training, and of all clients together.

    Compression is bytes of the uncompressed row over bytes of this one; `compression` is the harmonic mean of
    up and down, as in the paper. It is that of training as planned, so fedavg's comes from its fewer rounds.
    """

    method: str
    messages: float  # in each direction: every visit is one download and one upload
    numbers_up: float
    numbers_down: float
    bytes_up: float
    bytes_down: float
    compression_up: float
    compression_down: float
    compression: float
    seconds_up: float
    seconds_down: float
    seconds: float  # both, one after the other
    bytes_all_clients: float  # up and down
    dimensions: int  # of parameter space that training can reach: at most D
    training_seconds: float | None = None  # of the whole training on a network, where one was asked for


def plan(
    params: int,
    dim: int,
    epochs: int,
    subspaces: int = 8,
    participation: float = 1.0,
    clients: int = 1,
    local_steps: int = 5,
    *,
    up_bps: float,
    down_bps: float,
    uplink: str = "f32",
    downlink: str = "f32",
    up_bits: float | None = None,
    down_bits: float | None = None,
    names: Sequence[str] = ROWS,
    cohort: int | None = None,
    refresh: str | int = "epoch",
    network: Network | None = None,
    examples: int = 1,
) -> list[PlanRow]:
    """The rows, uncompressed first; expected values, exact (up to float64) for independent visits.

    `participation` p <= 1: a client comes in each epoch with probability p. Above 1: it comes p times in
    every epoch. A stage lasts one epoch, which takes somebody to come in its last round, or `refresh`
    rounds, of which an epoch has clients / cohort (by default a tenth of them, at most 100). fedavg takes
    `local_steps` steps a visit and so needs that many times fewer visits for the same local work:
    p E / local_steps of them, which may be a fraction.
    Blocks of 4 GB and more, which no message can have, are counted as if it could. Bits are of the family
    (None: what each of its methods has by default). With a `network`, a client computes on so many
    `examples` a step, and every round lasts until the slowest of those who come is done.
    """
    _at_least_one(params=params, dim=dim, epochs=epochs, clients=clients, local_steps=local_steps)
    _at_least_one(examples=examples)
    _positive(participation=participation, up_bps=up_bps, down_bps=down_bps)
    if dim > params:
        raise ValueError(f"dim {dim} exceeds the model's {params} parameters: choose a smaller dim")
    cohort = default_cohort(clients) if cohort is None else cohort
    _at_least_one(cohort=cohort)
    if cohort > clients:
        raise ValueError(f"a cohort of {cohort} cannot be drawn from {clients} clients")
    rounds = -(-clients // cohort)
    every = rounds if refresh == "epoch" else _rounds(refresh)
    visits, changes = lags(epochs, participation, rounds, every), stages(epochs, rounds, every)
    bits = {
        name: value for name, value in (("up_bits", up_bits), ("down_bits", down_bits)) if value is not None
    }
    asked = {"dim": dim, "subspaces": subspaces, "uplink": uplink, "downlink": downlink, **bits}
    rows: list[PlanRow] = []
    for name in names:
        entry = METHODS[name]
        shape = shape_of(entry.make(**entry.fitting(asked)), params, changes, local_steps)
        messages = math.fsum(visits) / shape.fewer
        sizes = [(n, shape.down(m)) for m, n in enumerate(visits) if n > 0]
        up, down = messages * shape.up.bytes, math.fsum(n * size.bytes for n, size in sizes) / shape.fewer
        # The first row is its own yardstick.
        ratio_up = rows[0].bytes_up / up if rows else 1.0
        ratio_down = rows[0].bytes_down / down if rows else 1.0
        seconds_up, seconds_down = 8 * up / up_bps, 8 * down / down_bps
        rows.append(
            PlanRow(
                method=name,
                messages=messages,
                numbers_up=messages * shape.up.numbers,
                numbers_down=math.fsum(n * size.numbers for n, size in sizes) / shape.fewer,
                bytes_up=up,
                bytes_down=down,
                compression_up=ratio_up,
                compression_down=ratio_down,
                compression=2 / (1 / ratio_up + 1 / ratio_down),
                seconds_up=seconds_up,
                seconds_down=seconds_down,
                seconds=seconds_up + seconds_down,
                bytes_all_clients=(up + down) * clients,
                dimensions=shape.dimensions,
                training_seconds=None
                if network is None
                else training(
                    network,
                    epochs * rounds / shape.fewer,
                    min(clients, cohort * participation),
                    down / messages,
                    shape.up.bytes,
                    FLOPS * params * examples * shape.fewer,
                ),
            )
        )
    return rows


class Fitting(NamedTuple):
    """The most that a budget lets a method send: d, and the bits of a number up and down."""

    row: PlanRow
    dim: int
    up_bits: float
    down_bits: float


def fitting(budget: int, params: int, epochs: int, subspaces: int = 8, **more: Any) -> list[Fitting]:
    """For every method of the family the largest d (of two digits) at which a client's bytes fit, if any."""
    found = []
    plain = {more.get("uplink", "f32"), more.get("downlink", "f32")} == {"f32"}
    bits = {name: more[name] for name in ("up_bits", "down_bits") if more.get(name) is not None}
    for name in (*ROWS[2:], *([NARROW] if plain else [])):
        made: Any = METHODS[name].make(**METHODS[name].fitting(bits))

        def row(d: int, name: str = name) -> PlanRow:
            return plan(params, d, epochs, subspaces, names=(ROWS[0], name), **more)[1]

        d = largest(lambda d, row=row: row(d).bytes_up + row(d).bytes_down <= budget, params)  # type: ignore[misc]
        if d:
            found.append(Fitting(row(d), d, made.up_bits, made.down_bits))
    return found


def _rounds(refresh: str | int) -> int:
    if not str(refresh).isdigit() or int(refresh) < 1:
        raise ValueError(f'refresh must be "epoch" or a positive number of rounds, got {refresh!r}')
    return int(refresh)


def _at_least_one(**values: int) -> None:
    for name, value in values.items():
        if not isinstance(value, int) or value < 1:
            raise ValueError(f"{name} must be a whole number of at least 1, got {value!r}")


def _positive(**values: float) -> None:
    for name, value in values.items():
        if not (math.isfinite(value) and value > 0):
            raise ValueError(f"{name} must be a positive number, got {value!r}")
