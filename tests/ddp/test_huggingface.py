"""The hook inside transformers' Trainer and accelerate: two processes, stopped and resumed."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch
from torch import nn

import children
import hf_worker as worker
from narrowcast.ddp import compress
from narrowcast.ddp.huggingface import IntrinsicCallback

pytestmark = children.GROUP
PATIENCE = 600


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    """What both workers saw."""
    folder = tmp_path_factory.mktemp("hf")
    logs = [folder / f"{rank}.log" for rank in range(worker.WORKERS)]
    started = [children.start(worker.main, rank, folder, log=log) for rank, log in enumerate(logs)]
    codes = children.codes(started, PATIENCE)
    assert codes == [0, 0], "\n".join(log.read_text()[-3000:] for log in logs)
    return [torch.load(folder / f"found-{rank}.pt", weights_only=True) for rank in range(worker.WORKERS)]


def test_trainer_reduces_narrow_numbers_once_for_every_step_of_the_optimiser(found):
    first, second = (found[rank]["trainer"]["whole"] for rank in range(2))
    assert first["step"] == second["step"] == worker.STEPS  # of two micro-batches each
    assert first["reduced"] == worker.STEPS * (4 + 8 * -(-worker.DIM // 12))  # 5 bits: twelve to a word
    assert torch.equal(first["theta"], second["theta"])
    assert not torch.equal(first["theta"], first["theta0"])


def test_what_trainer_does_with_one_A_stays_in_its_span(found):
    for rank in range(2):
        run = found[rank]["trainer"]["static"]
        moved = run["theta"] - run["theta0"]
        left = moved - run["A"] @ torch.linalg.lstsq(run["A"], moved[:, None]).solution[:, 0]
        assert float(left.norm()) < 1e-5 * float(moved.norm())


def test_a_resumed_trainer_ends_at_the_same_theta_bit_for_bit(found):
    for rank in range(2):
        runs = found[rank]["trainer"]
        assert runs["resumed"]["step"] == worker.STEPS
        assert torch.equal(runs["resumed"]["theta"], runs["whole"]["theta"])
        assert runs["resumed"]["reduced"] == runs["whole"]["reduced"] // 2


def test_accelerate_trains_what_torch_does_and_resumes_bit_for_bit(found):
    for rank in range(2):
        runs = found[rank]["accelerate"]
        assert runs["step"] == worker.STEPS
        assert torch.equal(runs["accelerate"], runs["plain"])
        assert torch.equal(runs["accelerate"], runs["resumed"])
        assert not torch.equal(runs["accelerate"], runs["theta0"])


def test_a_model_that_is_not_wrapped_is_refused():
    with pytest.raises(ValueError, match=r"is a Linear and no DistributedDataParallel.*nproc-per-node 2"):
        compress(nn.Linear(3, 2), dim=4)


def test_the_callback_refuses_what_its_checkpoints_could_not_hold():
    with pytest.raises(ValueError, match="leave error_feedback out"):
        IntrinsicCallback(None, dim=4, error_feedback=True)
    callback = IntrinsicCallback(SimpleNamespace(model_wrapped="a model"), dim=4)
    callback.hook, callback._wrapped = object(), "a model"
    with pytest.raises(ValueError, match="step 8 was made without the hook"):
        callback.on_train_begin(None, SimpleNamespace(stateful_callbacks={}, global_step=8), None)
