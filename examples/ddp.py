"""Digits by two workers that all-reduce 2 048 numbers a step instead of 301 066.

python examples/ddp.py                               starts two workers on this machine
torchrun --nproc-per-node 2 examples/ddp.py          the same, as jobs are started on real machines
"""

import os
import tempfile

import torch
import torch.distributed as dist
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

from narrowcast.ddp import IntrinsicState, intrinsic_hook
from narrowcast.tasks import digits
from narrowcast.tasks.nets import mlp

WORKERS, EPOCHS, LR = 2, 10, 4.0


def train() -> None:
    """What one worker does, once torch.distributed is initialised."""
    torch.set_num_threads(1)
    train, (x, y) = digits.load()
    data = TensorDataset(*train)
    sampler = DistributedSampler(data)
    loader = DataLoader(data, batch_size=32, sampler=sampler)
    model = mlp(1, 64, 512, 512, 10)
    ddp_model = DistributedDataParallel(model)
    state = IntrinsicState(model, dim=2048)
    ddp_model.register_comm_hook(state, intrinsic_hook)
    optimiser = torch.optim.SGD(model.parameters(), lr=LR)
    for epoch in range(EPOCHS):
        sampler.set_epoch(epoch)
        for inputs, targets in loader:
            optimiser.zero_grad()
            cross_entropy(ddp_model(inputs), targets).backward()
            optimiser.step()
    if dist.get_rank() == 0:
        accuracy = float((model(x).argmax(1) == y).float().mean())
        sent = state.reduced // state.step
        print(f"accuracy {accuracy:.4f} after {state.step} steps of {sent} bytes each way")


def spawned(rank: int, store: str) -> None:
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=WORKERS)
    train()
    dist.destroy_process_group()


if __name__ == "__main__":
    if "RANK" in os.environ:  # started by torchrun
        dist.init_process_group("gloo")
        train()
        dist.destroy_process_group()
    else:
        with tempfile.TemporaryDirectory() as folder:
            torch.multiprocessing.spawn(spawned, (f"{folder}/store",), WORKERS)
