"""Where a run computes: its task goes to a device, its method is asked whether it can work there, and the
device is tried before anything is trained.

What has D numbers (theta, updates) lies where the task's model lies; what has d, and every message, is here.
"""

from __future__ import annotations

from functools import lru_cache, partial
from typing import Any

import torch

from narrowcast.errors import ConfigError
from narrowcast.methods.base import Method
from narrowcast.methods.table import METHODS
from narrowcast.numerics import flat, keyed
from narrowcast.numerics.devices import names, passes
from narrowcast.numerics.keyed import Purpose
from narrowcast.rounds.task import Task
from narrowcast.subspaces.base import add_family
from narrowcast.subspaces.rotation import Rotation
from narrowcast.wire.digests import digest

_SIZES = (3 * 4096 + 1234, 4500)  # (D, d) of the trial: a few strips, a window that wraps, a remainder
_CLOSE = 1e-5  # of A^T g, which need not have the same bits


def placed(task: Task, method: Method[Any], name: str) -> None:
    """Move the task to the device of this name; "auto" is a GPU where all can work there, else the CPU."""
    try:
        device = names.find(name)
    except ValueError as error:
        raise ConfigError(f"--device: {error}") from None
    if name == names.AUTO and not method.on_device:
        return
    if device.type != names.CPU:
        refuse_host_method(method, device)
        try:
            move = getattr(task, "to", partial(Task.to, task))  # a task of another's may know nothing of it
            move(device)
        except ConfigError:
            if name != names.AUTO:
                raise


def ready(method: Method[Any], device: torch.device) -> None:
    """A ConfigError where the method cannot work on the device, or the device does not add as a CPU does."""
    if device.type != names.CPU:
        refuse_host_method(method, device)
        check(device)


def refuse_host_method(method: Method[Any], device: torch.device) -> None:
    if not method.on_device:
        able = [n for n in METHODS.own if METHODS[n].make().on_device]
        kind = getattr(method, "subspace", None)
        what = f"{method.name} with --subspace {kind}" if isinstance(kind, str) else method.name
        raise ConfigError(
            f"{what} has kernels for the CPU alone, and the model is to be on {device}: use --device cpu, or "
            f"one of {', '.join(able)} with --subspace rotation or grouping"
        )


@lru_cache(maxsize=16)
def check(device: torch.device) -> None:
    """A few strips there against the same here: a wrong driver must not train."""
    D, d = _SIZES
    family = [Rotation(D, d, keyed.derive(0, Purpose.SUBSPACE, k)) for k in range(2)]
    numbers = torch.from_numpy(keyed.normals(7, Purpose.NORMALS, D + 2 * d))
    base, xs = numbers[:D].clone(), numbers[D:].view(2, d)
    base[:4] = torch.tensor([-0.0, 1e-42, -1e-42, 0.0])  # denormals are to stay
    xs[:, :8] *= 1e-40
    here, there = add_family(family, base, xs), base.to(device)
    made = add_family(family, there, xs)
    same = flat.same_bits(made.cpu(), here)
    close = torch.allclose(family[0].project(there), family[0].project(base), rtol=0, atol=_CLOSE * d**0.5)
    if not (same and close and digest(made) == digest(here)):
        raise ConfigError(
            f"{device} does not compute what a CPU does ({_versions(device)}): its model would not be the "
            "server's. Use --device cpu, and report this please"
        )


def _versions(device: torch.device) -> str:
    name = torch.cuda.get_device_name(device) + ", " if device.type == "cuda" else ""
    return f"{name}torch {torch.__version__}, by {passes.means(device)}"
