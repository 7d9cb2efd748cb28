"""A TorchTask takes examples in whatever form people have them, or says what to do."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset, IterableDataset, TensorDataset

import narrowcast as nc
from narrowcast.tasks.examples import CHUNK, as_examples

COUNT = CHUNK + 7  # more than is collated at once
X = torch.randn(COUNT, 4, generator=torch.Generator().manual_seed(0))
Y = (X.sum(1) > 0).long()


class Pairs(Dataset[Any]):
    """Arrays and plain numbers, one by one."""

    def __len__(self) -> int:
        return COUNT

    def __getitem__(self, i: int) -> tuple[Any, int]:
        return X[i].numpy(), int(Y[i])


class Stream(IterableDataset[Any]):
    def __iter__(self) -> Any:
        return iter([(X[0], Y[0])])


FORMS: dict[str, Any] = {
    "tensors": (X, Y),
    "a list": [X, Y],
    "arrays": (X.numpy(), Y.numpy()),
    "float64": (X.double().numpy(), Y.numpy()),
    "lists": (X.tolist(), Y.tolist()),
    "a strided array": (np.asfortranarray(X.numpy()), Y.numpy()),
    "TensorDataset": TensorDataset(X, Y),
    "Dataset": Pairs(),
    "DataLoader": DataLoader(Pairs(), batch_size=10, shuffle=True),
    "DataLoader that collates": DataLoader(
        Pairs(),
        collate_fn=lambda some: (
            {"x": some} and (torch.tensor(np.stack([x for x, _ in some])), [y for _, y in some])
        ),
    ),
    "pairs": [(X[i], Y[i]) for i in range(COUNT)],
}


@pytest.mark.parametrize("form", FORMS)
def test_the_examples_are_the_same_in_every_form(form: str) -> None:
    inputs, targets = as_examples(FORMS[form], "train")
    assert torch.equal(inputs, X)
    assert torch.equal(targets, Y)
    assert (inputs.dtype, targets.dtype) == (torch.float32, torch.int64)


def test_a_task_of_a_data_set_trains_like_one_of_tensors() -> None:
    def end(train: Any, test: Any) -> torch.Tensor:
        torch.manual_seed(0)
        task = nc.TorchTask(nn.Linear(4, 2), train=train, test=test, clients=nc.iid(COUNT, 20))
        simulation = nc.Simulation(task, nc.method("static", dim=4), nc.Plan(cohort=5, lr=1.0, rounds=3))
        list(simulation)
        return simulation.theta

    truth = end((X, Y), (X, Y))
    assert torch.equal(end(DataLoader(Pairs()), TensorDataset(X, Y)), truth)
    assert torch.equal(end((X.numpy(), Y.numpy()), Pairs()), truth)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (Stream(), "IterableDataset, whose examples have no numbers: make a list"),
        (DataLoader(Stream()), "IterableDataset"),
        (X, r"train is a Tensor: give \(inputs, targets\)"),
        (X.numpy(), "train is a ndarray: give"),
        (7, "train is a int: give"),
        ([], "train has no examples"),
        (
            [(X[0], Y[0]), (X[1][:2], Y[1])] * 2,
            "cannot be put together .*: inputs of one shape are needed; pad",
        ),
        ([X[0], X[1], X[2]], "no pairs of input and target, but Tensor"),
        ((np.array(["a", "b"]), Y[:2]), "train's inputs are no numbers"),
        ((X, Y[:-1]), "each input needs one target"),
        ((X * float("nan"), Y), "NaN or infinite"),
    ],
    ids=lambda part: part[:20] if isinstance(part, str) else type(part).__name__,
)
def test_what_cannot_be_used_is_said_with_what_to_do(given: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        nc.TorchTask(nn.Linear(4, 2), train=given, test=(X, Y), clients=nc.iid(COUNT, 20))
