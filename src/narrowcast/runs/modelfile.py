"""The exported model: a newcomer's download in a file. (theta0, seeds, Sigmas), not D numbers.

What a client lacks at its first visit is the model, so the file is that payload with the method's settings
and two digests beside it. Rebuilding is reconciling: the server's weights, bit for bit.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec
from torch import Tensor

from narrowcast import files
from narrowcast.methods.base import Method, Server
from narrowcast.methods.table import METHODS
from narrowcast.numerics.flat import Layout
from narrowcast.numerics.process import own_settings
from narrowcast.runs.config import RENAMED
from narrowcast.wire import messages as wire
from narrowcast.wire.messages import Payload, WireError

MAGIC = "narrowcast model 1"


class ModelFile(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    magic: str
    method: str
    settings: dict[str, int | float | str | bool | None]  # its options, but for the optimiser
    layout: Layout  # of the D parameters
    version: int
    theta0: bytes  # digest of where training started
    theta: bytes  # digest of the model
    payload: Payload


_decoder = msgspec.msgpack.Decoder(ModelFile)


def save(
    path: Path, name: str, options: Mapping[str, Any], server: Server, theta0: Tensor, layout: Layout
) -> None:
    """Write the server's model, trained by the method of this name with these options."""
    method = METHODS[name].make(**options)
    model = ModelFile(
        MAGIC,
        name,
        {option: value for option, value in options.items() if option != "optimiser"},
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
    except (msgspec.MsgspecError, ValueError, TypeError, RecursionError) as error:
        raise WireError(f"{path} is not a narrowcast model: {error}") from None
    if model.magic != MAGIC or model.method not in METHODS:
        raise WireError(
            f"{path} is not a model that this version can read (it says {model.magic!r}, {model.method!r})"
        )
    return model


def _method(model: ModelFile) -> Method[Any]:
    """The method as it was; files of earlier versions name the options of all methods, some by old names."""
    entry = METHODS[model.method]
    settings = {RENAMED.get(name, name): value for name, value in model.settings.items()}
    return entry.make(**{name: value for name, value in settings.items() if name in entry.options})


def rebuild(model: ModelFile, theta0: Tensor) -> Tensor:
    """theta (D,) from the theta0 it was trained from; both are checked by their digests."""
    if theta0.numel() != model.layout.size or wire.digest(theta0) != model.theta0:
        raise ValueError(
            f"this model was trained from another theta0 (of {model.layout.size} parameters): "
            "build the module with the seed, width and weights of its run"
        )
    try:
        method = _method(model)
        with own_settings():
            _, theta = method.reconcile(method.newcomer(theta0, model.layout), model.payload, model.version)
    except WireError:
        raise
    except (TypeError, ValueError, ArithmeticError, LookupError, RuntimeError) as error:
        raise WireError(f"the model file's settings are wrong: {error}") from None
    if wire.digest(theta) != model.theta:
        raise WireError("the rebuilt weights do not have the digest in the file: it is damaged")
    return theta


def load_model(path: Path | str, theta0: Tensor) -> Tensor:
    """theta (D,) of an exported model."""
    return rebuild(read(Path(path)), theta0)
