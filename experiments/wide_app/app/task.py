"""loss = the first weight: whatever the size of the model, a gradient costs nothing."""

import torch
from flwr.app import Context
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from narrowcast.flower import LoaderTask, ModelTask


class Wide(nn.Module):
    def __init__(self, size: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(size))


def loss(model: nn.Module, batch: list[torch.Tensor]) -> torch.Tensor:
    return model.weight[0] * batch[0].mean()


def of_server(context: Context) -> ModelTask:
    config = context.run_config
    return ModelTask(Wide(int(config["size"])), clients=int(config["narrowcast.clients"]))


def of_node(context: Context) -> LoaderTask:
    return LoaderTask(
        Wide(int(context.run_config["size"])), loss, DataLoader(TensorDataset(torch.ones(4)), batch_size=4)
    )
