"""theta0 from a seed of our own generator, so that it is the same on every machine and torch version."""

from __future__ import annotations

import math

import numpy as np
import torch
from torch import nn

from narrowcast.numerics import keyed
from narrowcast.numerics.keyed import Key, Purpose


@torch.no_grad()
def initialise(module: nn.Module, key: Key, gain: float = 2.0) -> nn.Module:
    """Normal weights of variance gain / fan_in (2: He's, for ReLU), zero biases; norms stay as they are."""
    number = 0
    for part in module.modules():
        if not isinstance(part, nn.Linear | nn.Conv1d | nn.Conv2d | nn.Embedding):
            continue
        weight = part.weight
        if weight.is_meta:  # only its shape is asked for
            continue
        fan_in = 1 if isinstance(part, nn.Embedding) else weight[0].numel()
        scale = np.float32(0.02 if isinstance(part, nn.Embedding) else math.sqrt(gain / fan_in))
        stream = keyed.derive(key, Purpose.INIT, number)
        z = keyed.normals(stream, Purpose.NORMALS, weight.numel()) * scale
        weight.copy_(torch.from_numpy(z).view_as(weight))
        bias = getattr(part, "bias", None)
        if bias is not None:
            bias.zero_()
        number += 1
    return module
