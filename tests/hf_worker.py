"""One worker of tests/ddp/test_huggingface.py: Trainer and accelerate, each stopped and resumed.

Trainer and accelerate find the process group that is there, which two workers make by a file in FOLDER.
"""

import os
import sys
import warnings
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, Dataset

from narrowcast.ddp import IntrinsicState, compress, intrinsic_hook
from narrowcast.numerics import pool
from narrowcast.tasks.nets import mlp

WORKERS, SIZES, DIM, KEY, BATCH, STEPS, STOPPED = 2, (10, 16, 4), 32, 7, 3, 6, 3
OPTIONS: dict[str, Any] = {"key": KEY, "bits": 5}


class Net(nn.Module):
    """As Trainer wants it: the loss among the outputs."""

    def __init__(self) -> None:
        super().__init__()
        self.net = mlp(1, *SIZES)

    def forward(self, x: Tensor, labels: Tensor) -> dict[str, Tensor]:
        return {"loss": cross_entropy(self.net(x), labels)}


class Examples(Dataset):
    def __init__(self) -> None:
        generator = torch.Generator().manual_seed(3)
        self.x = torch.randn(48, SIZES[0], generator=generator)
        self.y = torch.randint(SIZES[-1], (48,), generator=generator)

    def __len__(self) -> int:
        return len(self.y)

    def __getitem__(self, i: int) -> dict[str, Tensor]:
        return {"x": self.x[i], "labels": self.y[i]}


def flat(module: nn.Module) -> Tensor:
    return torch.cat([p.detach().reshape(-1) for p in module.parameters()]).clone()


def trained(folder: Path, stop: bool = False, resume: str | None = None, **options: Any) -> dict[str, Any]:
    """Six steps of two micro-batches by Trainer, or as many as there are to a stop and after it."""
    from transformers import Trainer, TrainingArguments

    from narrowcast.ddp.huggingface import IntrinsicCallback

    args = TrainingArguments(
        str(folder),
        max_steps=STEPS,
        per_device_train_batch_size=BATCH,
        gradient_accumulation_steps=2,
        learning_rate=0.5,
        lr_scheduler_type="constant",
        optim="sgd",
        save_steps=STOPPED,
        save_only_model=False,
        use_cpu=True,
        report_to=[],
        disable_tqdm=True,
        logging_steps=100,
    )
    model = Net()
    trainer = Trainer(model, args, train_dataset=Examples())
    callback = IntrinsicCallback(trainer, dim=DIM, **OPTIONS | options)
    trainer.add_callback(callback)
    start = flat(model)
    trainer.train(resume_from_checkpoint=resume)
    assert callback.hook is not None
    A = callback.hook.subspace().dense()
    return {
        "theta0": start,
        "theta": flat(model),
        "A": A,
        "step": callback.hook.step,
        "reduced": callback.hook.reduced,
    }


def by_trainer(folder: Path) -> dict[str, Any]:
    whole = trained(folder / "whole")
    return {
        "whole": whole,
        "resumed": trained(folder / "again", resume=str(folder / "whole" / f"checkpoint-{STOPPED}")),
        "static": trained(folder / "static", refresh=0, bits=32),
    }


def loop(model: nn.Module, optimiser: Any, batches: list[Any], backward: Any) -> None:
    for batch in batches:
        optimiser.zero_grad()
        backward(model(**batch)["loss"])
        optimiser.step()


def by_accelerate(folder: Path) -> dict[str, Any]:
    """A loop through accelerate, undisturbed and resumed; and torch's own, with the same batches."""
    from accelerate import Accelerator

    def prepared() -> tuple[Any, Any, Any, IntrinsicState, nn.Module]:
        accelerator, bare = Accelerator(cpu=True), Net()
        optimiser = torch.optim.SGD(bare.parameters(), 0.5, momentum=0.9)
        loader = DataLoader(Examples(), batch_size=BATCH)
        model, optimiser, loader = accelerator.prepare(bare, optimiser, loader)
        state = compress(model, dim=DIM, **OPTIONS)
        accelerator.register_for_checkpointing(state)
        return accelerator, model, (optimiser, loader), state, bare

    accelerator, model, (optimiser, loader), state, bare = prepared()
    batches = list(loader)[:STEPS]
    loop(model, optimiser, batches[:STOPPED], accelerator.backward)
    accelerator.save_state(str(folder / "accelerate"))
    loop(model, optimiser, batches[STOPPED:], accelerator.backward)

    again, model, (optimiser, _), late, resumed = prepared()
    again.load_state(str(folder / "accelerate"))
    assert late.step == STOPPED
    loop(model, optimiser, batches[STOPPED:], again.backward)

    plain = Net()
    wrapped = DDP(plain)
    wrapped.register_comm_hook(IntrinsicState(plain, DIM, **OPTIONS), intrinsic_hook)
    loop(
        wrapped, torch.optim.SGD(plain.parameters(), 0.5, momentum=0.9), batches, lambda loss: loss.backward()
    )
    return {
        "accelerate": flat(bare),
        "resumed": flat(resumed),
        "plain": flat(plain),
        "theta0": flat(Net()),
        "step": state.step,
    }


def main(rank: int, folder: Path) -> None:
    os.environ |= {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(WORKERS)}
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29500", "ACCELERATE_USE_CPU": "true"}
    warnings.filterwarnings("error", category=DeprecationWarning, module="narrowcast")
    torch.set_num_threads(1)
    pool.set_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder / 'store'}", rank=rank, world_size=WORKERS)
    found = {"trainer": by_trainer(folder), "accelerate": by_accelerate(folder)}
    torch.save(found, folder / f"found-{rank}.pt")
    dist.barrier()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)  # see ddp_worker
