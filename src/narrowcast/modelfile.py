"""The exported model: a newcomer's download in a file. (theta0, seeds, Sigmas), not D numbers.

What a client lacks at its first visit is the model, so the file is that payload with the method's settings
and two digests beside it. Rebuilding is reconciling: the server's weights, bit for bit.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import msgspec
from msgspec import Meta
from torch import Tensor

from narrowcast import files, wire
from narrowcast.methods import METHODS, Method, MethodOptions, Server
from narrowcast.wire import Payload, WireError

MAGIC = "narrowcast model 1"


class Settings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What rebuilding depends on: see `MethodOptions`."""

    key: Annotated[int, Meta(ge=0)]
    dim: Annotated[int, Meta(ge=1)]
    subspaces: Annotated[int, Meta(ge=1, le=4096)]
    refresh: int | str
    subspace: str
    downlink: str


class ModelFile(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    magic: str
    method: str
    settings: Settings
    parameters: int  # D
    version: int
    theta0: bytes  # digest of where training started
    theta: bytes  # digest of the model
    payload: Payload


_decoder = msgspec.msgpack.Decoder(ModelFile)


def save(
    path: Path, name: str, options: MethodOptions, method: Method[Any], server: Server, theta0: Tensor
) -> None:
    """Write the server's model."""
    settings = Settings(**{name: getattr(options, name) for name in Settings.__struct_fields__})
    model = ModelFile(
        MAGIC,
        name,
        settings,
        theta0.numel(),
        server.version,
        wire.digest(theta0),
        wire.digest(method.theta(server)),
        method.download(server, None),
    )
    files.write_atomically(path, msgspec.msgpack.encode(model))


def read(path: Path) -> ModelFile:
    """The file, checked against its schema: it may come from anywhere."""
    try:
        model = _decoder.decode(path.read_bytes())
    except msgspec.DecodeError as error:
        raise WireError(f"{path} is not a narrowcast model: {error}") from None
    if model.magic != MAGIC or model.method not in METHODS:
        raise WireError(
            f"{path} is not a model that this version can read (it says {model.magic!r}, {model.method!r})"
        )
    return model


def rebuild(model: ModelFile, theta0: Tensor) -> Tensor:
    """theta (D,) from the theta0 it was trained from; both are checked by their digests."""
    if theta0.numel() != model.parameters or wire.digest(theta0) != model.theta0:
        raise ValueError(
            f"this model was trained from another theta0 (of {model.parameters} parameters): "
            "build the module with the seed, width and weights of its run"
        )
    settings = msgspec.structs.asdict(model.settings)
    try:
        method = METHODS[model.method](MethodOptions(**settings))
    except (TypeError, ValueError) as error:
        raise WireError(f"the model file's settings are wrong: {error}") from None
    _, theta = method.reconcile(method.newcomer(theta0), model.payload, model.version)
    if wire.digest(theta) != model.theta:
        raise WireError("the rebuilt weights do not have the digest in the file: it is damaged")
    return theta


def load(path: Path | str, theta0: Tensor) -> Tensor:
    """theta (D,) of an exported model."""
    return rebuild(read(Path(path)), theta0)
