"""What the built-in torch tasks have in common: module, data and options become a task."""

from __future__ import annotations

from torch import Tensor, nn

from narrowcast.tasks.options import TaskOptions, hold_out, split
from narrowcast.tasks.torch_task import Augment, Examples, Prepare, TorchTask


def standardised(images: Tensor, mean: Tensor | float, deviation: Tensor | float) -> Tensor:
    """Bytes -> floats of mean 0 and deviation 1 over the training set."""
    return images.float().div_(255).sub_(mean).div_(deviation)


def assemble(
    options: TaskOptions,
    module: nn.Module,
    train: Examples,
    test: Examples,
    *,
    name: str,
    augment: Augment | None = None,
    prepare: Prepare | None = None,
    partition: str = "class",
    chunk: int = 1024,
) -> TorchTask:
    """A classifier as the options say: validation held out, clients cut.

    `partition` is how the task cuts its clients when the options leave it open.
    """
    train, test = hold_out(options, train, test)
    return TorchTask(
        module,
        train=train,
        test=test,
        clients=split(options, train[1].numpy(), own=partition),
        augment=augment,
        prepare=prepare,
        name=name,
        chunk=chunk,
    )
