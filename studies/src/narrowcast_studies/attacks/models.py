"""The client's net, in plain torch: a small one, and the shapes of ResNets without batch norm.

DLG follows the second derivative of the loss, which a ReLU does not have; so activations are tanh or GELU.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, gelu

from narrowcast.numerics import FlatParameters, Key, Layout
from narrowcast.tasks import initialise

SIDE = 32
CLASSES = 10
NORM_GROUPS = 32
BLOCKS = {18: (2, 2, 2, 2), 152: (3, 8, 36, 3)}


@dataclass(frozen=True)
class Net:
    """A model and its first theta. `gradient` is what a client uploads before any compression."""

    module: nn.Module
    layout: Layout
    theta0: Tensor  # (D,)

    def gradient(self, theta: Tensor, x: Tensor, y: Tensor, graph: bool = False) -> Tensor:
        """The gradient of the mean loss at theta, (D,); with `graph` it can be differentiated by x."""
        theta = theta.detach().requires_grad_()
        outputs = torch.func.functional_call(self.module, self.layout.split(theta), (x,))
        (v,) = torch.autograd.grad(cross_entropy(outputs, y), theta, create_graph=graph)
        return v


def lenet(key: Key, width: int = 16, classes: int = CLASSES) -> nn.Module:
    """(B, 3, 32, 32) -> (B, classes): three 5x5 convolutions with tanh, one linear layer; 24 298 at width 16.

    As in DLG's code, but tanh and weights of variance 1 / fan_in: with its sigmoids, or with a gain of 3, the
    full gradient gives no good picture after 500 steps of L-BFGS.
    """
    w = width
    layers = nn.Sequential(
        nn.Conv2d(3, w, 5, stride=2, padding=2),
        nn.Tanh(),
        nn.Conv2d(w, w, 5, stride=2, padding=2),
        nn.Tanh(),
        nn.Conv2d(w, w, 5, padding=2),
        nn.Tanh(),
        nn.Flatten(),
        nn.Linear(w * (SIDE // 4) ** 2, classes),
    )
    return initialise(layers, key, gain=1.0)


def convolution(inputs: int, outputs: int, size: int, stride: int = 1) -> nn.Sequential:
    """A convolution without bias, and the norm after it: group norm, with as many weights as batch norm."""
    return nn.Sequential(
        nn.Conv2d(inputs, outputs, size, stride, size // 2, bias=False), nn.GroupNorm(NORM_GROUPS, outputs)
    )


class Residual(nn.Module):
    """gelu(shortcut(x) + branch(x)): two 3x3 convolutions, or with `narrow` a bottleneck of 1x1, 3x3, 1x1."""

    def __init__(self, inputs: int, width: int, outputs: int, stride: int, narrow: bool) -> None:
        super().__init__()
        sizes = (1, 3, 1) if narrow else (3, 3)
        strides = (1, stride, 1) if narrow else (stride, 1)
        channels = [inputs, *([width] * (len(sizes) - 1)), outputs]
        self.branch = nn.ModuleList(
            convolution(a, b, size, step)
            for a, b, size, step in zip(channels, channels[1:], sizes, strides, strict=False)
        )
        same = inputs == outputs and stride == 1
        self.shortcut = nn.Identity() if same else convolution(inputs, outputs, 1, stride)

    def forward(self, x: Tensor) -> Tensor:
        y = x
        for number, part in enumerate(self.branch):
            y = part(gelu(y) if number else y)
        return gelu(y + self.shortcut(x))


def resnet(depth: int, key: Key, classes: int = CLASSES) -> nn.Module:
    """ResNet-18 or 152: the original's shapes, so 11 689 512 and 60 192 808 parameters for 1000 classes.

    The first convolution keeps the size of the image, which here is small: stride 1 and no pooling.
    """
    narrow = depth > 34
    factor = 4 if narrow else 1
    parts: list[nn.Module] = [convolution(3, 64, 7), nn.GELU()]
    inputs = 64
    for stage, count in enumerate(BLOCKS[depth]):
        width = 64 << stage
        for number in range(count):
            stride = 2 if stage and not number else 1
            parts.append(Residual(inputs, width, width * factor, stride, narrow))
            inputs = width * factor
    parts += [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(inputs, classes)]
    return initialise(nn.Sequential(*parts), key)


MODELS: dict[str, Callable[[Key], nn.Module]] = {
    "lenet": lenet,
    "resnet18": lambda key: resnet(18, key),
    "resnet152": lambda key: resnet(152, key),
}


def build(name: str, key: Key) -> Net:
    """A net by name, with theta0 from the key."""
    if name not in MODELS:
        raise ValueError(f"unknown model {name!r}: choose one of {', '.join(MODELS)}")
    module = MODELS[name](key)
    flat = FlatParameters(module)
    return Net(module, flat.layout, flat.theta.clone())
