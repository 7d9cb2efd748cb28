"""Were probes given up too early? Runs those of a measurement to their end and counts.

    python studies/experiments/measure_given_up.py digits

Reads results/measure/NAME/measure.json, goes on with the probes below runs/measure-NAME/probes
that were given up before their rounds were spent, and writes
results/measure/given-up-NAME.md.
"""

from __future__ import annotations

import sys
from pathlib import Path

from narrowcast.measure import LENGTH, InFolders, Measured, Trial, read_results, rules
from narrowcast.runs import make_config

HERE = Path(__file__).parent


def main(name: str) -> None:
    results = HERE / "results" / "measure"
    m = read_results(results / name / "measure.json", Measured)
    trainer = InFolders(
        make_config({"task": name, **LENGTH[name]}), Path("runs") / f"measure-{name}" / "probes"
    )
    rows, saved, wrong = [], 0, 0
    for s in m.seeds:
        for p in s.probes:
            for rate, run in zip(p.rates, p.runs, strict=True):
                if p.reached or run.diverged or run.curve[-1][0] >= run.rounds:
                    continue
                whole = trainer.train(Trial(m.method, p.d, rate, s.seed), None)
                best = rules.best(whole.curve, m.higher_is_better)
                reached = rules.better(best, s.target, m.higher_is_better)
                saved, wrong = saved + run.rounds - run.curve[-1][0], wrong + reached
                given_up = rules.best(run.curve, m.higher_is_better)
                rows.append(
                    f"| {s.seed} | {p.d} | {run.curve[-1][0]} of {run.rounds} | {given_up:.4f} | "
                    f"{best:.4f} | {s.target:.4f} | {'yes' if reached else 'no'} |"
                )
    head = [
        f"# {name}: probes that were given up, run to their end",
        "",
        f"`python studies/experiments/measure_given_up.py {name}`: {wrong} of {len(rows)} would have "
        f"reached the target; giving up saved {saved:,} rounds.",
        "",
        f"| seed | d | given up after | {m.metric} then | at best | target | would have reached |",
        "|---:|---:|---:|---:|---:|---:|---:|",
    ]
    text = "\n".join([*head, *rows]) + "\n"
    (results / f"given-up-{name}.md").write_text(text)
    print(text)


if __name__ == "__main__":
    main(sys.argv[1])
