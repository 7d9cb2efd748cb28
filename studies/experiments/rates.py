"""Is `--lr auto` as good as a tuned rate? The grid that it is held to, and its own choice beside it.

    python studies/experiments/rates.py digits            (or fashion-mnist, with NARROWCAST_DATA set)
    python studies/experiments/rates.py digits --methods  (of none: only the table of what was run)

Every method over rates centre * 3^i (`narrowcast.rounds.tune`: three, and more while the best lies on the
border), each with three seeds (a few rows with ten), scored by the metric on the test set: what tuning with
hindsight reaches. Then the rate that `--lr auto` chooses for each seed, which sees training data alone. Runs
are kept in results/rates/NAME.csv as they end, and not repeated; results/rates/NAME.md is the table.
"""

from __future__ import annotations

import argparse
import csv
import statistics
from pathlib import Path
from typing import Any

from narrowcast import intervals
from narrowcast.errors import Diverged
from narrowcast.methods import METHODS
from narrowcast.rounds import Grid, best_of, search
from narrowcast.runs import make_config, prepare, using_threads
from narrowcast.tables import markdown_table

HERE = Path(__file__).parent / "results" / "rates"
SEEDS = range(3)
MORE = range(10)  # of a row that three seeds put more than two points below, each of them far from the others
CLOSER = {("digits", "signsgd"), ("fashion-mnist", "stc")}
TASKS: dict[str, dict[str, Any]] = {
    "digits": {"epochs": 5, "width": 64, "dim": 256},
    "fashion-mnist": {"rounds": 120, "width": 64, "dim": 256, "cohort": 30},
}
CENTRES = {  # of the grid, for digits: it moves where it must
    "static": 10.0, "time-varying": 10.0, "k-subspace": 20.0, "k-subspace-time-varying": 20.0, "narrow": 10.0,
    "signsgd": 0.001, "fedkseed": 0.001, "fetchsgd": 0.1,
}  # fmt: skip
MOST = 7  # rates of a method


class Runs:
    """The metric at the end by (method, rate, seed), in a file as they end; None: it diverged."""

    def __init__(self, task: str) -> None:
        self.task, self.path = task, HERE / f"{task}.csv"
        self.known: dict[tuple[str, str, int], tuple[float | None, float]] = {}
        if self.path.is_file():
            with self.path.open() as f:
                for row in csv.DictReader(f):
                    value = None if row["metric"] == "diverged" else float(row["metric"])
                    self.known[row["method"], row["asked"], int(row["seed"])] = (value, float(row["lr"]))

    def value(self, method: str, asked: str, seed: int) -> tuple[float | None, float]:
        """(the metric at the end, the rate that was used) of a run with this --lr."""
        key = (method, asked, seed)
        if key not in self.known:
            self.known[key] = train(self.task, method, asked, seed)
            self._write()
            print(*key, *self.known[key], flush=True)
        return self.known[key]

    def _write(self) -> None:
        with self.path.open("w") as f:
            writer = csv.writer(f, lineterminator="\n")
            writer.writerow(["method", "asked", "seed", "lr", "metric"])
            for (method, asked, seed), (value, lr) in sorted(self.known.items()):
                writer.writerow(
                    [method, asked, seed, f"{lr:g}", "diverged" if value is None else f"{value:.4f}"]
                )

    def seeds(self, method: str) -> range:
        return MORE if (self.task, method) in CLOSER else SEEDS

    def mean(self, method: str, asked: str) -> float:
        """Over the seeds; one that diverged scores nothing."""
        values = [self.value(method, asked, seed)[0] for seed in self.seeds(method)]
        return statistics.mean(0.0 if v is None else v for v in values)

    def tuned(self, method: str) -> tuple[float, float]:
        """(the best rate of the grid, its mean)."""
        grid = Grid(CENTRES.get(method, 0.3), most=MOST)
        scores = search(grid, lambda rate: self.mean(method, f"{rate:g}"))
        best = best_of(scores)
        return grid.rate(best), scores[best]


def train(task: str, method: str, asked: str, seed: int) -> tuple[float | None, float]:
    rate = asked if asked == "auto" else float(asked)
    config = make_config(
        {"task": task, "method": method, "lr": rate, "seed": seed, "evaluate_every": 0, **TASKS[task]}
    )
    run = prepare(config)
    used = 0.0
    try:
        with using_threads(1):
            run = run.with_rate(run.find_rate().rate) if asked == "auto" else run
            used = float(run.config.lr)
            *_, last = run.simulation()
    except Diverged:
        return None, used
    return last.metrics[run.task.metric], used


def table(runs: Runs) -> str:
    head = ["method", "tuned lr", "there", "auto's lr", "there", "points"]
    rows = []
    missing = [m for m in METHODS if any((m, "auto", seed) not in runs.known for seed in runs.seeds(m))]
    for method in METHODS:
        if method in missing:
            continue
        rate, tuned = runs.tuned(method)
        seeds = runs.seeds(method)
        chosen = ", ".join(f"{runs.value(method, 'auto', seed)[1]:g}" for seed in seeds)
        auto = runs.mean(method, "auto")
        pairs = [
            [runs.value(method, asked, seed)[0] or 0.0 for asked in ("auto", f"{rate:g}")] for seed in seeds
        ]
        apart = [100 * (mine - best) for mine, best in pairs]
        points = f"{100 * (auto - tuned):+.1f} ± {intervals.half_width(apart):.1f}"
        rows.append([method, f"{rate:g}", f"{tuned:.4f}", chosen, f"{auto:.4f}", points])
    settings = ", ".join(f"{name} = {value}" for name, value in TASKS[runs.task].items())
    about = (
        f"`python studies/experiments/rates.py {runs.task}`: {settings}, else the defaults; on the "
        f"test set, means over seeds {', '.join(map(str, SEEDS))} (where auto has more rates: over "
        "all of them; a run that diverged counts as 0); points: the mean over the seeds "
        "of auto's less the tuned one's, with Student's interval of 95 %."
    )
    about += f" Not run yet: {', '.join(missing)}." if missing else ""
    return f"# {runs.task}: --lr auto beside a tuned rate\n\n{about}\n\n{markdown_table(head, rows)}\n"


def main() -> None:
    parser = argparse.ArgumentParser(description="--lr auto beside tuned rates")
    parser.add_argument("task", choices=TASKS)
    parser.add_argument("--methods", nargs="*", default=list(METHODS))
    arguments = parser.parse_args()
    runs = Runs(arguments.task)
    for method in arguments.methods:
        rate, value = runs.tuned(method)
        auto = runs.mean(method, "auto")
        print(f"{method}: {value:.4f} at lr {rate:g}, auto {auto:.4f}", flush=True)
    if arguments.methods in ([], list(METHODS)):
        (HERE / f"{arguments.task}.md").write_text(table(runs))
        print(table(runs))


if __name__ == "__main__":
    main()
