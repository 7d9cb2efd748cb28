"""Which rate suits which d? The sweep behind the rule of `narrowcast measure` (`measure/rules.py`).

    python studies/experiments/measure_rates.py digits        (or mnist, with NARROWCAST_DATA set)

Static runs over a grid of d and rates, on a held-out tenth of the training set, with other seeds than the
results. Finished runs below runs/measure-rates-NAME/ are not repeated. Writes
results/measure/rates-NAME.md: the metric at the end, the best rate and the rule's for each d.
"""

from __future__ import annotations

import statistics
import sys
from pathlib import Path

from narrowcast.measure import LENGTH, InFolders, Trial, rules
from narrowcast.runs import make_config

HERE = Path(__file__).parent
SWEEPS = {  # d, rates, seeds, changes
    "digits": ((64, 256, 1024, 4096, 16384), (1.5, 3, 6, 12, 24, 48, 96, 192), (100,), {}),
    "mnist": ((64, 256, 1024, 4096), (3, 6, 12, 24, 48, 96, 192), (100,), {"epochs": 2}),
}


def main(name: str) -> None:
    dims, rates, seeds, changes = SWEEPS[name]
    config = make_config({"task": name, **LENGTH[name], "evaluate_every": 0, **changes, "validation": True})
    trainer = InFolders(config, Path("runs") / f"measure-rates-{name}")
    about = trainer.about()
    found: dict[int, dict[float, float]] = {}
    for d in dims:
        found[d] = {}
        for rate in rates:
            runs = [trainer.train(Trial("static", d, rate, seed), None) for seed in seeds]
            values = [0.0 if run.diverged else run.curve[-1][1] for run in runs]
            found[d][rate] = statistics.mean(values)
        shown = ", ".join(f"{rate:g}: {value:.4f}" for rate, value in found[d].items())
        print(f"d = {d}: {shown}; rule {rules.rate(d, about.parameters):g}", flush=True)
    lines = [
        f"# {name}: which rate suits which d",
        "",
        f"`python studies/experiments/measure_rates.py {name}`: static, D = {about.parameters:,}, "
        f"{about.rounds} rounds, {about.metric} at the end on a held-out tenth of the training set, seeds "
        f"{', '.join(map(str, seeds))} (0: diverged). The rule: {rules.FULL_RATE:g} / (d/D + (1 - d/D) / "
        f"{1 / rules.SPARE:.0f}).",
        "",
        "| d | " + " | ".join(f"lr {rate:g}" for rate in rates) + " | the rule's lr |",
        "|" + "---:|" * (len(rates) + 2),
    ]
    for d, row in found.items():
        top = max(row.values())
        cells = [f"**{value:.4f}**" if value == top else f"{value:.4f}" for value in row.values()]
        lines.append(f"| {d} | " + " | ".join(cells) + f" | {rules.rate(d, about.parameters):g} |")
    out = HERE / "results" / "measure" / f"rates-{name}.md"
    out.parent.mkdir(parents=True, exist_ok=True)
    out.write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main(sys.argv[1])
