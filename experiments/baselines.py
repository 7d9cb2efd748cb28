"""The comparison of all methods: rates tuned by one small budget, then three seeds on the test set.

    python experiments/baselines.py mlp --jobs 2        (or conv)

Reads experiments/baselines-NAME.toml, runs what is missing below runs/baselines-NAME/, and writes
experiments/results/baselines-NAME.md, .csv and .png. Stopped or killed, it goes on with the same command.
`--only` takes methods or names of rows; `--tune-only` leaves the test set alone. A path to another TOML file
may be given instead of a name.
"""

from __future__ import annotations

import argparse
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

from narrowcast import compare, study
from narrowcast.config import ConfigError
from narrowcast.processes import Processes
from narrowcast.report import study_plot, study_table
from narrowcast.runner import Interrupted

HERE = Path(__file__).parent


def main() -> int:
    asked = _arguments()
    path = Path(asked.name) if asked.name.endswith(".toml") else HERE / f"baselines-{asked.name}.toml"
    plan = study.load(path)
    runs = asked.runs or Path("runs") / path.stem
    processes = Processes()
    signal.signal(signal.SIGTERM, _interrupt)
    try:
        failed = study.conduct(
            plan,
            runs,
            _chosen(plan, asked.only),
            run=processes if asked.jobs > 1 else compare.in_process,
            stop=processes.stop,
            jobs=asked.jobs,
            tune_only=asked.tune_only,
            say=lambda line: print(line, flush=True),
        )
    except (KeyboardInterrupt, Interrupted):
        print("stopped: the same command goes on from here", file=sys.stderr)
        return 130
    if not asked.tune_only:
        _report(plan, runs, asked.results, path.stem, f"python experiments/baselines.py {asked.name}")
    return 1 if failed else 0


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("name", help="mlp, conv, or a TOML file")
    parser.add_argument("--jobs", type=int, default=1, help="runs at a time, one thread each [1]")
    parser.add_argument("--only", nargs="+", metavar="METHOD", help="these methods or rows alone")
    parser.add_argument("--tune-only", action="store_true", help="find the rates, and stop there")
    parser.add_argument("--runs", type=Path, help="folder of the runs [runs/baselines-NAME]")
    parser.add_argument("--results", type=Path, default=HERE / "results", help="folder of what is written")
    return parser.parse_args()


def _chosen(plan: study.Study, only: list[str] | None) -> list[str] | None:
    if only is None:
        return None
    unknown = set(only) - {row.name for row in plan.rows} - {row.config.method for row in plan.rows}
    if unknown:
        raise ConfigError(f"--only: no row or method is called {', '.join(sorted(unknown))}")
    return [row.name for row in plan.rows if row.name in only or row.config.method in only]


def _interrupt(number: int, frame: Any) -> None:
    raise KeyboardInterrupt


def _report(plan: study.Study, runs: Path, results: Path, name: str, command: str) -> None:
    outcomes, missing = study.collect(plan, runs)
    rows = study_table.lines(outcomes)
    if not rows:
        print("no row is complete yet")
        return
    commit = subprocess.run(["git", "describe", "--always", "--dirty"], capture_output=True, text=True).stdout
    results.mkdir(parents=True, exist_ok=True)
    page = study_table.markdown(plan, outcomes, command, commit.strip(), missing)
    (results / f"{name}.md").write_text(page)
    (results / f"{name}.csv").write_text(study_table.as_csv(outcomes))
    facts = next(run.facts for o in outcomes for run in o.runs)
    study_plot.draw(rows, results / f"{name}.png", plan.title, facts.metric, facts.higher_is_better)
    print(page)


if __name__ == "__main__":
    try:
        sys.exit(main())
    except ConfigError as error:
        sys.exit(f"error: {error}")
