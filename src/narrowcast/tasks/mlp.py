"""A multilayer perceptron with ReLU, initialised from a key."""

from __future__ import annotations

from itertools import pairwise

from torch import nn

from narrowcast.random import Key
from narrowcast.tasks.init import initialise


def mlp(key: Key, *sizes: int) -> nn.Module:
    """(B, sizes[0]) -> (B, sizes[-1]), ReLU between the linear layers."""
    layers: list[nn.Module] = []
    for inputs, outputs in pairwise(sizes):
        layers += [nn.Linear(inputs, outputs), nn.ReLU()]
    return initialise(nn.Sequential(*layers[:-1]), key)
