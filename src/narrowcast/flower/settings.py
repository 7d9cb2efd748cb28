"""The settings of a Flower app: Flower's run config, whose keys `narrowcast.*` are ours.

    [tool.flwr.app.config.narrowcast]
    method = "time-varying"
    dim = 1024

Those of a run are the fields of `RunConfig`, with `-` for `_`; those of the fleet are here.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Annotated, Any

from flwr.app import Context
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from narrowcast.errors import ConfigError
from narrowcast.methods.base import MAX_WEIGHT
from narrowcast.registry import Registry
from narrowcast.runs.config import CHOICES, RunConfig
from narrowcast.runs.reading import make_config
from narrowcast.runs.used import refuse_unused

PREFIX = "narrowcast."
ALLOW = "narrowcast-allow"  # of a node's config: "package.module:name other-name"


class FleetSettings(BaseModel):
    """How the server deals with nodes that come and go."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    folder: str = Field(
        default="runs/flower", description="of the run, at the server: records, checkpoint, model"
    )
    track: str = Field(default="", description="trackers that follow the run, as --track")
    min_clients: Annotated[int, Field(ge=1)] = Field(default=1, description="present before a round begins")
    min_answers: Annotated[int, Field(ge=1)] = Field(
        default=1, description="updates without which a round leaves the model as it was"
    )
    timeout: Annotated[float, Field(gt=0)] = Field(default=600.0, description="seconds for a round's answers")
    wait: Annotated[float, Field(gt=0)] = Field(
        default=3600.0, description="seconds to wait for min_clients before the run stops"
    )
    roster: str = Field(
        default="",
        description="a file that binds clients to the nodes that first host them; for nodes with keys",
    )
    node_clients: Annotated[int, Field(ge=0)] = Field(
        default=0, description="clients that one node may host; 0: any number"
    )
    max_weight: Annotated[int, Field(ge=1, le=int(MAX_WEIGHT))] = Field(
        default=int(MAX_WEIGHT), description="one client's say in a round, with weighting = examples"
    )
    norm_bound: Annotated[float, Field(ge=0)] = Field(
        default=30.0, description="an update's norm, times the median of those before; 0: not bounded"
    )
    json_log: str = Field(default="", description="a file for the log as JSON, a line an event")
    metrics_port: Annotated[int, Field(ge=0, le=65535)] = Field(
        default=0, description="of loopback, where /metrics is answered for Prometheus; 0: nowhere"
    )


def ours(run_config: Mapping[str, Any]) -> dict[str, Any]:
    """The settings with our prefix, under their own names."""
    return {
        key.removeprefix(PREFIX).replace("-", "_"): value
        for key, value in run_config.items()
        if key.startswith(PREFIX)
    }


def allowed(context: Context) -> tuple[str, ...] | None:
    """The names of others' methods and tasks that a node's own config allows; None: it says nothing of it."""
    listed = context.node_config.get(ALLOW)
    return None if listed is None else tuple(re.split(r"[\s,]+", str(listed).strip()))


def run_settings(
    run_config: Mapping[str, Any], *, allowed: tuple[str, ...] | None = None, **fixed: Any
) -> RunConfig:
    """The run's configuration, from whoever started the run: it names code, and never brings it."""
    fleet = FleetSettings.model_fields
    table = {key: value for key, value in ours(run_config).items() if key not in fleet}
    for name, known in CHOICES.items():
        if isinstance(known, Registry) and allowed is not None and isinstance(table.get(name), str):
            _allow(known, table[name], allowed)
    config = make_config({**table, **fixed})
    refuse_unused(table, config)
    return config


def _allow(known: Registry[Any], name: str, allowed: tuple[str, ...]) -> None:
    """Refuse what a node's config does not list; what it lists, and by its place, can be imported."""
    if name in allowed:
        known.admit(name)
    elif name in known.installed and name not in known.own:
        raise ConfigError(
            f"the {known.what} {name!r} is installed on this node, but {ALLOW} of its config does not "
            f"list it: {', '.join(allowed)}"
        )


def fleet_settings(run_config: Mapping[str, Any]) -> FleetSettings:
    table = {key: value for key, value in ours(run_config).items() if key in FleetSettings.model_fields}
    try:
        return FleetSettings(**table)
    except ValidationError as error:
        wrong = "; ".join(f"narrowcast.{e['loc'][0]}: {e['msg']}, got {e['input']!r}" for e in error.errors())
        raise ConfigError(wrong) from None
