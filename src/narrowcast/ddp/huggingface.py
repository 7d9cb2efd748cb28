"""The hook inside transformers' Trainer.

    trainer.add_callback(IntrinsicCallback(trainer, dim=16384, bits=4))

Trainer wraps the model when training begins, so this is when the hook is registered. The hook's place in its
schedule goes into the trainer's state, `trainer_state.json` of every checkpoint, and a run that is resumed
goes on with the same A and dither.
"""

from __future__ import annotations

from typing import Any

from narrowcast.ddp.register import compress
from narrowcast.ddp.state import IntrinsicState
from narrowcast.extras import require

require("transformers", "text", "narrowcast.ddp.huggingface")

from transformers import TrainerCallback  # noqa: E402  # after the word about how to get it

PLACE = "narrowcast.IntrinsicState"  # in TrainerState.stateful_callbacks


class IntrinsicCallback(TrainerCallback):  # type: ignore[misc]  # transformers is Any to mypy
    """All-reduce `dim` numbers a step; the options are those of IntrinsicState. `hook` is it, in training."""

    def __init__(self, trainer: Any, dim: int, **options: Any) -> None:
        if options.get("error_feedback"):
            raise ValueError(
                "error feedback keeps an error on every worker, and Trainer's checkpoints have no place for "
                "it: leave error_feedback out, or write the loop yourself"
            )
        self.trainer, self.dim, self.options = trainer, dim, options
        self.hook: IntrinsicState | None = None
        self._wrapped: Any = None

    def on_train_begin(self, args: Any, state: Any, control: Any, **more: Any) -> None:
        wrapped = self.trainer.model_wrapped
        if wrapped is not self._wrapped:  # a second train() may find the model wrapped, and hooked, already
            self.hook, self._wrapped = compress(wrapped, self.dim, **self.options), wrapped
        assert self.hook is not None
        saved = state.stateful_callbacks.get(PLACE)
        if saved is not None:
            self.hook.load_state_dict(saved["attributes"])
        elif state.global_step:
            raise ValueError(
                f"the checkpoint of step {state.global_step} was made without the hook: begin anew, or go on "
                "from its model alone"
            )

    def on_step_end(self, args: Any, state: Any, control: Any, **more: Any) -> None:
        assert self.hook is not None
        state.stateful_callbacks[PLACE] = {"args": {}, "attributes": self.hook.state_dict()}
