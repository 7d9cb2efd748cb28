"""The settings of a run, each with its type, its default and a line of help.

Every field is a flag of `narrowcast run` (`local_steps` is `--local-steps`) and a key of a TOML file. What
is unset takes the task's or the method's own default.
"""

from __future__ import annotations

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

from narrowcast import choices
from narrowcast.aggregates.table import AGGREGATES
from narrowcast.methods.table import METHODS, OPTIMISERS
from narrowcast.runs.kinds import COUNT, Bits, Clip, Positive, Rate, Refresh, Schedule, Share, Size
from narrowcast.subspaces.table import KINDS
from narrowcast.tasks.table import TASKS
from narrowcast.wire.table import FORMATS


class Settings(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)

    task: str = Field(description="what to train: " + ", ".join(TASKS.own))
    method: str = Field("static", description="how to compress: " + ", ".join(METHODS.own))
    name: str = Field("", description="label in tables and pictures (default: method and dim)")
    seed: Annotated[int, COUNT, Field(ge=0, le=(1 << 63) - 1)] = Field(
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
