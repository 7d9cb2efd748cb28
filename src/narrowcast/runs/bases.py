"""What training began with: told of a task when its model is saved, found again from the file alone.

theta0 is part of it. The rest, which no run changes (frozen parameters, statistics of batch norm), decides
what the model computes as well, so the file has a digest of each.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

import msgspec
import torch
from torch import Tensor, nn

from narrowcast.errors import ConfigError
from narrowcast.extras import require
from narrowcast.numerics import flat, keyed
from narrowcast.numerics.flat import Layout
from narrowcast.numerics.keyed import Key, Purpose
from narrowcast.numerics.process import machine_memory
from narrowcast.rounds.task import Task
from narrowcast.runs.modelfile import Base, ModelFile
from narrowcast.runs.modelfile import described as in_words
from narrowcast.tasks.options import TaskOptions
from narrowcast.tasks.start import Start
from narrowcast.tasks.table import SETTINGS, STARTS
from narrowcast.tasks.text import models as texts
from narrowcast.tasks.text.tokens import PretrainedTokens
from narrowcast.wire.messages import WireError

Weights = dict[str, Tensor]
COPIES = 4  # of a base in memory, while it is exported
MOST = {"width": 1 << 32, "tokens": 1 << 32, "num_labels": 1 << 16}  # that a file may name
HUB_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]*(/[A-Za-z0-9][A-Za-z0-9_.-]*)?")


def described(task: Task, known: Base) -> Base:
    """`known` with what the task's module says of itself. A task without a module has nothing frozen."""
    module: Any = getattr(task, "module", None)
    if module is None:
        return known
    pretrained = str(getattr(module, "name_or_path", "") or "")
    config = getattr(module, "config", None)
    more: dict[str, Any] = {}
    if not known.name and pretrained and type(module).__module__.startswith("transformers."):
        more = {"name": portable(pretrained), "kind": type(module).__name__}
        if labels := getattr(config, "num_labels", 0):
            more["settings"] = {**known.settings, "num_labels": int(labels)}
    return msgspec.structs.replace(
        known,
        revision=str(getattr(config, "_commit_hash", None) or ""),
        fresh=dict.fromkeys(getattr(task, "fresh", ()), b""),
        tied=ties(module),
        frozen=frozen_digest(weights_of(module), task.layout.names),
        **more,
    )


def portable(name: str) -> str:
    """A name on the hub without its revision, or of a folder without the folders above it."""
    local = Path(name).expanduser()
    if name and (local.is_dir() or local.is_absolute()):
        return local.resolve().name
    return name.partition("@")[0]


def ties(module: nn.Module) -> dict[str, str]:
    """Second and further names of parameters -> the first, under which they are trained."""
    first, found = dict[int, str](), dict[str, str]()
    for name, p in module.named_parameters(remove_duplicate=False):
        if (known := first.setdefault(id(p), name)) != name:
            found[name] = known
    return found


def weights_of(module: nn.Module) -> Weights:
    """What the module's `state_dict` has: views of it, not copies.

    Each once, under its first name; layers with adapters around them by the names they had without.
    """
    tied = ties(module)
    return {
        name.replace(".base_layer.", "."): value
        for name, value in module.state_dict().items()
        if isinstance(value, Tensor) and name not in tied
    }


def frozen_digest(weights: Mapping[str, Tensor], trained: Collection[str]) -> bytes:
    """BLAKE2 over names, types, shapes and bits of what is not trained, in the order of the names."""
    total, trained = hashlib.blake2b(digest_size=16), set(trained)
    for name in sorted(weights.keys() - trained):
        value = weights[name].detach().cpu().contiguous()
        total.update(f"{name}\0{value.dtype}\0{tuple(value.shape)}\0".encode())
        total.update(value.reshape(-1).view(torch.uint8).cpu().numpy().data)
    return total.digest()


def gathered(weights: Mapping[str, Tensor], layout: Layout) -> Tensor:
    """theta0 (D,): the parameters that were trained, in the file's order."""
    refuse_missing(weights, layout.names)
    _refuse_unlike(weights, layout)
    return torch.cat([weights[name].detach().cpu().reshape(-1) for name in layout.names])


def _refuse_unlike(weights: Mapping[str, Tensor], layout: Layout) -> None:
    for name, shape in zip(layout.names, layout.shapes, strict=True):
        held = weights.get(name)
        if held is not None and (tuple(held.shape) != shape or held.dtype != torch.float32):
            raise ValueError(
                f"parameter {name} of the base is {tuple(held.shape)} of {held.dtype}, and was trained as "
                f"{shape} of torch.float32: load it with that shape and dtype=torch.float32"
            )


def refuse_missing(weights: Mapping[str, Tensor], names: Collection[str]) -> None:
    if missing := [name for name in names if name not in weights]:
        raise ValueError(
            f"the base has no parameter {', '.join(missing[:3])} ({len(missing)} of {len(names)} that were "
            f"trained): it is another model. It has {', '.join(list(weights)[:3])}, ..."
        )


def key_of(base: Base) -> Key:
    """The run's key, as `RunConfig.key` has it."""
    return keyed.derive(base.seed or 0, Purpose.RUN)


def fresh_weights(base: Base, weights: Mapping[str, Tensor]) -> Weights:
    """What the pretrained model lacks: as the file has it, or from the seed."""
    made = Weights()
    for number, (name, data) in enumerate(sorted(base.fresh.items())):
        if name not in weights:
            raise ValueError(f"the base has no parameter {name}: it is another model than {in_words(base)}")
        shape = weights[name].shape
        if data and len(data) != 4 * shape.numel():
            raise ValueError(f"the file has {len(data)} bytes for {name}, which takes {4 * shape.numel()}")
        made[name] = (
            flat.from_bytes(data).view(shape) if data else texts.drawn(name, number, shape, key_of(base))
        )
    return made


def find(model: ModelFile, place: str | None) -> Start:
    """The module that training began with, before adapters are put in; `place` is where, instead of the file.

    Nothing that the file says is run: no code, no pattern; its names are looked up in tables.
    """
    base = model.base
    name = place or base.name + (f"@{base.revision}" if base.name and base.revision else "")
    if not place and name and not HUB_NAME.fullmatch(base.name):
        raise ConfigError(
            f"the model's base {base.name!r} is no name of a model: give its folder with --base"
        )
    _refuse_too_large(model)
    if base.task in STARTS:
        return _of_task(model, name, place)
    if base.kind and name:
        start, _ = pretrained(base.kind, name, base.settings)
        return start
    raise ConfigError(
        f"this model's base is {in_words(base)}. In Python, call nc.apply(module, file) on that; or give the "
        "file of its initial weights (.safetensors, .pt) with --base"
    )


def _of_task(model: ModelFile, name: str, place: str | None) -> Start:
    base = model.base
    options: Any = {**_numbers(base.settings, "width", "tokens"), "model": name or None}
    if place and "model" not in SETTINGS[base.task]:
        raise ConfigError(f"--base {place}: this model's base is {in_words(base)}, made anew: leave it out")
    chosen = TaskOptions(key_of(base), **options)
    if base.task not in texts.PRETRAINED or name == texts.FROM_KEY:
        _refuse_unfit(model, chosen)
    return STARTS[base.task](chosen)


def pretrained(kind: str, name: str, settings: Mapping[str, Any]) -> tuple[Start, list[str]]:
    """(a model of transformers' class of this name, the parameters that its checkpoint lacks)."""
    require("transformers", "text", "a model of transformers")
    import transformers

    found: Any = getattr(transformers, kind, None)
    if not (isinstance(found, type) and issubclass(found, transformers.PreTrainedModel)):
        raise ConfigError(f"the model's base is of class {kind!r}, which this transformers does not have")
    module, tokenizer, info = texts.load(found, name, _numbers(settings, "num_labels"))
    there = dict(module.named_parameters())
    lacks = sorted(n for n in info["missing_keys"] if n in there)
    return Start(module, PretrainedTokens(tokenizer)), lacks


def _numbers(settings: Mapping[str, Any], *names: str) -> dict[str, Any]:
    """Those of a stranger's settings that say how large a model is."""
    chosen = {name: settings[name] for name in names if settings.get(name) is not None}
    for name, value in chosen.items():
        if type(value) is not int or not 1 <= value <= MOST[name]:
            raise WireError(f"the file's {name} is {value!r:.40}: it must be a whole number to {MOST[name]}")
    return chosen


def _refuse_too_large(model: ModelFile) -> None:
    """What a stranger's file claims must fit in this machine's memory."""
    memory = machine_memory()
    if 4 * model.layout.size > memory:
        raise ValueError(
            f"the file claims {model.layout.size} parameters: more than the {memory} bytes of memory here"
        )


def _refuse_unfit(model: ModelFile, options: TaskOptions) -> None:
    """A ValueError, unless what the seed makes has the file's shapes and can be made and copied here."""
    base, memory = model.base, machine_memory()
    try:
        with torch.device("meta"):
            weights = weights_of(STARTS[base.task](options).module)
    except RuntimeError as error:  # more numbers than can be counted
        raise ValueError(f"{in_words(base)} cannot be made: {error}") from None
    size = sum(value.nbytes for value in weights.values())
    if COPIES * size > memory:
        raise ValueError(
            f"{in_words(base)} takes {size} bytes, {COPIES} times while it is exported: more than the "
            f"{memory} bytes of memory"
        )
    refuse_missing(weights, [name for name in model.layout.names if ".lora_" not in name])
    _refuse_unlike(weights, model.layout)
