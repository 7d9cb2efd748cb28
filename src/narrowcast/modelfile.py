"""The exported model: a newcomer's download in a file. (theta0, seeds, Sigmas), not D numbers.

What a client lacks at its first visit is the model, so the file is that payload with the method's settings
and two digests beside it. Rebuilding is reconciling: the server's weights, bit for bit.
"""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path

import msgspec
from torch import Tensor

from narrowcast import files, wire
from narrowcast.flat import Layout
from narrowcast.methods import METHODS, MethodOptions, Server
from narrowcast.wire import Payload, WireError

MAGIC = "narrowcast model 1"


class ModelFile(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    magic: str
    method: str
    settings: dict[str, int | float | str | bool | None]  # of MethodOptions, but for the optimiser
    layout: Layout  # of the D parameters
    version: int
    theta0: bytes  # digest of where training started
    theta: bytes  # digest of the model
    payload: Payload


_decoder = msgspec.msgpack.Decoder(ModelFile)


def save(
    path: Path, name: str, options: MethodOptions, server: Server, theta0: Tensor, layout: Layout
) -> None:
    """Write the server's model, trained by the method of this name with these options."""
    method = METHODS[name].make(options)
    model = ModelFile(
        MAGIC,
        name,
        {field.name: getattr(options, field.name) for field in fields(options) if field.name != "optimiser"},
        layout,
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
    if theta0.numel() != model.layout.size or wire.digest(theta0) != model.theta0:
        raise ValueError(
            f"this model was trained from another theta0 (of {model.layout.size} parameters): "
            "build the module with the seed, width and weights of its run"
        )
    try:
        method = METHODS[model.method].make(MethodOptions(**model.settings))  # type: ignore[arg-type]
    except (TypeError, ValueError) as error:
        raise WireError(f"the model file's settings are wrong: {error}") from None
    _, theta = method.reconcile(method.newcomer(theta0, model.layout), model.payload, model.version)
    if wire.digest(theta) != model.theta:
        raise WireError("the rebuilt weights do not have the digest in the file: it is damaged")
    return theta


def load(path: Path | str, theta0: Tensor) -> Tensor:
    """theta (D,) of an exported model."""
    return rebuild(read(Path(path)), theta0)
