"""Two spirals that wind around each other: a task of one's own."""

import math
from typing import Annotated

import torch
from pydantic import Field
from torch import nn

import narrowcast as nc
from narrowcast.tasks import initialise

POINTS = 400


def spirals(
    clients: int = 20,
    width: int = 32,
    key: int = 0,
    turns: Annotated[float, Field(gt=0, le=3, description="of each spiral")] = 1.0,
) -> nc.Task:
    """Everything random comes from the run's key, so that a run can be repeated and resumed."""
    chance = torch.Generator().manual_seed(key % 2**63)
    y = torch.arange(2 * POINTS) % 2
    t = torch.rand(2 * POINTS, generator=chance)
    angle = 2 * math.pi * turns * t + math.pi * y
    x = torch.stack([t * angle.cos(), t * angle.sin()], 1) + 0.02 * torch.randn(
        2 * POINTS, 2, generator=chance
    )
    model = nn.Sequential(
        nn.Linear(2, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU(), nn.Linear(width, 2)
    )
    initialise(model, key)
    return nc.TorchTask(
        model,
        train=(x[:POINTS], y[:POINTS]),
        test=(x[POINTS:], y[POINTS:]),
        clients=nc.iid(POINTS, clients, key),
        name="spirals",
    )
