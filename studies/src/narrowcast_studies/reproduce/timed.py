"""One row for so many minutes, at its own rate and with all cores: what a round costs, and how far it gets.

It goes on where it stopped: called again, the same run is given as many minutes more.
"""

from __future__ import annotations

import re
import statistics
import time
from functools import partial
from pathlib import Path

from narrowcast import files
from narrowcast.plotting import plt
from narrowcast.rounds import RoundRecord, records
from narrowcast.runs import STYLE, Facts, OnRecord, attempts, run_folder, runner
from narrowcast.tables import markdown_table
from narrowcast.units import format_bytes, format_seconds
from narrowcast_studies.reproduce import committed
from narrowcast_studies.reproduce.experiment import FOLDER, Experiment
from narrowcast_studies.study import Row

Curve = dict[int, float]  # rounds -> the metric


def run(row: Row, seed: int, minutes: float, runs: Path, on_record: OnRecord | None = None) -> Path:
    """Give the row's run so many minutes more; its folder."""
    config = row.config.model_copy(update={"seed": seed, "threads": None})
    folder = runs / f"timed-{attempts.folder_of(config)}"
    end = time.monotonic() + 60 * minutes
    go = runner.resume if run_folder.is_run(folder) else partial(runner.start, config)
    return go(folder, on_record, until=lambda: time.monotonic() > end)


def slug(row: Row) -> str:
    """The row's name as a folder's."""
    return re.sub(r"[^a-z0-9]+", "-", row.name.lower()).strip("-")


def write(experiment: Experiment, row: Row, folder: Path, out: Path, command: str) -> str:
    """The page of the run so far, with its records, and its curve beside those of the small scale."""
    facts, done = run_folder.load_facts(folder), records.read(folder / run_folder.RECORDS)
    out.mkdir(parents=True, exist_ok=True)
    curve = records.curve(done, facts.metric)
    small = small_curves(experiment.name, row.config.method, facts.metric)
    _draw(facts, row, curve, small, out / "curve.png")
    page = _page(facts, row, done, curve, command)
    files.write_atomically(out / "README.md", page.encode())
    files.write_atomically(out / run_folder.RECORDS, b"".join(map(records.to_line, done)))
    files.write_atomically(out / run_folder.CONFIG, run_folder.to_toml(run_folder.load_config(folder)))
    return page


def small_curves(name: str, method: str, metric: str) -> dict[str, Curve]:
    """Mean curves of the method's rows at the small scale, of those that were evaluated on their way."""
    results = committed.read(FOLDER / "results" / name)
    found: dict[str, dict[int, list[float]]] = {}
    for run in results.runs if results else []:
        if run.config["method"] == method and len(run.curve) > 1:
            for rounds, metrics in run.curve.items():
                found.setdefault(run.row, {}).setdefault(rounds, []).append(metrics[metric])
    return {row: {n: statistics.mean(v) for n, v in curve.items()} for row, curve in found.items()}


def _page(facts: Facts, row: Row, done: list[RoundRecord], curve: Curve, command: str) -> str:
    plain = [r.seconds for r in done if not r.metrics] or [r.seconds for r in done]
    total = sum(r.seconds for r in done)
    told = [
        ["rounds", f"{len(done):,} of {facts.rounds:,} ({len(done) / facts.rounds_per_epoch:.2f} epochs)"],
        ["seconds a round, median", f"{statistics.median(plain):.2f}"],
        ["time, evaluations included", format_seconds(total)],
        ["the whole run at this pace", format_seconds(facts.rounds * statistics.median(plain))],
        ["uploads so far", format_bytes(sum(r.up for r in done))],
        ["downloads so far", format_bytes(sum(r.down for r in done))],
    ]
    points = [[f"{n:,}", f"{value:.4f}"] for n, value in curve.items()]
    return (
        f"# {row.name}, as far as it got in so many minutes\n\n"
        f"`{command}`, begun at commit {facts.commit or 'unknown'}, narrowcast {facts.narrowcast}, torch "
        f"{facts.torch}. {facts.parameters:,} parameters, {facts.clients:,} clients, seed {facts.seed}, lr "
        f"{row.config.rate:g}, which was not tuned. Called again it goes on.\n\n"
        f"{markdown_table(['', ''], told)}\n\n"
        f"{markdown_table(['rounds', facts.metric], points)}\n\n![{facts.metric} against rounds](curve.png)\n"
    )


def _draw(facts: Facts, row: Row, curve: Curve, small: dict[str, Curve], path: Path) -> None:
    canvas, axes = plt.subplots(figsize=(8, 5), layout="constrained")
    colour, marker = STYLE[row.config.method]
    label = f"{row.name}: {facts.parameters:,} parameters"
    axes.plot([*curve], [*curve.values()], color=colour, marker=marker, label=label)
    for i, (name, points) in enumerate(small.items()):
        axes.plot(
            [*points], [*points.values()], color=f"C{i + 7}", marker=".", linestyle="--",
            label=f"{name}, small scale",
        )  # fmt: skip
    axes.set_xlabel("rounds")
    axes.set_ylabel(facts.metric)
    axes.grid(alpha=0.3)
    axes.legend()
    canvas.savefig(path, dpi=150)
    plt.close(canvas)
