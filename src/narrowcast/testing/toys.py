"""Something to train in a moment: points around three centres, on clients with one to nine of them."""

from __future__ import annotations

import numpy as np
import torch
from torch import nn

from narrowcast.numerics import keyed
from narrowcast.numerics.keyed import Purpose
from narrowcast.tasks.init import initialise
from narrowcast.tasks.partition import Partition
from narrowcast.tasks.torch_task import TorchTask

FEATURES, CLASSES, CLIENTS = 10, 3, 12


def toy_task() -> TorchTask:
    """227 parameters; the same bits on every machine."""
    sizes = 1 + (9 * keyed.uniforms(1, Purpose.DATA, CLIENTS)).astype(np.int64)
    count = int(sizes.sum())
    labels = (CLASSES * keyed.uniforms(2, Purpose.DATA, count)).astype(np.int64)
    centres = keyed.normals(3, Purpose.DATA, CLASSES * FEATURES).reshape(CLASSES, FEATURES)
    noise = keyed.normals(4, Purpose.DATA, count * FEATURES).reshape(count, FEATURES)
    x, y = torch.from_numpy(centres[labels] + noise), torch.from_numpy(labels)
    net = nn.Sequential(nn.Linear(FEATURES, 16), nn.Tanh(), nn.Linear(16, CLASSES))
    order = keyed.permuted(5, count)
    return TorchTask(
        initialise(net, key=1, gain=1.0), train=(x, y), test=(x, y), clients=Partition(order, sizes)
    )
