"""RoundRecord: one line of a run, and how it is written and read."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from copy import copy
from functools import partial
from pathlib import Path
from typing import Annotated

import msgspec
from msgspec import Meta

from narrowcast import files

Natural = Annotated[int, Meta(ge=0, le=1 << 48)]  # in a file, which may be a stranger's
LARGEST, LONGEST = 1 << 30, 1 << 24  # bytes of such a file, two million rounds and more, and of a line


class RoundRecord(msgspec.Struct, forbid_unknown_fields=True, omit_defaults=True):
    """What happened in a round. Bytes are those of encoded messages, summed over the clients of the round.

    >>> import narrowcast as nc
    >>> from narrowcast.testing import toy_task
    >>> plan = nc.Plan(cohort=5, lr=0.5, rounds=2)
    >>> for record in nc.simulate(toy_task(), nc.method("static", dim=16, key=1), plan):
    ...     print(record.round, record.clients, record.up, record.down)
    0 5 495 495
    1 5 495 495
    """

    round: Natural
    epoch: Natural
    version: Natural  # the server's after the round
    rate: float
    loss: float | None  # mean training loss of the clients that answered
    clients: Natural  # that answered and were counted
    up: Natural
    down: Natural
    down_first: Natural = 0  # the part of `down` sent to clients on their first visit
    down_dense: Natural = 0  # the part of `down` sent as whole models although the method compresses
    down_dense_again: Natural = 0  # the part of `down_dense` that went to clients who had come before
    down_catch_up: Natural = (
        0  # what such clients were sent, not as whole models, beyond what the model of now takes
    )
    dropped: dict[str, Natural] = {}  # why -> how many clients
    lost: Natural = 0  # clients whose private state was lost, and begun anew
    rolled_back: bool = False  # the round led to a model that could not be used: it is an earlier one again
    metrics: dict[str, float] = {}  # on held-out data, where this round was evaluated
    epsilon: float | None = None  # of every client, so far, where the run guarantees one: at most this
    node_metrics: dict[str, float] = {}  # the same on what nodes hold out: means over `node_examples`
    node_examples: Natural = 0
    evaluate_up: Natural = 0  # bytes of that, which `up` and `down` leave out
    evaluate_down: Natural = 0
    network_seconds: float = 0.0  # that the round would have taken on the run's network
    seconds: float = 0.0
    client_seconds: float = 0.0  # a client's share: reconcile, and its part of the cohort's training
    peak_memory: Natural = 0  # resident bytes of this process at its peak during the round
    device_memory: Natural = 0  # bytes that torch held on the task's device at their peak, where that says so

    def same_as(self, other: RoundRecord) -> bool:
        """Equal in everything but what a clock or the operating system says."""
        return self._timeless() == other._timeless()

    def hide(self) -> None:
        """Keep what was known before the round, version and epsilon: the rest depends on single clients."""
        for name, empty in HIDDEN.items():
            setattr(self, name, copy(empty))

    def _timeless(self) -> RoundRecord:
        return msgspec.structs.replace(self, seconds=0.0, client_seconds=0.0, peak_memory=0, device_memory=0)


# What is told of a private round; a field that is not named here is hidden, a new one too.
TOLD = {"round", "epoch", "version", "rate", "rolled_back", "metrics", "epsilon"}
HIDDEN: dict[str, object] = {
    field.name: field.default_factory() if field.default_factory is not msgspec.NODEFAULT else field.default
    for field in msgspec.structs.fields(RoundRecord)
    if field.name not in TOLD
} | {"loss": None, "clients": 0, "up": 0, "down": 0}

_encoder = msgspec.json.Encoder()
_decoder = msgspec.json.Decoder(RoundRecord)


def to_line(record: RoundRecord) -> bytes:
    return _encoder.encode(record) + b"\n"


def from_line(line: str | bytes) -> RoundRecord:
    return _decoder.decode(line)


def read(path: Path, before: int | None = None) -> list[RoundRecord]:
    """The records of a file, up to round `before`. A last line cut off by a kill is left out."""
    try:
        files.refuse_large(path, LARGEST)
    except ValueError as error:
        raise ValueError(f"{path} is damaged: {error}") from None
    records: list[RoundRecord] = []
    with path.open("rb") as file:
        for i, line in enumerate(iter(partial(file.readline, LONGEST), b""), 1):
            if len(records) == before:  # what lies beyond is dropped, whatever it is
                break
            if not line.endswith(b"\n"):
                if len(line) == LONGEST:
                    raise ValueError(
                        f"{path}, line {i} is not a round record: it has {LONGEST} bytes and more"
                    )
                break
            try:
                record = _decoder.decode(line)
            except (msgspec.DecodeError, UnicodeDecodeError) as error:
                raise ValueError(f"{path}, line {i} is not a round record: {error}") from None
            if before is None or record.round < before:
                records.append(record)
    return records


def reset_peak_memory() -> None:
    """Start a new measurement of the peak, where the system can (Linux)."""
    try:
        Path("/proc/self/clear_refs").write_text("5")
    except OSError:
        return


def peak_memory() -> int:
    """Peak resident bytes of this process since the last reset (elsewhere than on Linux: since its start).

    0 where the system does not say.
    """
    try:
        for line in Path("/proc/self/status").read_text().splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) * 1024
    except OSError:
        pass
    try:
        import resource
    except ImportError:
        return 0
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024


def curve(done: Iterable[RoundRecord], metric: str) -> dict[int, float]:
    """Rounds done -> the metric, where it was evaluated."""
    return {record.round + 1: record.metrics[metric] for record in done if metric in record.metrics}
