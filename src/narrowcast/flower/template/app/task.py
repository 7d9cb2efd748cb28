"""Your model, your data, your loss: everything that narrowcast needs to know of your problem."""

import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


def make_model() -> nn.Module:
    """Dropout may be in it. Batch norm may not learn statistics, which are in no message: call
    narrowcast.freeze_batch_norm on a trained model, or take nn.GroupNorm; the error says so too."""
    torch.manual_seed(0)  # the same start everywhere; a node with another one is sent the server's
    return nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, 10))


def loss(model: nn.Module, batch: list[torch.Tensor]) -> torch.Tensor:
    images, labels = batch
    return nn.functional.cross_entropy(model(images), labels)


def measure(model: nn.Module, batch: list[torch.Tensor]) -> dict[str, float]:
    """At each node, on the tenth of its examples that is not trained on: sums, which the server adds up."""
    images, labels = batch
    return {"accuracy": float((model(images).argmax(1) == labels).sum())}


def _digits() -> tuple[torch.Tensor, torch.Tensor]:
    digits = load_digits()
    return torch.tensor(digits.data, dtype=torch.float32) / 16, torch.tensor(digits.target)


def make_loader(part: int, parts: int) -> DataLoader:
    """The data of one node. Yours would read what lies on that machine."""
    images, labels = _digits()
    return DataLoader(TensorDataset(images[part:1500:parts], labels[part:1500:parts]), batch_size=128)


def evaluate(model: nn.Module) -> dict[str, float]:
    """At the server, on data that no node has. Where there is none: ModelTask(make_model(), clients=...)."""
    images, labels = (x[1500:] for x in _digits())
    return {"accuracy": float((model(images).argmax(1) == labels).float().mean())}
