"""Tasks over token sequences: a classifier, and a language model judged on the tokens that are scored."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager

import numpy as np
import torch
from torch import Tensor, nn

from narrowcast.tasks.batch import Batch
from narrowcast.tasks.module import ModuleTask
from narrowcast.tasks.partition import IndexArray
from narrowcast.tasks.text.ragged import Ragged, by_length

AT_ONCE = 512  # tokens of a forward pass: more leave the cache of a CPU, fewer read the weights too often

Texts = tuple[Ragged, Tensor]  # sequences, and a number for each: its class, or how many tokens are scored


class TextTask(ModuleTask):
    """A module of transformers over sequences, in batches of like length."""

    def __init__(
        self,
        module: nn.Module,
        *,
        train: Texts,
        test: Texts,
        clients: Sequence[IndexArray],
        name: str,
        metric: str,
        higher_is_better: bool,
        bf16: bool = False,
        at_once: int = AT_ONCE,
    ) -> None:
        super().__init__(module, clients=clients, name=name, metric=metric, higher_is_better=higher_is_better)
        self._train, self._test, self._bf16, self._at_once = train, test, bf16, at_once

    def losses(self, texts: Texts, index: IndexArray) -> Tensor:
        """(B,) the loss of each of these sequences."""
        raise NotImplementedError

    def objectives(self, batch: Batch) -> Iterator[Tensor]:
        for part in by_length(self._train[0].lengths[batch.index], self._at_once):
            yield self.losses(self._train, batch.index[part]) @ batch.weight[torch.from_numpy(part)]

    def _tests(self, theta: Tensor) -> Iterator[IndexArray]:
        """The test set in batches, with the module ready to be judged at theta."""
        self.flat.load(theta)
        self.module.eval()
        with torch.no_grad():
            yield from by_length(self._test[0].lengths, self._at_once)

    def _precision(self) -> AbstractContextManager[None]:
        return torch.autocast("cpu", torch.bfloat16, enabled=self._bf16)


class Classifier(TextTask):
    """module(ids).logits are the classes' scores; the targets are classes."""

    def __init__(self, module: nn.Module, **how: object) -> None:
        super().__init__(module, metric="accuracy", higher_is_better=True, **how)  # type: ignore[arg-type]

    def losses(self, texts: Texts, index: IndexArray) -> Tensor:
        classes = texts[1][torch.from_numpy(index)]
        return nn.functional.cross_entropy(self._scores(texts, index), classes, reduction="none")

    def evaluate(self, theta: Tensor) -> dict[str, float]:
        right = total = 0.0
        for index in self._tests(theta):
            scores, classes = self._scores(self._test, index), self._test[1][torch.from_numpy(index)]
            right += float((scores.argmax(1) == classes).sum())
            total += float(nn.functional.cross_entropy(scores, classes, reduction="sum"))
        return {"accuracy": right / len(self._test[1]), "loss": total / len(self._test[1])}

    def _scores(self, texts: Texts, index: IndexArray) -> Tensor:
        ids, mask = texts[0].padded(index)
        with self._precision():
            scores: Tensor = self.module(input_ids=ids, attention_mask=mask).logits
        return scores.float()


class LanguageModel(TextTask):
    """The last `scored` tokens of each sequence are predicted from all that stands before them.

    A sequence's loss is the mean over its scored tokens; the perplexity is exp of the mean over all of them.
    Sequences end together, so that only the scored positions pass through the layer over the vocabulary.
    """

    def __init__(self, module: nn.Module, **how: object) -> None:
        super().__init__(module, metric="perplexity", higher_is_better=False, **how)  # type: ignore[arg-type]

    def losses(self, texts: Texts, index: IndexArray) -> Tensor:
        return self._sums(texts, index) / texts[1][torch.from_numpy(index)]

    def evaluate(self, theta: Tensor) -> dict[str, float]:
        total = sum(float(self._sums(self._test, index).double().sum()) for index in self._tests(theta))
        loss = total / float(self._test[1].sum())
        return {"perplexity": math.exp(min(loss, 700.0)), "loss": loss}

    def _sums(self, texts: Texts, index: IndexArray) -> Tensor:
        """(B,) negative log-likelihoods, summed over a sequence's scored tokens."""
        ids, mask = texts[0].padded(index, left=True)
        scored = texts[1][torch.from_numpy(index)]
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
        counted = torch.arange(most) >= most - scored[:, None]
        return (each.view_as(targets) * counted).sum(1)


def checked(sequences: Ragged, scored: Sequence[int]) -> Texts:
    """The examples of a language model: something must stand before the first scored token of each."""
    counts = np.asarray(scored, np.int64)
    if (counts < 1).any() or (counts >= sequences.lengths).any():
        raise ValueError("a sequence scores at least one token, and not its first")
    return sequences, torch.from_numpy(counts)
