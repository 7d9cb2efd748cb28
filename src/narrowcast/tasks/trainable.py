"""Train fewer parameters instead of sending fewer numbers: biases alone, or low-rank adapters.

Whatever stays frozen is no part of theta: D is what is trained, and any method can be laid over it.
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Iterable
from typing import Any

import torch
from torch import nn

from narrowcast.extras import require
from narrowcast.numerics import keyed
from narrowcast.numerics.keyed import Key, Purpose
from narrowcast.tasks.init import initialise
from narrowcast.tasks.options import TaskOptions

LAYERS = (nn.Linear, nn.Conv1d, nn.Conv2d, nn.Conv3d)
GPT2_LAYERS = "transformers.pytorch_utils"  # its Conv1D is a linear layer with transposed weights
ADAPTERS = 1  # apart from 0, the layers' own stream of initial weights
FIRST_FACTOR = ".lora_A.default.weight"  # PEFT's name for A, after the layer's
SMALL_GAIN = 1 / 3  # the variance of PEFT's own uniform A


def restrict(module: nn.Module, options: TaskOptions) -> nn.Module:
    """The module with only those parameters trainable that `options.trainable` names; changed in place.

    all      as it stands
    biases   BitFit (Ben Zaken et al. 2022): every bias, and the head, which is the last linear or convolution
             layer as the modules are listed, but for one that shares the weights of an embedding
    lora     W + (alpha / r) B A on every linear and convolution layer (Hu et al. 2022), by PEFT: W and the
             biases frozen, A (r, in) from the key, B (out, r) zero, so that the model starts as it was; not
             on a last layer that shares the weights of the embedding

    `options.freeze` is a regular expression: parameters whose name has a match stay as they are.
    """
    _freeze(module, options.freeze)
    match options.trainable:
        case "biases":
            return _biases_and_head(module)
        case "lora":
            return _adapters(module, options)
        case _:
            return module


def _freeze(module: nn.Module, pattern: str | None) -> None:
    if pattern is None:
        return
    try:
        found = [p for name, p in module.named_parameters() if re.search(pattern, name)]
    except re.error as error:
        raise ValueError(f"freeze {pattern!r} is no regular expression: {error}") from None
    if not found:
        some = ", ".join(name for name, _ in list(module.named_parameters())[:3])
        raise ValueError(f"freeze {pattern!r} matches no parameter; they are called {some}, ...")
    for p in found:
        p.requires_grad_(False)


def _layers(module: nn.Module) -> dict[str, nn.Module]:
    found: dict[str, nn.Module] = {
        name: part
        for name, part in module.named_modules()
        if isinstance(part, LAYERS) or type(part).__module__ == GPT2_LAYERS
    }
    if not found:
        raise ValueError(
            f"{type(module).__name__} has no linear or convolution layer: train all of it (trainable='all')"
        )
    return found


def _biases_and_head(module: nn.Module) -> nn.Module:
    free = [part for part in _layers(module).values() if not _tied(module, part)]
    head = {id(p) for p in free[-1].parameters()} if free else set()
    for name, p in module.named_parameters():
        kept = name.rpartition(".")[2] == "bias" or id(p) in head
        p.requires_grad_(p.requires_grad and kept)  # what the caller froze stays frozen
    return module


def _adapters(module: nn.Module, options: TaskOptions) -> nn.Module:
    layers = {
        name: part
        for name, part in _layers(module).items()
        if not _tied(module, part) and any(p.requires_grad for p in part.parameters())
    }
    if not layers:
        raise ValueError(f"freeze {options.freeze!r} leaves no layer that an adapter could be put on")
    if "" in layers:
        raise ValueError(
            f"LoRA wraps the layers inside a module, and this one is a {type(module).__name__} itself: "
            "put it into an nn.Sequential"
        )
    return add_adapters(module, list(layers), options.lora_rank, options.lora_alpha, options.key)


def adapted_layers(names: Iterable[str]) -> list[str]:
    """The layers whose adapters are among parameters of these names."""
    return [name.removesuffix(FIRST_FACTOR) for name in names if name.endswith(FIRST_FACTOR)]


def add_adapters(module: nn.Module, layers: list[str], rank: int, alpha: float, key: Key) -> nn.Module:
    """W + (alpha / rank) B A on these layers, A from the key and B zero; changed in place."""
    peft = _peft()
    config = peft.LoraConfig(
        r=rank,
        lora_alpha=alpha,
        target_modules="|".join(map(re.escape, layers)),  # as a list, "0" would name every "x.0" too
    )
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "fan_in_fan_out")  # it finds out by itself how GPT-2's weights lie
        module = peft.inject_adapter_in_model(config, module)
    _start(module, keyed.derive(key, Purpose.INIT, 0, ADAPTERS))
    return module


def merged(module: nn.Module) -> dict[str, torch.Tensor]:
    """The module's state with its adapters added to the weights they stand beside, under the old names."""
    state = {n.replace(".base_layer.", "."): p for n, p in module.state_dict().items() if ".lora_" not in n}
    for name, part in module.named_modules():
        if hasattr(part, "get_delta_weight"):
            state[f"{name}.weight"] = (
                part.get_base_layer().weight + part.get_delta_weight("default")
            ).detach()
    return state


def _tied(module: nn.Module, layer: nn.Module) -> bool:
    """Whether it is a last layer with the weights of the embedding, which an adapter would pull apart."""
    ends = (getattr(module, f"get_{which}_embeddings", lambda: None)() for which in ("input", "output"))
    first, last = (getattr(end, "weight", None) for end in ends)
    return first is not None and last is first and layer.weight is first


@torch.no_grad()
def _start(module: nn.Module, key: Key) -> None:
    """A and B anew: PEFT draws A from torch's generator, which differs between machines and versions."""
    named = list(module.named_modules())
    A, B = ([m for n, m in named if n.endswith(f".lora_{which}.default")] for which in "AB")
    initialise(nn.ModuleList(A), key, SMALL_GAIN)
    for part in B:
        for p in part.parameters():
            p.zero_()


def _peft() -> Any:
    """The library, which takes seconds to import: only where adapters are asked for."""
    require("peft", "lora", "trainable 'lora'")
    import peft

    return peft
