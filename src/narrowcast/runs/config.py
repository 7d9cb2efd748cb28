"""A run's configuration: one flat, validated table, from TOML or from the command line.

The run folder records it resolved: with what the task and the method made of settings that were unset.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING, Any

import msgspec
import xxhash
from pydantic import ValidationInfo, field_validator, model_validator

from narrowcast import choices
from narrowcast.aggregates.table import AGGREGATES
from narrowcast.errors import ConfigError
from narrowcast.methods.table import METHODS, OPTIMISERS
from narrowcast.registry import Registry
from narrowcast.runs import kinds
from narrowcast.runs.settings import Settings
from narrowcast.subspaces.table import KINDS
from narrowcast.tasks.table import CUSTOM, TASKS
from narrowcast.wire.table import FORMATS

if TYPE_CHECKING:  # neither torch nor numba is needed to read settings
    from narrowcast.methods.base import Method
    from narrowcast.numerics.purposes import Key
    from narrowcast.rounds.plan import Plan
    from narrowcast.tasks.options import TaskOptions

CHOICES: dict[str, Collection[str]] = {
    "task": TASKS,
    "method": METHODS,
    "subspace": KINDS,
    "optimiser": OPTIMISERS,
    "convention": choices.CONVENTIONS,
    "uplink": FORMATS,
    "downlink": choices.DOWNLINKS,
    "sampling": choices.SAMPLING,
    "weighting": choices.WEIGHTING,
    "aggregate": AGGREGATES,
    "attack": choices.ATTACKS,
    "engine": choices.ENGINES,
    "partition": choices.PARTITIONS,
    "trainable": choices.TRAINABLE,
    "precision": choices.PRECISIONS,
}
RENAMED = {"seeds": "directions"}  # what older configurations say
# What only a run itself fills in, in its folder's table; no reader of it needs more to know one.
RESOLVED = {"clients", "cohort", "evaluate_every", "local_steps", "prox", "threads"}
PRIVACY = {"dp_epsilon", "dp_delta", "dp_noise", "dp_clip"}  # all but the first are found where it is given
ELSEWHERE = {"device"}  # settings that are not of the run: elsewhere it is the same one


class RunConfig(Settings):
    """Settings that are what they should be, each and together, and what is made of them."""

    @model_validator(mode="before")
    @classmethod
    def _renamed(cls, table: Any) -> Any:
        if not isinstance(table, dict):
            return table
        return {RENAMED.get(name, name): value for name, value in table.items()}

    @field_validator("*", mode="before")
    @classmethod
    def _no_switch(cls, value: Any, info: ValidationInfo) -> Any:
        """True is 1 to Python: a setting that is a number, of others' methods and tasks too, refuses it."""
        from narrowcast.runs.own import plain_types

        if isinstance(value, bool):
            kinds = plain_types(cls.model_fields[str(info.field_name)].annotation)
            if kinds & {int, float} and bool not in kinds:
                raise ValueError(f"must be a number, got {str(value).lower()}")
        return value

    @field_validator(*CHOICES)
    @classmethod
    def _known(cls, value: str | None, info: ValidationInfo) -> str | None:
        name = str(info.field_name)
        if value is None or (name == "task" and value == CUSTOM):
            return value
        known = CHOICES[name]
        if isinstance(known, Registry) and ":" in value:
            known.check(value)
        choices.check(name, value, known)
        return value

    @field_validator("network")
    @classmethod
    def _network(cls, value: str | None) -> str | None:
        from narrowcast.rounds import network

        return None if value is None else network.setting(value)

    @model_validator(mode="after")
    def _bits(self) -> RunConfig:
        kinds.check_bits("up", self.uplink, self.up_bits)
        kinds.check_bits("down", self.downlink, self.down_bits)
        return self

    @model_validator(mode="after")
    def _length(self) -> RunConfig:
        if self.epochs is None and self.rounds is None:
            raise ValueError("say how long to train: --epochs or --rounds")
        return self

    @model_validator(mode="after")
    def _possible(self) -> RunConfig:
        if self.method not in METHODS.own:  # ours have no rule that is not one of a setting
            self.build_method()
        return self

    @property
    def rate(self) -> float:
        """`lr` as a number."""
        if isinstance(self.lr, str):
            raise ConfigError(f"--lr {self.lr}: this needs a number")
        return self.lr

    @property
    def label(self) -> str:
        if self.name:
            return self.name
        trained = {"all": "", "biases": "biases", "lora": f"lora r={self.lora_rank}"}[self.trainable]
        rule = "" if self.aggregate == "mean" else self.aggregate
        return " ".join(filter(None, (self.method, self.build_method().setting, trained, rule)))

    def but(self, **changes: Any) -> RunConfig:
        """With these changes; settings that only the former method or task has are dropped."""
        from narrowcast.runs import own

        table = {**self.model_dump(), **changes}
        kind = own.config_class(table["task"], table["method"])
        return kind(**{name: value for name, value in table.items() if name in kind.model_fields})

    def __reduce__(self) -> tuple[Any, ...]:
        from narrowcast.runs import own

        return own.again, (self.model_dump(),)

    def agrees_with(self, resolved: RunConfig) -> bool:
        """Whether a resolved configuration may have come from this one."""
        theirs = resolved.model_dump()
        asked = self.model_dump(
            exclude_none=True, exclude=ELSEWHERE | ({"lr"} if self.lr == "auto" else set())
        )
        if not all(theirs.get(name) == value for name, value in asked.items()):
            return False
        return all(
            self._fills(name, value) for name, value in theirs.items() if getattr(self, name, 0) is None
        )

    def _fills(self, name: str, value: Any) -> bool:
        """Whether a run may have found this value for a setting that is left open here."""
        if value is None or name == "data" or (name in PRIVACY - {"dp_epsilon"} and self.private):
            return True
        if name in ("local_steps", "prox"):
            return bool(value == getattr(self.build_method(), name))
        entry = METHODS[self.method]
        return name in RESOLVED or (name in entry.options and entry.default(name) in (None, value))

    @property
    def private(self) -> bool:
        """Whether its clients are guaranteed differential privacy."""
        return self.dp_epsilon is not None or self.dp_noise is not None

    def digest(self, only: set[str] | None = None) -> str:
        """Eight hex digits of what is asked beside the defaults, of these settings or of all."""
        asked = msgspec.json.encode(
            self.model_dump(include=only, exclude=ELSEWHERE, exclude_defaults=True), order="deterministic"
        )
        return xxhash.xxh3_64_hexdigest(asked)[:8]

    @property
    def key(self) -> Key:
        """The run's key: everything random in the run is derived from it."""
        from narrowcast.numerics import keyed

        return keyed.derive(self.seed, keyed.Purpose.RUN)

    def task_options(self) -> TaskOptions:
        from narrowcast.runs import made

        return made.task_options(self)

    def method_options(self, clients: int = 1) -> dict[str, Any]:
        """What the method of this run is made with, for a task with so many clients."""
        from narrowcast.runs import made

        return made.method_options(self, clients)

    def build_method(self, clients: int = 1) -> Method[Any]:
        """The method for a task with so many clients."""
        return METHODS[self.method].make(**self.method_options(clients))

    def plan(self, clients: int, run: bytes = bytes(8)) -> Plan:
        """The plan for a task with so many clients."""
        from narrowcast.runs import made

        return made.plan(self, clients, run)
