"""What the hook keeps between steps: settings, the number of steps, and the error where it is fed back."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
import xxhash
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from narrowcast.ddp import sums
from narrowcast.ddp.sums import PLAIN_BITS, Workers
from narrowcast.methods.intrinsic import Intrinsic
from narrowcast.numerics import keyed
from narrowcast.numerics.flat import Layout, all_finite
from narrowcast.numerics.keyed import Key, Purpose
from narrowcast.subspaces.base import Subspace

ORTHOGONAL_COLUMNS = ("rotation", "grouping")  # kinds for which v - (d/D) A A^T v is never longer than v
FORMAT = 1  # of `state_dict`
ROUNDING = "rounding"
LATER: dict[str, Any] = {"bits": PLAIN_BITS, ROUNDING: False}  # settings that older checkpoints do not have


@dataclass(frozen=True)
class Waiting:
    """A bucket whose gradients are in the flat vector, and whose future is open."""

    buffer: Tensor
    gradients: dict[str, Tensor]  # views of buffer
    future: torch.futures.Future[Tensor]


class IntrinsicState:
    """The state of `intrinsic_hook`, one a model. All workers give the same arguments.

    `refresh`: 1 is a new A every step, N every N steps, 0 never (static). `subspaces` is K, taken in turn.
    `bits` a number are all-reduced, 1.6 to 16, or 32 (float32): see `sums`. The first `warmup` steps are
    all-reduced whole. `unbiased` leaves out the factor d/D. `error_feedback` keeps e_w = u_w - (d/D) A x_w
    of u_w = g_w + e_w, D numbers, x_w being A^T u_w as it was sent; "rounding" keeps what few bits took away,
    e_w = A^T g_w + e_w - x_w, d numbers, until the next A. `key` is the seed of all A and dithers.
    """

    def __init__(
        self,
        model: nn.Module,
        dim: int,
        *,
        key: Key = 0,
        subspaces: int = 1,
        refresh: int = 1,
        bits: float = PLAIN_BITS,
        warmup: int = 0,
        kind: str = "rotation",
        unbiased: bool = False,
        error_feedback: bool | str = False,
        process_group: dist.ProcessGroup | None = None,
    ) -> None:
        if not isinstance(refresh, int) or not isinstance(warmup, int) or warmup < 0:
            raise ValueError(
                f"refresh and warmup are numbers of steps, got {refresh!r} and {warmup!r}: for a new A every "
                "epoch give refresh=len(loader)"
            )
        if isinstance(error_feedback, str):
            check_rounding(error_feedback, bits, refresh, subspaces)
        elif error_feedback and (refresh == 0 or unbiased or kind not in ORTHOGONAL_COLUMNS):
            raise ValueError(
                f"error feedback needs refresh >= 1, unbiased=False and kind in {ORTHOGONAL_COLUMNS}, got "
                f"{refresh}, {unbiased}, {kind!r}: otherwise the error is never sent, or grows without bound"
            )
        sums.check_bits(bits)
        self.method = Intrinsic(key, dim, subspaces, refresh, kind, unbiased=unbiased)
        self.refresh, self.warmup, self.bits = refresh, warmup, float(bits)
        self.process_group = process_group
        self.step = 0
        self.reduced = 0  # bytes of all tensors that this worker has given to an all-reduce for a gradient
        self.names = trainable(model)
        self.layout = layout(self.names)
        if dim > self.D:
            raise ValueError(
                f"dim {dim} exceeds the model's {self.D} trainable numbers: choose a smaller dim (parameters "
                "with requires_grad=False are left out)"
            )
        self.rounding = error_feedback == ROUNDING
        self.error = torch.zeros(dim if self.rounding else self.D) if error_feedback else None
        self.agreed = False  # whether all workers were found to have the same settings
        self.flat: Tensor | None = None  # (D,) the gradient of the step in progress
        self.waiting: list[Waiting] = []  # its buckets

    @property
    def D(self) -> int:
        return self.layout.size

    @property
    def group(self) -> dist.ProcessGroup:
        """The group that was given, which must be DDP's, or the default one."""
        group = self.process_group if self.process_group is not None else dist.group.WORLD
        assert group is not None, "torch.distributed is not initialised"
        return group

    def attach(self, model: nn.Module) -> None:
        """Serve `model` from now on: what is left to do with a state that was copied or unpickled."""
        names = trainable(model)
        if layout(names) != self.layout:
            raise ValueError(
                f"the state was made for {len(self.layout.names)} trainable parameters of {self.D} numbers, "
                f"this model has {len(names)} of {layout(names).size}, or others: make a new IntrinsicState"
            )
        self.names = names

    @property
    def turn(self) -> int:
        """The present step, counted from the end of the warm-up."""
        return self.step - self.warmup

    def subspace(self) -> Subspace:
        """A of the present step."""
        stage = self.turn // self.refresh if self.refresh else 0
        return self.method.matrix(self.D, stage, self.turn % self.method.subspaces)

    def reduce(self, g: Tensor, workers: Workers) -> None:
        """g_w (D,) -> (d/D) A mean_w(A^T (g_w + e_w)), in place; e_w becomes what this worker did not send.

        Where the mean is not finite nobody's error changes: the gradients are not finite then either, and a
        GradScaler skips the step on all workers.
        """
        A, scale = self.subspace(), 1.0 if self.method.unbiased else self.method.dim / self.D
        key = keyed.derive(self.method.key, Purpose.DITHER, self.step)
        if self.error is not None and not self.rounding:
            self.error = self.error.to(g.device)
            g.add_(self.error)
        x = A.project(g)
        if self.error is not None and self.rounding:
            if self.refresh and self.turn % self.refresh == 0:
                self.error.zero_()  # it was of another A
            x.add_(self.error)
        sent, shared = sums.mean(x, workers, self.bits, key, cut=self.rounding)
        if self.error is not None and all_finite(shared):
            if self.rounding:
                torch.sub(x, sent, out=self.error)
            else:
                A.add_expanded(g, sent * -scale, out=self.error)
        A.expand(shared * scale, out=g)

    def settings(self) -> dict[str, Any]:
        """What must be equal on all workers, and after a restart."""
        m = self.method
        return {
            "format": FORMAT,
            "dim": m.dim,
            "key": m.key,
            "subspaces": m.subspaces,
            "refresh": self.refresh,
            "warmup": self.warmup,
            "kind": m.subspace,
            "unbiased": m.unbiased,
            "bits": self.bits,
            ROUNDING: self.rounding,
            "layout": xxhash.xxh3_64_intdigest(repr(self.layout).encode()),
        }

    def state_dict(self) -> dict[str, Any]:
        """Tensors, numbers and a string. With error feedback every worker must save its own."""
        saved = {**self.settings(), "step": self.step}
        if self.error is not None:
            saved |= {"error": self.error.to("cpu", copy=True), "rank": self._rank()}
        return saved

    def load_state_dict(self, saved: dict[str, Any]) -> None:
        """Go on where `saved` was. Without "error" in it (it may be deleted) the error starts at zero."""
        for name, mine in self.settings().items():
            theirs = saved.get(name, LATER.get(name))
            if theirs != mine:
                raise ValueError(
                    f"the checkpoint has {name} = {theirs!r}, this state {mine!r}: make the state "
                    "with the checkpoint's settings, for the same model"
                )
        if self.error is not None:
            self.error = self._saved_error(saved)
        self.step, self.agreed = int(saved["step"]), False

    def _saved_error(self, saved: dict[str, Any]) -> Tensor:
        if "error" not in saved:
            return torch.zeros(self.method.dim if self.rounding else self.D)
        if saved["rank"] != self._rank():
            raise ValueError(
                f"the error in the checkpoint is that of worker {saved['rank']}, this is worker "
                f"{self._rank()}: save one checkpoint a worker, or delete 'error' from it to start at zero"
            )
        error: Tensor = saved["error"].detach().to("cpu", copy=True)
        return error

    def _rank(self) -> int:
        return dist.get_rank(self.process_group) if dist.is_initialized() else -1

    def __getstate__(self) -> dict[str, Any]:
        """Without the process group, which cannot be pickled, and without the parameters: see `attach`."""
        kept = ("method", "refresh", "warmup", "bits", "rounding", "step", "reduced", "layout", "error")
        return {name: self.__dict__[name] for name in kept}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state, process_group=None, names={}, agreed=False, flat=None, waiting=[])


def check_rounding(error_feedback: str, bits: float, refresh: int, subspaces: int) -> None:
    if error_feedback != ROUNDING:
        raise ValueError(f"error_feedback is True, False or {ROUNDING!r}, got {error_feedback!r}")
    if bits == PLAIN_BITS or refresh == 1 or subspaces != 1:
        raise ValueError(
            f"error_feedback={ROUNDING!r} keeps what few bits took away until the next A: it needs bits "
            f"below {PLAIN_BITS:g}, subspaces=1, and an A that stays (refresh=20, say), got bits={bits:g}, "
            f"subspaces={subspaces}, refresh={refresh}"
        )


def trainable(model: nn.Module) -> dict[Tensor, str]:
    """The parameters that DDP reduces, in the model's order, with their names; tied ones count once."""
    module = model.module if isinstance(model, DistributedDataParallel) else model
    ignored = set(getattr(module, "_ddp_params_and_buffers_to_ignore", ()))
    named = {p: n for n, p in module.named_parameters() if p.requires_grad and n not in ignored}
    unfit = [f"{n} ({p.dtype})" for p, n in named.items() if not p.is_floating_point()]
    if unfit:
        raise ValueError(
            f"only real parameters can be projected, got {', '.join(unfit)}: freeze them, or leave them out"
        )
    return named


def layout(names: dict[Tensor, str]) -> Layout:
    return Layout(tuple(names.values()), tuple(tuple(p.shape) for p in names))
