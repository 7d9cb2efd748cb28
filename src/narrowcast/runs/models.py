"""Models that travel: saved in kilobytes, put on the module they were trained from, written out in full."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec
import torch
from torch import Tensor, nn

from narrowcast import files
from narrowcast.errors import ConfigError
from narrowcast.extras import require
from narrowcast.methods.base import Method
from narrowcast.methods.table import METHODS
from narrowcast.numerics import flat
from narrowcast.rounds.task import Task
from narrowcast.rounds.training import Training
from narrowcast.runs import bases, modelfile
from narrowcast.runs.bases import Weights
from narrowcast.runs.modelfile import Base, ModelFile
from narrowcast.tasks.table import CUSTOM
from narrowcast.tasks.text import models as texts
from narrowcast.tasks.trainable import adapted_layers, add_adapters
from narrowcast.wire.messages import WireError

MAX_RANK = 1024  # of adapters, as a run's settings have it
WEIGHTS = (".safetensors", ".pt", ".pth", ".bin")  # files of a base's weights


def save_model(path: Path | str, run: Training, base: str | Path | None = None) -> None:
    """Write what a run has trained: what a newcomer would be sent, and how its base is found again.

    >>> import os, tempfile, narrowcast as nc
    >>> from narrowcast.testing import toy_task
    >>> run = nc.Simulation(toy_task(), nc.method("static", dim=8), nc.Plan(cohort=4, lr=1.0, rounds=3))
    >>> records = list(run)
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     nc.save_model(f"{folder}/model.narrowcast", run)
    ...     os.listdir(folder)
    ['model.narrowcast']

    `base` is the folder or the hub's name of the pretrained model that the task's module was loaded from; a
    module of transformers knows it by itself. It is loaded once more, to find what it lacks, such as a new
    head, which then goes into the file, and to be sure that it is the one. base="" leaves that out.
    """
    name, options = _in_table(run.method)
    known = bases.described(run.task, Base(task=CUSTOM))
    module: Any = getattr(run.task, "module", None)
    place = str(getattr(module, "name_or_path", "") or "") if base is None else str(base)
    if place and not known.kind:
        raise ValueError(
            f"base {place!r}: the task's module is no model of transformers, so it cannot be loaded from "
            "there. Leave base out, and call nc.apply on a module built as it was before training"
        )
    if place:
        known = _checked(known, place, run)
    modelfile.save(Path(path), name, options, run.server, run.theta0, run.task.layout, known)


def _in_table(method: Method[Any]) -> tuple[str, dict[str, Any]]:
    """(name, options) by which the table makes this very method."""
    for name in METHODS:
        try:
            entry = METHODS[name]
        except ValueError:  # another package's, that cannot be loaded
            continue
        if type(method) is entry.kind:
            options = {option: getattr(method, option) for option in entry.options}
            if entry.make(**options) == method:
                return name, options
    raise ValueError(
        f"{type(method).__name__} is in no row of the table of methods: nobody could make it again. "
        f'Bring it: nc.register("method", "its-name", {type(method).__name__})'
    )


def _checked(known: Base, place: str, run: Training) -> Base:
    """The base with what it lacks; a ValueError if training did not begin from it."""
    start, lacks = bases.pretrained(known.kind, place, known.settings)
    layout, module = run.task.layout, getattr(run.task, "module", nn.Module())
    held = bases.weights_of(module) | layout.split(run.theta0)
    found = bases.weights_of(start.module)
    fresh = {name: held[name] for name in lacks if name in held}
    for name, value in (found | fresh).items():
        if name not in held or not torch.equal(value, held[name]):
            raise ValueError(
                f"base {place!r} is not what training began with: {name} differs. Name the one that the "
                "module was loaded from"
            )
    data = {name: flat.to_bytes(value.reshape(-1)) for name, value in fresh.items()}
    return msgspec.structs.replace(known, name=bases.portable(place), fresh=data)


def apply(module: nn.Module, path: Path | str) -> nn.Module:
    """Put a trained model on the module it was trained from, in place, bit for bit the server's weights.

    >>> import tempfile, torch, narrowcast as nc
    >>> from narrowcast.testing import toy_task
    >>> run = nc.Simulation(toy_task(), nc.method("static", dim=8), nc.Plan(cohort=4, lr=1.0, rounds=3))
    >>> records = list(run)
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     nc.save_model(f"{folder}/model.narrowcast", run)
    ...     model = nc.apply(toy_task().module, f"{folder}/model.narrowcast")  # as it was before training
    >>> torch.equal(torch.cat([p.detach().flatten() for p in model.parameters()]), run.theta)
    True

    A model of transformers is applied to what `from_pretrained` returns, with the same settings.
    Parameters that the base lacked are set as training found them, and low-rank adapters put in where there
    were some. A module that is not what training began with, frozen parts and all, is refused by its digest
    and left as it was.
    """
    return _applied(module, modelfile.read(Path(path)))


def _applied(module: nn.Module, model: ModelFile) -> nn.Module:
    held = bases.weights_of(module)
    bases.refuse_missing(held, [name for name in model.layout.names if ".lora_" not in name])
    fresh = bases.fresh_weights(model.base, held)
    if held.keys() >= set(model.layout.names) and _is_trained(held, model):
        return module
    _refuse_other(held | fresh, model)
    layers = adapted_layers(model.layout.names)
    if layers and model.layout.names[0] not in held:
        module = add_adapters(module, *_adapters(module, layers, model.base))
        held = bases.weights_of(module)
    theta = modelfile.rebuild(model, bases.gathered(held | fresh, model.layout))
    with torch.no_grad():
        for name, value in (fresh | model.layout.split(theta)).items():
            held[name].copy_(value)
    return module


def _is_trained(held: Weights, model: ModelFile) -> bool:
    """Whether the module has these weights already: applying a model twice is applying it once."""
    theta = bases.gathered(held, model.layout)
    return model.theta != model.theta0 and model.digest(theta) == model.theta


def _refuse_other(held: Weights, model: ModelFile) -> None:
    known = model.base.frozen
    if known and bases.frozen_digest(held, model.layout.names) != known:
        raise ValueError(
            "this model was trained from another base: what it left as it was has other names or other bits "
            f"than here. Its base is {modelfile.described(model.base)}"
        )


def _adapters(module: nn.Module, layers: list[str], base: Base) -> tuple[list[str], int, float, int]:
    """(layers, rank, alpha, key) of the adapters of a run, whose settings the file has."""
    there = dict(module.named_modules())
    rank, alpha = base.settings.get("lora_rank"), base.settings.get("lora_alpha")
    if base.settings.get("trainable") != "lora":
        raise ValueError(
            "this model was trained as adapters of its program's own: put them into the module first"
        )
    if type(rank) is not int or not isinstance(alpha, int | float):
        raise WireError(f"the file has adapters of rank {rank!r} and alpha {alpha!r}, which are no numbers")
    if not 1 <= rank <= MAX_RANK or not all(layer in there for layer in layers):
        raise WireError(f"the file has adapters of rank {rank} on layers that are not all here")
    return layers, rank, float(alpha), bases.key_of(base)


def export(model: ModelFile, to: Path, base: str | None = None) -> None:
    """The whole model: a file of named tensors, by one of the suffixes in WEIGHTS, or transformers' folder.

    `base` is where the model is that training began with, in place of what the file says: a folder or a name
    for transformers, or a file of weights by name.
    """
    if base and base.endswith(WEIGHTS):
        _write(_over(_read_weights(Path(base)), model), to)
        return
    start = bases.find(model, base)
    module: Any = _applied(start.module, model)
    if to.suffix not in WEIGHTS and hasattr(module, "save_pretrained"):
        _save_folder(module, getattr(start.tokens, "tokenizer", None), to)
    else:
        _write({name: value.detach().clone() for name, value in module.state_dict().items()}, to)


def export_task(task: Task, theta: Tensor, to: Path) -> None:
    """The same of a task that others have brought: their function makes its model, with its data."""
    _write({name: value.detach().clone() for name, value in task.state_dict(theta).items()}, to)


def _over(weights: Weights, model: ModelFile) -> Weights:
    """The weights of a file with those that were trained in their place; tied ones under all their names."""
    if adapted_layers(model.layout.names):
        raise ConfigError("low-rank adapters need the module they belong to: call nc.apply(module, file)")
    aliases = {alias: name for alias, name in model.base.tied.items() if alias in weights}
    once = {aliases.get(name, name): value for name, value in reversed(weights.items())}
    fresh = bases.fresh_weights(model.base, once)
    _refuse_other(once | fresh, model)
    theta = modelfile.rebuild(model, bases.gathered(once | fresh, model.layout))
    made = once | fresh | model.layout.split(theta)
    return {name: made[aliases.get(name, name)].clone() for name in weights}


def _read_weights(path: Path) -> Weights:
    """A file of tensors by name; never a pickle of anything else."""
    if path.suffix == ".safetensors":
        require("safetensors", "hub", "a .safetensors file")
        from safetensors.torch import load_file

        return load_file(path)
    try:
        found = torch.load(path, map_location="cpu", weights_only=True)
    except OSError:
        raise
    except Exception as error:
        raise ValueError(f"{path} is no file of weights: {str(error).splitlines()[0]}") from None
    if not isinstance(found, dict) or not all(isinstance(value, Tensor) for value in found.values()):
        raise ValueError(f"{path} does not hold tensors by name, as a state_dict does")
    return found


def _write(weights: Mapping[str, Tensor], to: Path) -> None:
    if to.suffix not in WEIGHTS:
        raise ConfigError(
            f"{to} ends in no suffix of a file of weights ({', '.join(WEIGHTS)}): choose "
            f"--to {to}.safetensors or {to}.pt"
        )
    with files.replacing(to) as temporary:
        if to.suffix == ".safetensors":
            require("safetensors", "hub", "a .safetensors file")
            from safetensors.torch import save_file

            temporary.touch()  # a place that cannot be written to is Python's error, which names it
            save_file({n: value.contiguous() for n, value in weights.items()}, temporary, {"format": "pt"})
        else:
            with temporary.open("wb") as file:
                torch.save(dict(weights), file)


def _save_folder(module: Any, tokenizer: Any, to: Path) -> None:
    """Written beside it, and moved file by file: none of them is ever half there."""
    with files.naming(to), tempfile.TemporaryDirectory(prefix=f".{to.name}.", dir=to.parent) as folder:
        texts.save(module, tokenizer, Path(folder))
        to.mkdir(exist_ok=True)
        for made in sorted(Path(folder).iterdir()):
            os.replace(made, to / made.name)
