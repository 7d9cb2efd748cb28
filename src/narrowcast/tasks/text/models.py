"""Models over text and their tokenizers: from a folder, from the hub, or tiny ones that need neither.

Code in a model's folder is never run, and weights are read from safetensors or with `weights_only`. What a
checkpoint lacks, such as the head of a classifier, comes from the run's key.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import torch
from torch import nn

from narrowcast.errors import ConfigError
from narrowcast.extras import require
from narrowcast.numerics import keyed
from narrowcast.numerics.keyed import Key, Purpose
from narrowcast.tasks.init import initialise
from narrowcast.tasks.options import TaskOptions
from narrowcast.tasks.places import data_roots
from narrowcast.tasks.start import Start
from narrowcast.tasks.text.tokens import PAD, ByteTokens, PretrainedTokens
from narrowcast.tasks.trainable import merged, restrict

PACKAGED = ("minilm", "smollm2")  # names that `narrowcast data` fetches
PRETRAINED = ("sst2", "personachat")  # tasks whose models are, unless --model says tiny
FROM_KEY, TINY = "tiny", 32  # its name, its width
SPREAD = 0.02  # deviation of weights that a checkpoint lacks
SAFE = {"trust_remote_code": False}  # left out, transformers would ask the user, and run it on a yes
GET = (
    "Give a folder with config.json, model.safetensors and a tokenizer (--model DIR; to export: --base DIR), "
    "or be online for a name on the hub. Without a network but with a package registry: "
    "`narrowcast data minilm` (a BERT) or `smollm2`"
)


def classifier(options: TaskOptions, default: str, classes: int) -> Start:
    """A model that scores classes."""
    transformers = _transformers()
    if (options.model or default) == FROM_KEY:
        config = transformers.BertConfig(**_tiny(options), num_labels=classes, pad_token_id=PAD)
        return _fresh(transformers.BertForSequenceClassification, config, options)
    kind = transformers.AutoModelForSequenceClassification
    return _pretrained(kind, options, default, {"num_labels": classes})


def language_model(options: TaskOptions, default: str) -> Start:
    """A model that predicts the next token."""
    if (options.model or default) == FROM_KEY:
        return small_llama(options, TINY, 2)
    return _pretrained(_transformers().AutoModelForCausalLM, options, default, {})


def small_llama(options: TaskOptions, width: int, layers: int) -> Start:
    """A Llama over bytes, from the key."""
    transformers = _transformers()
    shape = {**_tiny(options, width), "num_hidden_layers": layers, "tie_word_embeddings": True}
    return _fresh(transformers.LlamaForCausalLM, transformers.LlamaConfig(**shape), options)


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


def _fresh(kind: Any, config: Any, options: TaskOptions) -> Start:
    return Start(_ready(initialise(kind(config), options.key, gain=1.0), options), ByteTokens())


def _pretrained(kind: Any, options: TaskOptions, default: str, more: dict[str, Any]) -> Start:
    if options.width is not None:
        raise ValueError(f"a pretrained model has a width of its own: leave --width {options.width} out")
    name = options.model or default
    model, tokenizer, info = load(kind, name, more)
    fresh = _fill(model, name, info, options.key)
    return Start(_ready(model, options), PretrainedTokens(tokenizer), fresh)


def load(kind: Any, name: str, more: dict[str, Any]) -> tuple[Any, Any, dict[str, Any]]:
    """(model, tokenizer, what transformers says of loading it); `name@revision` is a commit of the hub's."""
    transformers = _transformers()
    place, revision = locate(name)
    how = SAFE | ({"revision": revision} if revision else {})
    try:
        config = transformers.AutoConfig.from_pretrained(place, **more, **how)
        _refuse_another(kind, name, config)
        model, info = kind.from_pretrained(
            place,
            config=config,
            dtype=torch.float32,
            output_loading_info=True,
            ignore_mismatched_sizes=True,
            **how,
        )
        tokenizer = transformers.AutoTokenizer.from_pretrained(place, **how)
    except ConfigError:
        raise
    except Exception as error:  # readers fail in many ways on damaged files, and all mean the same here
        said = (str(error).strip() or type(error).__name__).splitlines()[0].rstrip(".")
        raise FileNotFoundError(f"model {name!r} cannot be loaded: {said}. {GET}") from None
    if info["mismatched_keys"]:
        wrong = ", ".join(str(entry[0]) for entry in sorted(info["mismatched_keys"])[:3])
        raise ValueError(
            f"model {name!r} was trained for something else: {wrong} have other shapes than this task needs. "
            "Give the checkpoint without its head"
        )
    return model, tokenizer, info


def _refuse_another(kind: Any, name: str, config: Any) -> None:
    """A model of another architecture than this class's; one of transformers' Auto classes takes any."""
    wanted = getattr(kind, "config_class", None)
    if wanted is not None and not isinstance(config, wanted):
        raise ConfigError(
            f"the base {name!r} is a {config.model_type}, and training began with a {wanted.model_type}: "
            "name that one"
        )


def locate(name: str) -> tuple[str, str]:
    """(a folder where there is one, for the packaged models too, else the name on the hub; its revision)."""
    if name not in PACKAGED:
        local = Path(name).expanduser()
        if not local.is_dir() and (name[0] in "./~" or name.endswith("/") or name.count("/") > 1):
            raise FileNotFoundError(f"there is no folder {name!r} to load a model from. {GET}")
        if local.is_dir():
            return str(local), ""
        name, _, revision = name.partition("@")
        return name, revision
    places = [root / name for root in data_roots()]
    for place in places:
        if (place / "config.json").is_file():
            return str(place), ""
    raise FileNotFoundError(
        f"the model {name!r} is not in {', '.join(map(str, places))}. To get it: narrowcast data {name}"
    )


@torch.no_grad()
def _fill(model: nn.Module, name: str, info: dict[str, Any], key: Key) -> tuple[str, ...]:
    """Zero biases and normal weights for the layers that were not in the checkpoint, and a word about them.

    A head may be missing; a body may not: a checkpoint of another model would train from noise.
    """
    layers = {
        f"{path}.{which}": part
        for path, part in model.named_modules()
        if isinstance(part, nn.Linear | nn.Embedding)
        for which, _ in part.named_parameters(recurse=False)
    }
    there = dict(model.named_parameters())
    missing = sorted(n for n in info["missing_keys"] if n in there)
    lost = sum(there[n].numel() for n in missing)
    if any(n not in layers for n in missing) or 2 * lost > sum(p.numel() for p in there.values()):
        raise ValueError(
            f"the weights of model {name!r} are not those of a {type(model).__name__}: {len(missing)} of its "
            f"{len(there)} tensors are not there, {', '.join(missing[:3])} among them"
        )
    for number, n in enumerate(missing):
        there[n].copy_(drawn(n, number, there[n].shape, key))
    if missing:
        print(f"{name} has no {', '.join(missing)}: drawn from the run's seed", file=sys.stderr)
    return tuple(missing)


def drawn(name: str, number: int, shape: torch.Size, key: Key) -> torch.Tensor:
    """The parameter that is the `number`-th, by name, of those that a checkpoint lacks."""
    if name.endswith("bias"):
        return torch.zeros(shape)
    stream = keyed.derive(key, Purpose.INIT, number, 2)
    z = keyed.normals(stream, Purpose.NORMALS, shape.numel()) * SPREAD
    return torch.from_numpy(z).view(shape)


def _ready(model: Any, options: TaskOptions) -> nn.Module:
    if options.checkpointing:
        model.gradient_checkpointing_enable({"use_reentrant": False})
    module: nn.Module = restrict(model, options)
    return module


def save(model: Any, tokenizer: Any, folder: Path) -> None:
    """A folder that `from_pretrained` reads, as `--model` does; adapters are merged."""
    model.save_pretrained(folder, state_dict=merged(model))
    if tokenizer is not None:
        tokenizer.save_pretrained(folder)


def _transformers() -> Any:
    """The library, which takes seconds to import: only where a model over text is asked for."""
    require("transformers", "text", "a model over text")
    import transformers

    quiet: Any = transformers.utils.logging
    quiet.disable_progress_bar()
    quiet.set_verbosity_error()
    return transformers
