"""A transformer, its loss and its data."""

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset
from transformers import BertConfig, BertForSequenceClassification

WORDS, LENGTH, EXAMPLES, HELD_OUT = 64, 12, 512, 128


def make_model() -> nn.Module:
    """Yours would be AutoModelForSequenceClassification.from_pretrained(...)."""
    torch.manual_seed(0)  # the same start everywhere; a node with another one is sent the server's
    shape = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 64}
    no_dropout = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}  # equal runs, equal models
    return BertForSequenceClassification(
        BertConfig(vocab_size=WORDS, num_labels=2, initializer_range=0.1, **shape, **no_dropout)
    )


def loss(model: nn.Module, batch: dict[str, torch.Tensor]) -> torch.Tensor:
    return model(**batch).loss


class Sentences(Dataset):
    """Made-up sentences of 4 to 12 words; the label is the half of the dictionary that most come from."""

    def __init__(self, seeds: range) -> None:
        self.seeds = seeds

    def __len__(self) -> int:
        return len(self.seeds)

    def __getitem__(self, i: int) -> tuple[torch.Tensor, int]:
        draw = torch.Generator().manual_seed(self.seeds[i])
        length = int(torch.randint(4, LENGTH + 1, (), generator=draw))
        label = int(torch.randint(2, (), generator=draw))
        common = torch.rand(length, generator=draw) < 0.95  # most words come from the label's half
        half = torch.where(common, label, 1 - label)
        return 1 + half * (WORDS // 2 - 1) + torch.randint(WORDS // 2 - 1, (length,), generator=draw), label


def collate(examples: list[tuple[torch.Tensor, int]]) -> dict[str, torch.Tensor]:
    """What the model takes, padded to the longest."""
    words = nn.utils.rnn.pad_sequence([words for words, _ in examples], batch_first=True)
    labels = torch.tensor([label for _, label in examples])
    return {"input_ids": words, "attention_mask": (words != 0).long(), "labels": labels}


def make_loader(part: int, parts: int) -> DataLoader:
    """The data of one node. Yours would read what lies on that machine."""
    return DataLoader(Sentences(range(part, EXAMPLES, parts)), batch_size=64, collate_fn=collate)


def evaluate(model: nn.Module) -> dict[str, float]:
    """At the server, on data that no node has."""
    held_out = Sentences(range(EXAMPLES, EXAMPLES + HELD_OUT))
    batch = collate([held_out[i] for i in range(len(held_out))])
    labels = batch.pop("labels")
    return {"accuracy": float((model(**batch).logits.argmax(1) == labels).float().mean())}
