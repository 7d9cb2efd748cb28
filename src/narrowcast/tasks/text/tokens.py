"""Text to token ids: a pretrained model's own tokenizer, or plain bytes for models that are trained here."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

PAD, BEGIN, END, FIRST_BYTE = 0, 1, 2, 3


class Tokens(Protocol):
    tokenizer: Any  # of transformers; None: there is none

    def encode(self, texts: list[str]) -> list[list[int]]:
        """The ids of each text, nothing added."""

    def classified(self, texts: list[str], most: int) -> list[list[int]]:
        """The same with what the model expects around a text, cut to `most` ids."""

    @property
    def begin(self) -> Sequence[int]:
        """What stands before the first token of a text, where the model knows such a thing."""


class ByteTokens:
    """UTF-8's bytes, after three ids of our own."""

    size = FIRST_BYTE + 256
    tokenizer: Any = None
    begin: Sequence[int] = (BEGIN,)

    def encode(self, texts: list[str]) -> list[list[int]]:
        return [[FIRST_BYTE + byte for byte in text.encode()] for text in texts]

    def classified(self, texts: list[str], most: int) -> list[list[int]]:
        return [[BEGIN, *ids[: most - 2], END] for ids in self.encode(texts)]


class PretrainedTokens:
    """The tokenizer that came with a model."""

    def __init__(self, tokenizer: Any) -> None:
        self.tokenizer = tokenizer

    @property
    def begin(self) -> list[int]:
        first = self.tokenizer.bos_token_id
        return [] if first is None else [first]

    def encode(self, texts: list[str]) -> list[list[int]]:
        return self._ids(texts, add_special_tokens=False)

    def classified(self, texts: list[str], most: int) -> list[list[int]]:
        return self._ids(texts, truncation=True, max_length=most)

    def _ids(self, texts: list[str], **how: Any) -> list[list[int]]:
        ids: list[list[int]] = self.tokenizer(
            texts, return_attention_mask=False, return_token_type_ids=False, verbose=False, **how
        )["input_ids"]
        return ids
