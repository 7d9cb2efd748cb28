"""A run's configuration: one flat, validated table, from TOML or from the command line.

Every field is a flag of `narrowcast run` (`local_steps` is `--local-steps`) and a key of a TOML file. What
is unset takes the task's or the method's own default; the run folder records the resolved table.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
import xxhash
from pydantic import BaseModel, ConfigDict, Field, ValidationInfo, field_validator, model_validator

from narrowcast import choices
from narrowcast.aggregates.table import AGGREGATES
from narrowcast.errors import ConfigError
from narrowcast.methods.table import METHODS, OPTIMISERS
from narrowcast.registry import Registry
from narrowcast.runs import kinds
from narrowcast.runs.kinds import COUNT, Bits, Clip, Positive, Rate, Refresh, Schedule, Share, Size
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
ELSEWHERE = {"device"}  # settings that are not of the run: elsewhere it is the same one


class RunConfig(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)

    task: str = Field(description="what to train: " + ", ".join(TASKS.own))
    method: str = Field("static", description="how to compress: " + ", ".join(METHODS.own))
    name: str = Field("", description="label in tables and pictures (default: method and dim)")
    seed: Annotated[int, COUNT, Field(ge=0, lt=1 << 63)] = Field(
        0, description="of theta0, A, the clients and the sampling"
    )

    dim: Positive = Field(1024, description="d: numbers in an upload")
    subspaces: Positive = Field(8, description="K of the K-subspace methods")
    refresh: Refresh = Field(
        "epoch", description='time-varying: a new A after every "epoch" or every N rounds with updates'
    )
    subspace: str = Field("rotation", description="kind of A: " + ", ".join(KINDS.own))
    optimiser: str = Field("sgd", description="on the server: " + ", ".join(OPTIMISERS))
    momentum: Annotated[float, Field(ge=0, lt=1)] = Field(0.9, description="beta of momentum and adam")
    carry: bool = Field(False, description="carry momentum over to a new A instead of resetting it")
    convention: str = Field(
        "orthonormal", description="of --lr: a step along an orthonormal basis, or the paper's E[AA^T] = I"
    )
    uplink: str = Field("f32", description="numbers of an upload: " + ", ".join(FORMATS.own))
    downlink: str = Field("f32", description="numbers of a download")
    up_bits: Bits | None = Field(
        None,
        description="bits of a number up, 0.25 to 16, dithered and coded (default: 32, as f32; narrow: 1)",
    )
    down_bits: Bits | None = Field(
        None, description="bits of a number down, 0.25 to 16, points of a lattice (default: 32; narrow: 2)"
    )

    k: Positive | None = Field(
        None, description="coordinates in an upload of topk, fetchsgd, stc, dgc, ef21 (default: D/100)"
    )
    error_feedback: bool = Field(
        True, description="clients keep what they could not send (topk, stc, powersgd)"
    )
    warmup: Annotated[int, COUNT, Field(ge=0)] = Field(0, description="dgc: rounds until k is reached")
    sketch_rows: Annotated[int, COUNT, Field(ge=1, le=64)] = Field(5, description="fetchsgd: of the sketch")
    sketch_columns: Positive | None = Field(None, description="fetchsgd: its columns (default: D / 4 rows)")
    rank: Annotated[int, COUNT, Field(ge=1, le=1024)] = Field(2, description="of powersgd, random-low-rank")
    levels: Annotated[int, COUNT, Field(ge=1, le=127)] = Field(
        7, description="qsgd: steps from 0 to the norm"
    )
    directions: Annotated[int, COUNT, Field(ge=1, le=1 << 16)] = Field(
        1024, description="fedkseed: K, of seeded directions"
    )
    epsilon: Annotated[float, Field(gt=0, le=1)] = Field(1e-3, description="fedkseed: how far a probe goes")

    lr: Rate = Field(
        "auto",
        description='peak learning rate of the server, or "auto": found by trials before the run',
    )
    schedule: Schedule = Field(
        "triangle", description='factor of lr: "constant", "triangle" or knots "epoch:factor,..."'
    )
    epochs: Annotated[float, Field(gt=0, le=1e6)] | None = Field(
        None, description="length of the run in epochs"
    )
    rounds: Annotated[int, COUNT, Field(ge=1, lt=1 << 31)] | None = Field(
        None, description="length of the run in rounds"
    )
    cohort: Positive | None = Field(
        None, description="clients a round (default: a tenth of them, at most 100)"
    )
    sampling: str = Field("epoch", description="every client once an epoch, drawn afresh, or by secret coins")
    participation: Share = Field(1.0, description="fraction of the asked clients that come")
    dropout: Annotated[float, Field(ge=0, lt=1)] = Field(
        0.0, description="fraction of those that never answer"
    )
    local_steps: Positive | None = Field(None, description="steps of a client a round (fedavg: 5, others: 1)")
    local_batch: Annotated[int, COUNT, Field(ge=0)] = Field(
        0, description="examples of a local step (0: all it has)"
    )
    local_lr: Annotated[float, Field(gt=0)] | None = Field(
        None, description="rate of local steps (default: the round's)"
    )
    prox: Annotated[float, Field(ge=0, allow_inf_nan=False)] | None = Field(
        None, description="FedProx's mu, against walking away in local steps (fedprox: 0.1, others: 0)"
    )
    weighting: str = Field("clients", description="what an update weighs")
    aggregate: str = Field(
        "mean", description="how a round's updates become one: " + ", ".join(AGGREGATES.own)
    )
    tolerate: Annotated[float, Field(ge=0, lt=0.5)] = Field(
        0.3, description="share of a round's clients that may lie (trimmed-mean, krum, multi-krum)"
    )
    dp_epsilon: Size | None = Field(None, description="of every client, at most: the noise it takes is found")
    dp_delta: Size | None = Field(None, description="of that epsilon (default: at most a tenth of 1/clients)")
    dp_noise: Size | None = Field(None, description="sigma, in clipping bounds: epsilon is what comes of it")
    dp_clip: Clip | None = Field(None, description='bound of an update\'s norm, or "adaptive" (default: 1)')
    evaluate_every: Annotated[int, COUNT, Field(ge=0)] | None = Field(
        None, description="rounds between evaluations (default: an epoch; 0: only at the end)"
    )
    per_client: bool = Field(
        False, description="compress every client's update by itself, the slow exact road"
    )
    network: str | None = Field(None, description="of simulated clients: 4g, dsl, lan, mixed, or a file")
    deadline: Annotated[float, Field(gt=0, allow_inf_nan=False)] | None = Field(
        None, description="seconds on the network after which a round ends without those who are late"
    )
    attackers: Annotated[float, Field(ge=0, lt=1)] = Field(
        0.0, description="share of the simulated clients that lie"
    )
    attack: str = Field("sign-flip", description="how they do: " + ", ".join(choices.ATTACKS))
    engine: str = Field(
        "here", description="where clients run: in this process, or as nodes of Flower's simulation engine"
    )
    device: Annotated[str, Field(pattern=f"^({choices.DEVICE})$")] = Field(
        "auto",
        description="of theta and training: auto (a GPU, if the run can use it), cpu, cuda, cuda:1, mps",
    )
    threads: Annotated[int, COUNT, Field(ge=1, le=4096)] | None = Field(
        None,
        description="of this machine (default: 1 for a small model whose clients share a batch, else all)",
    )

    clients: Positive | None = Field(None, description="number of clients (default: the task's)")
    partition: str | None = Field(None, description="of data into clients")
    alpha: Annotated[float, Field(gt=0)] = Field(0.5, description="of the Dirichlet partition")
    width: Annotated[int, COUNT, Field(ge=1, le=1 << 20)] | None = Field(
        None, description="width of the model (default: the task's)"
    )
    trainable: str = Field(
        "all", description="parameters that are trained and sent: all, biases and head (BitFit), or LoRA's"
    )
    lora_rank: Annotated[int, COUNT, Field(ge=1, le=1024)] = Field(4, description="r of --trainable lora")
    lora_alpha: Annotated[float, Field(gt=0, allow_inf_nan=False)] = Field(
        4.0, description="its scale: W + alpha/r B A"
    )
    freeze: str | None = Field(
        None, description="regular expression: parameters whose name has a match are not trained"
    )
    examples: Positive | None = Field(None, description="train on so many examples (default: all)")
    test_examples: Positive | None = Field(None, description="evaluate on so many (default: all)")
    model: str | None = Field(
        None, description="of a task over text: a folder, a name on the hub, minilm, smollm2, or tiny"
    )
    tokens: Annotated[int, COUNT, Field(ge=8, le=1 << 20)] | None = Field(
        None, description="of the longest sequence of a task over text (default: the task's)"
    )
    precision: str = Field("f32", description="a text model computes in; theta and messages do not change")
    checkpointing: bool = Field(
        False, description="a text model computes its activations twice instead of keeping them"
    )
    data: str | None = Field(None, description="folder of the data (default: NARROWCAST_DATA)")
    validation: bool = Field(
        False, description="evaluate on a held-out tenth of the training set, to tune rates"
    )

    @model_validator(mode="before")
    @classmethod
    def _renamed(cls, table: Any) -> Any:
        if not isinstance(table, dict):
            return table
        return {RENAMED.get(name, name): value for name, value in table.items()}

    @field_validator(*CHOICES)
    @classmethod
    def _known(cls, value: str | None, info: ValidationInfo) -> str | None:
        name = str(info.field_name)
        if value is None or (name == "task" and value == CUSTOM):
            return value
        known = CHOICES[name]
        if isinstance(known, Registry) and ":" in value:
            known.check(value)
        choices.check(name, value, [*known, CUSTOM] if name == "task" else known)
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
        entry = METHODS[self.method]  # its clients are those of the task
        own = [name for name in entry.options if name != "clients" and getattr(self, name, 0) is None]
        silent = {name: entry.default(name) for name in own}
        return all(theirs.get(name) in (None, value) for name, value in silent.items() if value is not None)

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
