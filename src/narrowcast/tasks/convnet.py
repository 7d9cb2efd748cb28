"""A small convolutional net for grey images of 28 x 28, initialised from a key."""

from __future__ import annotations

from torch import nn

from narrowcast.random import Key
from narrowcast.tasks.init import initialise

SIDE = 28
CONV_WIDTH = 16


def convnet(key: Key, width: int = CONV_WIDTH, classes: int = 10) -> nn.Module:
    """(B, 1, 28, 28) -> (B, classes) logits; channels w, 2w of 14 x 14, 7 x 7; w = 16: 24 186 parameters.

    The convolutions halve the image by their stride. Pooling after 3x3 convolutions, with as many parameters,
    takes three times as long on a CPU.
    """
    layers = nn.Sequential(
        nn.Conv2d(1, width, 4, stride=2, padding=1),
        nn.ReLU(),
        nn.Conv2d(width, 2 * width, 4, stride=2, padding=1),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(2 * width * (SIDE // 4) ** 2, classes),
    )
    return initialise(layers, key)
