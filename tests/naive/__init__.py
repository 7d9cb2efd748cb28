"""The paper's three algorithms with dense matrices in float64, and the toy tasks they are run on."""

import copy

import numpy as np
import torch
from torch import nn
from torch.func import functional_call

from narrowcast.tasks.init import initialise
from narrowcast.tasks.judging import cross_entropy
from narrowcast.tasks.partition import Partition
from narrowcast.tasks.torch_task import TorchTask

FEATURES, CLASSES = 10, 3
MODULES = {
    "logistic": lambda: nn.Linear(FEATURES, CLASSES),  # convex, D = 33
    "mlp": lambda: nn.Sequential(nn.Linear(FEATURES, 16), nn.Tanh(), nn.Linear(16, CLASSES)),  # D = 227
}


def toy(kind, clients=12):
    """(task, gradient): points around three centres, clients with one to nine of them.

    gradient(theta, c) is that of client c's mean loss, in float64.
    """
    rng = np.random.default_rng(0)
    sizes = rng.integers(1, 10, clients)
    labels = rng.integers(0, CLASSES, sizes.sum())
    points = rng.normal(size=(CLASSES, FEATURES))[labels] + rng.normal(size=(len(labels), FEATURES))
    x, y = torch.from_numpy(points).float(), torch.from_numpy(labels)
    module = initialise(MODULES[kind](), key=1, gain=1.0)
    exact = copy.deepcopy(module).double()
    task = TorchTask(module, train=(x, y), test=(x, y), clients=Partition(rng.permutation(len(y)), sizes))

    def gradient(theta, c):
        theta, mine = torch.tensor(theta, dtype=torch.float64, requires_grad=True), task.clients[c]
        outputs = functional_call(exact, task.layout.split(theta), x[mine].double())
        return torch.autograd.grad(cross_entropy(outputs, y[mine]).mean(), theta)[0].numpy()

    return task, gradient
