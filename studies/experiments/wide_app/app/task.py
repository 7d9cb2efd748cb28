"""loss = |theta|^2 / 2, whose gradient is theta: it costs nothing, and no two pieces of it are equal.

(The engine sends equal pieces of content once: a model of zeros would pass as if it were small.)
"""

import torch
from flwr.app import Context
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from narrowcast.flower import LoaderTask, ModelTask


class Wide(nn.Module):
    def __init__(self, size: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(size, generator=torch.Generator().manual_seed(0)))


def loss(model: nn.Module, batch: list[torch.Tensor]) -> torch.Tensor:
    return 0.5 * model.weight.square().sum()


def of_server(context: Context) -> ModelTask:
    config = context.run_config
    return ModelTask(Wide(int(config["size"])), clients=int(config["narrowcast.clients"]))


def of_node(context: Context) -> LoaderTask:
    return LoaderTask(
        Wide(int(context.run_config["size"])), loss, DataLoader(TensorDataset(torch.ones(4)), batch_size=4)
    )
