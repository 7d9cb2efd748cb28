"""Run a trend comparison over several seeds and write its table.

    python experiments/trend.py digits          (or fashion-mnist)

Reads experiments/trend-NAME.toml, runs what is missing below runs/trend-NAME/, and writes
experiments/results/trend-NAME.md: mean and standard error of the metric over the seeds.
"""

from __future__ import annotations

import statistics
import sys
from pathlib import Path

from narrowcast import compare, files
from narrowcast.report.summary import Summary, compression, reference, summarise
from narrowcast.report.table import times

HERE = Path(__file__).parent
SEEDS = range(5)


def main(name: str) -> None:
    by_label: dict[str, list[tuple[Summary, str]]] = {}
    for seed in SEEDS:
        comparison = compare.load(HERE / f"trend-{name}.toml", {"seed": seed})
        folders = compare.run_all(comparison, Path("runs") / f"trend-{name}" / f"seed-{seed}")
        runs = [summarise(folder) for folder in folders]
        for run in runs:
            ratio = compression(run, reference(run, runs))
            assert ratio is not None
            by_label.setdefault(run.facts.label, []).append((run, times(ratio.up, ratio.down, ratio.total)))
        print(f"seed {seed}:", ", ".join(f"{r.facts.label} {r.metric:.4f}" for r in runs), flush=True)
    commit = files.commit()
    out = HERE / "results" / f"trend-{name}.md"
    out.parent.mkdir(exist_ok=True)
    out.write_text(_table(name, by_label, commit))
    print(out.read_text())


def _table(name: str, by_label: dict[str, list[tuple[Summary, str]]], commit: str) -> str:
    facts = next(iter(by_label.values()))[0][0].facts
    lines = [
        f"# {name}: static and time-varying at equal d",
        "",
        f"`python experiments/trend.py {name}` at commit {commit}, seeds {SEEDS[0]} to {SEEDS[-1]}, torch "
        f"{facts.torch}. D = {facts.parameters:,}; {facts.clients:,} single-class clients; "
        f"{facts.rounds} rounds.",
        "Compression: bytes of the uncompressed run over bytes of the run. +-: standard error over seeds.",
        "",
        f"| run | {facts.metric} | compression up/down/total | seconds a run |",
        "|---|---:|---:|---:|",
    ]
    for label, runs in by_label.items():
        values = [run.metric for run, _ in runs if run.metric is not None]
        error = statistics.stdev(values) / len(values) ** 0.5
        seconds = statistics.mean(run.seconds for run, _ in runs)
        lines.append(
            f"| {label} | {statistics.mean(values):.4f} +- {error:.4f} | {runs[0][1]} | {seconds:.1f} |"
        )
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    main(sys.argv[1])
