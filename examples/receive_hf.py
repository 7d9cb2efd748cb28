"""Run a model that somebody fine-tuned: the base from the hub or a folder, the rest from a file of kilobytes.

    pip install 'narrowcast[text]'
    python examples/receive_hf.py model.narrowcast --model distilbert/distilbert-base-uncased \\
        "a joy from start to end" "i fell asleep"

The file came by mail, by `narrowcast pull who/name`, or from examples/finetune_hf.py. No training data is
needed. A base that is not the one it was trained from is refused. For the whole model in a folder that
`from_pretrained` reads: narrowcast export model.narrowcast --base MODEL --to FOLDER.
"""

import argparse
from pathlib import Path

import torch
from transformers import AutoModelForSequenceClassification, AutoTokenizer

import narrowcast as nc


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("file", type=Path, help="model.narrowcast")
    parser.add_argument("sentences", nargs="+", help="to be classified")
    parser.add_argument("--model", required=True, help="the base: a name on the hub, or a folder")
    args = parser.parse_args()

    # As ever with transformers: the head is new, and as it happens to be drawn.
    tokenizer = AutoTokenizer.from_pretrained(args.model)
    model = AutoModelForSequenceClassification.from_pretrained(args.model, num_labels=2, dtype=torch.float32)

    nc.apply(model, args.file)  # now body and head are those that the server ended with, bit for bit

    model.eval()
    batch = tokenizer(args.sentences, truncation=True, max_length=128, padding=True, return_tensors="pt")
    with torch.no_grad():
        positive = model(**batch).logits.softmax(1)[:, 1]
    for sentence, share in zip(args.sentences, positive.tolist(), strict=True):
        print(f"{share:.3f}  {sentence}")


if __name__ == "__main__":
    main()
