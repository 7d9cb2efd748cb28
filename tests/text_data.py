"""Small files in the form of the data sets over text."""

import json
from pathlib import Path

GOOD = [
    "a fine and moving film",
    "funny , warm and wise",
    "the best cast of the year",
    "a joy from start to end",
]
BAD = [
    "a dull and empty mess",
    "neither funny nor sad , only long",
    "i fell asleep",
    "the plot makes no sense at all",
]


def write_sst2(folder: Path, copies: int = 10) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    lines = [
        f"{s} {i}\t{label}" for i in range(copies) for label, part in enumerate((BAD, GOOD)) for s in part
    ]
    (folder / "train.tsv").write_text("\n".join(["sentence\tlabel", *lines]) + "\n")
    (folder / "dev.tsv").write_text("\n".join(["sentence\tlabel", *(line for line in lines[:8])]) + "\n")
    return folder


def dialogues(personas: int = 6) -> list[dict[str, object]]:
    """Two dialogues a persona to train on, one of a stranger to be judged by; the holder answers."""
    return [
        {
            "split": "valid" if k == 2 else "train",
            "persona": [f"i have {p} cats.", "i like tea."] if k < 2 else [f"i own {p} boats."],
            "owner": 1,
            "utterances": [
                "hi , how are you ?",
                f"fine , my {p} cats are too .",
                "do you work ?",
                f"no {k} .",
            ],
        }
        for p in range(personas)
        for k in range(3)
    ]


def write_lines(folder: Path, personas: int = 6) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    text = "\n".join(json.dumps(d) for d in dialogues(personas))
    (folder / "personachat_3072.jsonl").write_text(text + "\n")
    return folder


def write_json(folder: Path, personas: int = 6) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    parts: dict[str, list[object]] = {"train": [], "valid": []}
    for d in dialogues(personas):
        said = d["utterances"]
        assert isinstance(said, list)
        turns = [{"candidates": ["wrong", said[i]], "history": said[:i]} for i in (1, 3)]
        parts[str(d["split"])].append({"personality": d["persona"], "utterances": turns})
    (folder / "personachat_self_original.json").write_text(json.dumps(parts))
    return folder


def write_text(folder: Path, personas: int = 6) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    parts: dict[str, list[str]] = {"train": [], "valid": []}
    for d in dialogues(personas):
        said, persona = d["utterances"], d["persona"]
        assert isinstance(said, list)
        assert isinstance(persona, list)
        lines = [f"your persona: {p}" for p in persona]
        lines += [f"{said[i]}\t{said[i + 1]}\t\twrong|{said[i + 1]}" for i in (0, 2)]
        parts[str(d["split"])] += [f"{n} {line}" for n, line in enumerate(lines, 1)]
    for part, lines in parts.items():
        (folder / f"{part}_self_original.txt").write_text("\n".join(lines) + "\n")
    return folder


def write_checkpoint(folder: Path, seed: int = 0) -> Path:
    """A BERT without a head, and its tokenizer, as people keep them."""
    import torch
    import transformers

    words = "[PAD] [UNK] [CLS] [SEP] a rather longer sentence of words many , fine film dull mess"
    folder.mkdir()
    (folder / "vocab.txt").write_text("\n".join(words.split()) + "\n")
    torch.manual_seed(seed)
    config = transformers.BertConfig(
        vocab_size=len(words.split()), hidden_size=32, intermediate_size=64, num_hidden_layers=2,
        num_attention_heads=1, max_position_embeddings=512,
    )  # fmt: skip
    transformers.BertModel(config).save_pretrained(folder)
    transformers.BertTokenizerFast(vocab=str(folder / "vocab.txt")).save_pretrained(folder)
    return folder
