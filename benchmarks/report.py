"""Fill the tables of docs from benchmarks/results/*.json: `python benchmarks/report.py`.

docs/performance.md has them all but those of `ddp` and `text`, which are in docs/ddp.md and docs/text.md. A
table stands between `<!-- NAME -->` and `<!-- /NAME -->`; everything else on the pages is written by hand.
"""

from __future__ import annotations

import json
import re
import statistics
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from aims import of_kernels, of_peers, of_rounds, of_sizes

HERE = Path(__file__).parent
CALLS = ("project", "add_expanded")
PAGE = HERE.parent / "docs" / "performance.md"


def load(name: str) -> dict[str, Any]:
    result: dict[str, Any] = json.loads((HERE / "results" / f"{name}.json").read_text())
    return result


def table(head: list[str], rows: Iterable[Iterable[object]]) -> str:
    lines = [head, ["---"] + ["---:"] * (len(head) - 1), *([str(cell) for cell in row] for row in rows)]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def ms(seconds: float) -> str:
    return f"{seconds * 1e3:,.1f}" if seconds < 1 else f"{seconds * 1e3:,.0f}"


def subspaces() -> str:
    rows = []
    for r in load("kernels")["subspaces"]:
        rows.append([f"**D = {r['D']:,}**, copy of D floats", ms(r["copy_s"]), "1", ""])
        for name in ("project", "add_expanded", "fastfood_project", "fastfood_add_expanded"):
            seconds = r[f"{name}_s"]
            faster = f"{r['torch_fastfood_s'] / seconds:,.0f}x"
            rows.append([f"`{name}`", ms(seconds), f"{seconds / r['copy_s']:.2f}", faster])
        slow = r["torch_fastfood_s"]
        rows.append(["Fastfood as commonly written in torch", ms(slow), f"{slow / r['copy_s']:.0f}", "1x"])
        rows.append(["a new subspace", ms(r["new_subspace_s"]), "", ""])
    return table(["d = 16 384", "ms", "over a copy", "against torch Fastfood"], rows)


def growth() -> str:
    rows = (
        [
            f"2^{r['D'].bit_length() - 1}",
            f"2^{r['d'].bit_length() - 1}",
            *(f"{r[f'{n}_ns']:.2f}" for n in CALLS),
        ]
        for r in load("kernels")["growth"]
    )
    return table(["D", "d", "project, ns a parameter", "add_expanded"], rows)


def fwht() -> str:
    columns = ("one_core", "all_cores", "torch_views", "torch_matmul")
    rows = (
        [f"2^{r['size'].bit_length() - 1}", *(f"{r[f'{c}_gelem_s']:.2f}" for c in columns)]
        for r in load("kernels")["fwht"]
    )
    return table(["size", "one core", "all cores", "torch, views", "torch, matmul"], rows)


def memory() -> str:
    rows = (
        [f"{r['D']:,}", f"{r['d']:,}", r["shards"], *(f"{r[f'{n}_extra_bytes'] / 2**20:.1f}" for n in CALLS)]
        for r in load("kernels")["memory"]
    )
    return table(["D", "d", "shards", "project, MiB extra", "add_expanded"], rows)


def first_call() -> str:
    r = load("kernels")["first_call"]
    rows = [["compiled", f"{r['compiled_s']:.1f}"], ["from numba's cache", f"{r['cached_s']:.2f}"]]
    return table(["first call of a process", "seconds"], rows)


def full_size() -> str:
    rows = []
    for name, m in load("full_size")["methods"].items():
        parts = m["seconds_by_part_median"]
        seconds = [
            m["seconds_a_round"]["median"],
            *(parts[p] for p in ("gradient", "project", "expand", "digest")),
        ]
        digests = f"{m['rounds_with_equal_digests']} of {m['rounds']}"
        traffic = [f"{m[f'bytes_{way}_a_client']:,.0f}" for way in ("up", "down")]
        rows.append([name, *(f"{s:.2f}" for s in seconds), f"{m['peak_memory_gib']:.1f}", *traffic, digests])
    head = [
        "method",
        "s a round",
        "gradient",
        "project",
        "expand",
        "digest",
        "peak GiB",
        "B up",
        "B down",
        "digests equal",
    ]
    return table(head, rows)


def resnet_round() -> str:
    parts = ("gradient", "project", "expand", "wire", "digest", "overhead")
    rows = (
        [name, *(f"{m[p]:.3f}" for p in parts), f"{m['overhead_percent_of_bare']:.2f} %"]
        for name, m in load("resnet_round")["methods"].items()
    )
    return table(["method", *(f"{p}, s" for p in parts), "of a bare gradient"], rows)


def local_steps() -> str:
    rows = (
        [f"{r['net']}: {r['how']}", f"{r['1_steps_ms']:.0f}", f"{r['5_steps_ms']:.0f}"]
        for r in load("local_steps")["rows"]
    )
    return table(["CPU ms, one thread", "one gradient each", "five steps each"], rows)


def rounds() -> str:
    rows = ([r["round"], f"{r['ms']:.1f}", f"{r['over_static']:.2f}"] for r in load("local_steps")["rounds"])
    return table(["a round of the MLP", "CPU ms, one thread", "over static"], rows)


def clients() -> str:
    rows = (
        [
            f"{r['clients']:,}",
            f"{r['peak_bytes_a_client']:.0f}",
            f"{sum(r['start_up_cpu_seconds'].values()):.2f}",
        ]
        for r in load("many_clients")["memory"]
    )
    return table(["clients", "bytes a client at the peak", "start-up, s"], rows)


def peers() -> str:
    found, rows, ours = load("peers")["rows"], [], dict[str, float]()
    for r in found:
        if r["engine"] == "narrowcast" and "error" not in r:
            ours.setdefault(r["case"], r["seconds_per_round"])  # the first is the plain one
    for r in found:
        what, theirs = f"{r['engine']} {r.get('method', '')}".strip(), r["engine"] != "narrowcast"
        if "error" in r:
            rows.append([r["case"], what, r["error"][:60], "", ""])
        else:
            rows.append(
                [
                    r["case"],
                    what,
                    f"{r['seconds_per_round']:.4g}",
                    f"{r['accuracy']:.4f}" if r.get("accuracy") else "",
                    f"{r['seconds_per_round'] / ours[r['case']]:.1f}" if theirs and r["case"] in ours else "",
                ]
            )
    return table(["case", "engine", "s a round", "accuracy", "narrowcast is quicker by"], rows)


def narrow() -> str:
    rows = (
        [name, *(f"{row[which]:.4g}" for which in ("float32", "narrow")), f"{row['ratio']:.2f}"]
        for name, row in load("narrow")["rounds"].items()
    )
    return table(["round", "float32, CPU seconds", "1 bit up, 2 down", "times"], rows)


def products() -> str:
    rows = (
        [
            " x ".join(map(str, r["shape"])),
            f"{r['plain']:.0f}",
            f"{r['told']:.0f}",
            f"{r['told'] / r['plain']:.2f}",
        ]
        for r in load("products")["products"]
    )
    return table(["m x k x n, one thread", "Gflop/s", "with the library", "times"], rows)


def aims() -> str:
    found = [
        *of_kernels(load("kernels")),
        *of_peers(load("peers")["rows"]),
        *of_rounds(load("local_steps"), load("narrow"), load("resnet_round")),
        *of_sizes(load("many_clients"), load("full_size")),
    ]
    return table(["what", "aim", "measured", "met"], (aim.row for aim in found))


def of_seeds(mean: float, values: list[float]) -> str:
    """The mean, with its standard error where there are several seeds."""
    if len(values) < 2:
        return f"{mean:.3f}"
    return f"{mean:.3f} +- {statistics.stdev(values) / len(values) ** 0.5:.3f}"


def ddp() -> str:
    result = load("ddp")
    rates = [str(rate) for rate in result["setting"]["rates"]]
    rows = (
        [
            name,
            *(f"{row[rate]['seconds']:.3f}" for rate in rates),
            f"{row[rates[0]]['bytes']:,.0f}",
            f"{row['lr']:g}",
            of_seeds(row["loss"], row.get("losses", [])),
            of_seeds(row["accuracy"], row.get("accuracies", [])),
        ]
        for name, row in result["ways"].items()
    )
    head = [
        "hook",
        *(f"s a step, {rate} Mbit/s" for rate in rates),
        "bytes a step",
        "rate",
        "loss",
        "accuracy",
    ]
    return table(head, rows)


def text() -> str:
    found = load("text")
    base = found["rows"][0]["seconds"]
    rows = [
        [r["how"], f"{r['seconds']:.1f}", f"{r['seconds'] / base:.2f}", f"{r['tokens_a_second']:.0f}"]
        for r in found["rows"]
    ]
    return table(
        [f"{found['model']}, {found['tokens']:,} tokens", found["clock"], "ratio", "tokens a second"], rows
    )


TABLES = (
    subspaces,
    growth,
    fwht,
    memory,
    first_call,
    full_size,
    resnet_round,
    clients,
    peers,
    local_steps,
    rounds,
    narrow,
    products,
    aims,
)


def fill(path: Path, tables: Iterable[Callable[[], str]]) -> None:
    page = path.read_text()
    for make in tables:
        name = make.__name__
        pattern = re.compile(f"<!-- {name} -->.*?<!-- /{name} -->", re.S)
        assert pattern.search(page), f"{path.name} has no place for {name}"
        filled = f"<!-- {name} -->\n{make()}\n<!-- /{name} -->"
        page = filled.join(pattern.split(page))
    path.write_text(page)


def main() -> None:
    fill(PAGE, TABLES)
    fill(PAGE.with_name("ddp.md"), (ddp,))
    fill(PAGE.with_name("text.md"), (text,))


if __name__ == "__main__":
    main()
