"""The exported model: a newcomer's download in a file. (theta0, seeds, Sigmas), not D numbers.

What a client lacks at its first visit is the model, so the file is that payload with the method's settings,
two digests and a record of where theta0 is from. Rebuilding is reconciling: the server's weights, bit for
bit.
"""

from __future__ import annotations

import zlib
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
from narrowcast.tasks.table import CUSTOM
from narrowcast.wire import messages as wire
from narrowcast.wire.earlier import Payload1, digest1
from narrowcast.wire.messages import WireError

MAGIC, MAGIC1 = "narrowcast model 2", "narrowcast model 1"
AXES, LONG = 32, 1 << 48  # of a tensor, and numbers along one: products of these are soon taken
SMALL, DEFLATED = 4 << 20, b"\x78"  # bytes of a file that is deflated; how zlib begins
Settings = dict[str, int | float | str | bool | None]


class Base(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """How what training began with is found again: by name and revision, or by what a seed makes."""

    task: str = ""
    name: str = ""  # of pretrained weights, on the hub or of their folder; "": there are none
    revision: str = ""  # of those, where it is known
    seed: int | None = None  # of what is not pretrained
    settings: Settings = {}  # of the task: width, trainable, ...
    kind: str = ""  # transformers' class of a pretrained model, where no task of ours makes it
    fresh: dict[str, bytes] = {}  # what a pretrained model lacks: float32, or b"" where the seed draws it
    tied: dict[str, str] = {}  # second names of parameters: the first
    frozen: bytes = b""  # digest of what was not trained; b"" in files of before there was one


class _Any(msgspec.Struct, frozen=True):
    """What files of every version have."""

    magic: str


class _Common(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    magic: str
    method: str
    settings: Settings  # its options, but for the optimiser
    layout: Layout  # of the D parameters
    version: int
    theta0: bytes  # digest of where training started
    theta: bytes  # digest of the model


class _ModelFile1(_Common, frozen=True, forbid_unknown_fields=True):
    payload: Payload1


class ModelFile(_Common, frozen=True, forbid_unknown_fields=True):
    payload: bytes  # as `wire.encode_payload` writes it
    base: Base = Base()

    def digest(self, vector: Tensor) -> bytes:
        """As the version that wrote the file took it."""
        return digest1(vector) if self.magic == MAGIC1 else wire.digest(vector)


def save(
    path: Path,
    name: str,
    options: Mapping[str, Any],
    server: Server,
    theta0: Tensor,
    layout: Layout,
    base: Base = Base(),
) -> None:
    """Write the server's model, trained by the method of this name with these options, from this base."""
    method = METHODS[name].make(**options)
    model = ModelFile(
        MAGIC,
        name,
        {option: value for option, value in options.items() if option != "optimiser"},
        layout,
        server.version,
        wire.digest(theta0),
        wire.digest(method.theta(server)),
        wire.encode_payload(method.download(server, None)),
        base,
    )
    files.write_atomically(path, _packed(msgspec.msgpack.encode(model)))


def _packed(data: bytes) -> bytes:
    """Deflated where the model is small: the names of its parameters are then half of it."""
    return zlib.compress(data, 9) if len(data) < SMALL else data


def _unpacked(data: bytes) -> bytes:
    """A plain file begins with a map's byte, 0x80 and above; what inflates without end is not followed."""
    if data[:1] != DEFLATED:
        return data
    inflating, most = zlib.decompressobj(), SMALL + 1
    found = inflating.decompress(data, most)
    if len(found) == most or not inflating.eof or inflating.unused_data:
        raise ValueError(f"it does not inflate to a model of at most {SMALL} bytes")
    return found


def read(path: Path) -> ModelFile:
    """The file, checked against its schema: it may come from anywhere."""
    data, decode = path.read_bytes(), msgspec.msgpack.decode
    try:
        data = _unpacked(data)
        if decode(data, type=_Any).magic == MAGIC1:
            old = decode(data, type=_ModelFile1)
            fields = {f: getattr(old, f) for f in _Common.__struct_fields__}
            model = ModelFile(**fields, payload=wire.encode_payload(old.payload.now()))
        else:
            model = decode(data, type=ModelFile)
    except (msgspec.MsgspecError, ValueError, TypeError, RecursionError, zlib.error) as error:
        raise WireError(f"{path} is not a narrowcast model: {error}") from None
    if model.magic not in (MAGIC, MAGIC1):
        raise WireError(f"{path} is not a model that this version can read (it says {model.magic!r})")
    if not _sane(model.layout):
        raise WireError(f"{path} has parameters of shapes that no model has")
    if model.method not in METHODS:  # nothing is imported because a file names it
        raise WireError(
            f"{path} is of the method {model.method!r}, which is not here: install its package, or call "
            f"narrowcast.register('method', {model.method!r}, ...) before loading it"
        )
    return model


def _sane(layout: Layout) -> bool:
    """Whether there can be such tensors, before their numbers are multiplied."""
    return len(layout.names) == len(layout.shapes) and all(
        len(shape) <= AXES and all(0 <= n < LONG for n in shape) for shape in layout.shapes
    )


def _method(model: ModelFile) -> Method[Any]:
    """The method as it was; files of earlier versions name the options of all methods, some by old names."""
    entry = METHODS[model.method]
    settings = {RENAMED.get(name, name): value for name, value in model.settings.items()}
    return entry.make(**{name: value for name, value in settings.items() if name in entry.options})


def described(base: Base) -> str:
    """The base in words."""
    if base.name:
        return base.name + (f" at revision {base.revision}" if base.revision else "")
    if base.seed is not None and base.task not in ("", CUSTOM):
        shape = f" of width {base.settings['width']}" if "width" in base.settings else ""
        return f"the model of the task {base.task}{shape}, from seed {base.seed}"
    return "a module of its program's own: build that as it was before training, with its seed and weights"


def rebuild(model: ModelFile, theta0: Tensor) -> Tensor:
    """theta (D,) from the theta0 it was trained from; both are checked by their digests."""
    if theta0.numel() != model.layout.size or model.digest(theta0) != model.theta0:
        raise ValueError(
            f"this model was trained from another theta0 (of {model.layout.size} parameters): its base is "
            f"{described(model.base)}"
        )
    try:
        method = _method(model)
        payload = wire.decode_payload(model.payload)
        with own_settings():
            _, theta = method.reconcile(method.newcomer(theta0, model.layout), payload, model.version)
    except WireError:
        raise
    except (TypeError, ValueError, ArithmeticError, LookupError, RuntimeError) as error:
        raise WireError(f"the model file's settings are wrong: {error}") from None
    if model.digest(theta) != model.theta:
        raise WireError("the rebuilt weights do not have the digest in the file: it is damaged")
    return theta


def load_model(path: Path | str, theta0: Tensor) -> Tensor:
    """theta (D,) of an exported model.

    >>> import tempfile, narrowcast as nc
    >>> from pathlib import Path
    >>> from narrowcast.runs import make_config, runner
    >>> config = make_config({"task": "quadratic", "width": 50, "dim": 8, "rounds": 3})
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     run = runner.start(config, Path(folder) / "run")
    ...     task, _ = runner.rebuild(run)
    ...     theta = nc.load_model(run / "model.narrowcast", task.theta0())
    >>> theta.shape
    torch.Size([50])
    """
    return rebuild(read(Path(path)), theta0)
