"""The measurement as a call, on any module and loss."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import nn

from narrowcast.measure import probing, rules
from narrowcast.measure.probing import Say, Spec
from narrowcast.measure.results import Measured
from narrowcast.measure.trainers import InMemory
from narrowcast.rounds import schedules
from narrowcast.rounds.plan import Plan
from narrowcast.rounds.task import IndexArray
from narrowcast.tasks.judging import Loss, Metrics, accuracy, cross_entropy
from narrowcast.tasks.partition import iid
from narrowcast.tasks.torch_task import Examples, TorchTask


def intrinsic_dimension(
    module: nn.Module,
    loss: Loss = cross_entropy,
    *,
    train: Examples,
    test: Examples,
    metrics: Metrics = accuracy,
    metric: str = "accuracy",
    higher_is_better: bool = True,
    clients: Sequence[IndexArray] | None = None,
    batch: int = 100,
    epochs: float = 10.0,
    method: str = "static",
    threshold: float = 0.9,
    seeds: Sequence[int] = (0, 1, 2),
    start: int | None = None,
    tolerance: float = 1.1,
    rates: int = 1,
    full_lr: float = rules.FULL_RATE,
    lr: float | None = None,
    evaluate_every: int | None = None,
    say: Say = lambda line: None,
    **options: Any,
) -> Measured:
    """The smallest d whose training reaches `threshold` of the uncompressed metric, with every probe.

    The module's weights are theta0 of every run, and are put back at the end; a seed stands for A and the
    order of the examples. `loss(outputs, targets)` gives one number an example. A round is a step on `batch`
    clients; without `clients` every example is one, which is plain SGD. `full_lr` is the rate of uncompressed
    training, from which the probes' follow (`rules.rate`) unless `lr` gives theirs; with `rates=3` baseline
    and probes may try three each. `metrics(outputs, targets)` judges the whole test set and names `metric`.
    `options` are the method's, such as subspace="fastfood" or subspaces=8.

    >>> import torch
    >>> from narrowcast.measure import intrinsic_dimension
    >>> g = torch.Generator().manual_seed(0)
    >>> x = torch.randn(600, 20, generator=g)
    >>> y = (x @ torch.randn(20, 3, generator=g)).argmax(1)
    >>> model = torch.nn.Linear(20, 3)
    >>> found = intrinsic_dimension(model, train=(x, y), test=(x, y), seeds=[0, 1], epochs=5)
    >>> found.parameters
    63
    >>> [1 < d < 63 for d in found.dims]
    [True, True]
    >>> found.interval.low <= found.interval.d <= found.interval.high
    True
    """
    cut = iid(len(train[1]), len(train[1])) if clients is None else clients
    task = TorchTask(
        module, loss, train=train, test=test, clients=cut, metrics=metrics, metric=metric,
        higher_is_better=higher_is_better,
    )  # fmt: skip
    cohort = min(batch, len(cut))
    per_epoch = -(-len(cut) // cohort)
    plan = Plan(
        cohort=cohort,
        lr=full_lr,
        epochs=epochs,
        schedule=schedules.knots("triangle", epochs),
        evaluate_every=per_epoch if evaluate_every is None else evaluate_every,
    )
    spec = Spec(
        method=method,
        threshold=threshold,
        seeds=tuple(seeds),
        start=start,
        tolerance=tolerance,
        rates=rates,
        full_rate=full_lr,
        rate=lr,
    )
    trainer = InMemory(task, plan, options)
    try:
        found = probing.conduct(trainer, spec, say)
    finally:
        with torch.no_grad():
            task.buffer().copy_(task.theta0())
    return probing.measured(trainer.about(), spec, found, task.name, options)
