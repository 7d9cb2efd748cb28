"""Tasks over token sequences: a classifier, and a language model judged on the tokens that are scored."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager
from functools import cached_property, partial
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from narrowcast.numerics.devices.names import wide
from narrowcast.rounds.task import Batch, IndexArray
from narrowcast.tasks import side_effects
from narrowcast.tasks.module import ModuleTask
from narrowcast.tasks.partition import check_clients
from narrowcast.tasks.text import models
from narrowcast.tasks.text.ragged import Ragged, by_length

AT_ONCE = 512  # tokens of a forward pass: more leave the cache of a CPU, fewer read the weights too often
AT_ONCE_THERE = 8192  # the same on a device, which has no use for so few

Texts = tuple[Ragged | Sequence[Sequence[int]], Tensor | Sequence[int]]
"""Token ids, and a number for each sequence: its class, or how many of its last tokens are scored."""


class _Held(NamedTuple):
    """The same as the tasks keep it."""

    ids: Ragged
    number: Tensor


def _held(texts: Texts, what: str) -> _Held:
    ids, numbers = texts
    held = _Held(ids if isinstance(ids, Ragged) else Ragged(ids), torch.as_tensor(numbers).long())
    if len(held.ids) != len(held.number) or not len(held.ids):
        raise ValueError(
            f"{what} has {len(held.ids)} sequences and {len(held.number)} numbers: each needs one, and a "
            "task at least one sequence"
        )
    return held


class TextTask(ModuleTask):
    """A module of transformers over sequences, in batches of like length. Its dropout is turned off."""

    judged_by: str  # the metric
    higher: bool  # is better

    def __init__(
        self,
        module: nn.Module,
        *,
        train: Texts,
        test: Texts,
        clients: Sequence[IndexArray],
        name: str = "task",
        bf16: bool = False,
        at_once: int = AT_ONCE,
        tokenizer: Any = None,
        fresh: Sequence[str] = (),
    ) -> None:
        super().__init__(
            module, clients=clients, name=name, metric=self.judged_by, higher_is_better=self.higher
        )
        self._train, self._test = _held(train, "train"), _held(test, "test")
        self._bf16, self._asked, self._tokenizer = bf16, at_once, tokenizer
        self.fresh = tuple(fresh)  # parameters that the pretrained model lacked, and the run's key has drawn
        for held in (self._train, self._test):
            self._check(held)
        without_dropout(module)
        self.clients = check_clients(clients, len(self._train.ids))
        self._move_data()

    def to(self, device: torch.device) -> None:
        super().to(device)
        self._move_data()

    def _move_data(self) -> None:
        """The numbers beside the sequences; these themselves go to the model batch by batch."""
        train, test = self._train, self._test
        self._train = train._replace(number=train.number.to(self.device))
        self._test = test._replace(number=test.number.to(self.device))

    @property
    def _at_once(self) -> int:
        there = self.device.type != "cpu" and self._asked == AT_ONCE
        return AT_ONCE_THERE if there else self._asked

    def _numbers(self, texts: _Held, index: IndexArray) -> Tensor:
        return texts.number[torch.from_numpy(index).to(self.device)]

    @cached_property
    def _habits(self) -> side_effects.Habits:
        """Found by trial before the first step: dropout is off, and what else may draw is not known. Beside
        longer ones a sequence is padded, and rounded otherwise, which is no mixing."""
        self._train_mode()
        losses = partial(self.losses, self._train)
        whole = not self._bf16 and all(p.dtype == torch.float32 for p in self.module.parameters())
        close = side_effects.CLOSE if whole else 4 * torch.finfo(torch.bfloat16).eps
        return side_effects.observed(self.module, losses, len(self._train.ids), self.device, close)

    def losses(self, texts: _Held, index: IndexArray) -> Tensor:
        """(B,) the loss of each of these sequences."""
        raise NotImplementedError

    def _check(self, texts: _Held) -> None:
        """Whether the tokens, and the numbers beside the sequences, can be what they should."""
        embedding = getattr(self.module, "get_input_embeddings", lambda: None)()
        known = getattr(embedding, "num_embeddings", math.inf)
        if not 0 <= int(texts.ids.values.min()) <= int(texts.ids.values.max()) < known:
            raise ValueError(
                f"a sequence has tokens beyond the {known} that the model knows: another's tokenizer?"
            )
        longest = int(texts.ids.lengths.max())
        most = getattr(getattr(self.module, "config", None), "max_position_embeddings", None) or math.inf
        if longest > most:
            raise ValueError(f"a sequence has {longest} tokens, the model takes {most}: cut it (--tokens)")

    def save_pretrained(self, theta: Tensor, folder: Path) -> None:
        """A folder that `from_pretrained` reads, with the tokenizer if there is one; adapters are merged."""
        self.flat.load(theta)
        models.save(self.module, self._tokenizer, folder)

    def objectives(self, batch: Batch) -> Iterator[Tensor]:
        for part in by_length(self._train.ids.lengths[batch.index], self._at_once):
            yield self.losses(self._train, batch.index[part]) @ batch.weight[torch.from_numpy(part)].to(
                self.device
            )

    def _tests(self, theta: Tensor) -> Iterator[IndexArray]:
        """The test set in batches, with the module ready to be judged at theta."""
        self.flat.load(theta)
        self.module.eval()
        with torch.no_grad():
            yield from by_length(self._test.ids.lengths, self._at_once)

    def _precision(self) -> AbstractContextManager[None]:
        return torch.autocast(self.device.type, torch.bfloat16, enabled=self._bf16)


class Classifier(TextTask):
    """A model of classes, `AutoModelForSequenceClassification` say.

    Classifier(model, train=(ids, classes), test=(ids, classes), clients=..., name=...)
    """

    judged_by, higher = "accuracy", True

    def _check(self, texts: _Held) -> None:
        super()._check(texts)
        classes = getattr(getattr(self.module, "config", None), "num_labels", math.inf)
        if not 0 <= int(texts.number.min()) <= int(texts.number.max()) < classes:
            raise ValueError(f"classes are 0 to {classes - 1} for this model, got {int(texts.number.max())}")

    def losses(self, texts: _Held, index: IndexArray) -> Tensor:
        classes = self._numbers(texts, index)
        return nn.functional.cross_entropy(self._scores(texts, index), classes, reduction="none")

    def evaluate(self, theta: Tensor) -> dict[str, float]:
        right = total = 0.0
        for index in self._tests(theta):
            scores, classes = self._scores(self._test, index), self._numbers(self._test, index)
            right += float((scores.argmax(1) == classes).sum())
            total += float(nn.functional.cross_entropy(scores, classes, reduction="sum"))
        return {"accuracy": right / len(self._test.number), "loss": total / len(self._test.number)}

    def _scores(self, texts: _Held, index: IndexArray) -> Tensor:
        ids, mask = texts.ids.padded(index, pad=_padding(self.module), device=self.device)
        with self._precision():
            scores: Tensor = self.module(input_ids=ids, attention_mask=mask).logits
        return scores.float()


class LanguageModel(TextTask):
    """A causal model, `AutoModelForCausalLM` say.

    LanguageModel(model, train=(ids, scored), test=(ids, scored), clients=..., name=...)

    The last `scored` tokens of each sequence are predicted from all that stands before them.
    A sequence's loss is the mean over its scored tokens; the perplexity is exp of the mean over all of them.
    Sequences end together, so that only the scored positions pass through the layer over the vocabulary.
    """

    judged_by, higher = "perplexity", False

    def _check(self, texts: _Held) -> None:
        super()._check(texts)
        if (texts.number < 1).any() or (texts.number.numpy() >= texts.ids.lengths).any():
            raise ValueError("a sequence scores at least one token, and not its first")

    def losses(self, texts: _Held, index: IndexArray) -> Tensor:
        return self._sums(texts, index) / self._numbers(texts, index)

    def evaluate(self, theta: Tensor) -> dict[str, float]:
        total = sum(float(wide(self._sums(self._test, index)).sum()) for index in self._tests(theta))
        loss = total / float(self._test.number.sum())
        return {"perplexity": math.exp(min(loss, 700.0)), "loss": loss}

    def _sums(self, texts: _Held, index: IndexArray) -> Tensor:
        """(B,) negative log-likelihoods, summed over a sequence's scored tokens."""
        ids, mask = texts.ids.padded(index, left=True, device=self.device)
        scored = self._numbers(texts, index)
        most = int(scored.max())
        place = (mask.cumsum(1) - 1).clamp(min=0)
        with self._precision():
            logits = self.module(
                input_ids=ids,
                attention_mask=mask,
                position_ids=place,
                logits_to_keep=most + 1,
                use_cache=False,
            ).logits[:, :-1]
        targets = ids[:, -most:]
        each = nn.functional.cross_entropy(logits.flatten(0, 1).float(), targets.flatten(), reduction="none")
        counted = torch.arange(most, device=self.device) >= most - scored[:, None]
        return (each.view_as(targets) * counted).sum(1)


def without_dropout(module: nn.Module) -> None:
    """No part of it drops anything: what is dropped would be drawn from torch's own generator."""
    for part in module.modules():
        for name, value in vars(part).items():
            if isinstance(value, float) and (
                "drop" in name or (name == "p" and isinstance(part, nn.Dropout))
            ):
                setattr(part, name, 0.0)


def _padding(module: nn.Module) -> int:
    """The id that fills a batch up. Decoders find a sentence's last token by it, so they must know it."""
    config = getattr(module, "config", None)
    if config is None:
        return 0
    if config.pad_token_id is None:
        last = getattr(config, "eos_token_id", None)
        config.pad_token_id = next(iter(last), 0) if isinstance(last, list) else last or 0
    return int(config.pad_token_id)
