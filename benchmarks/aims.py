"""What was aimed at, beside what `make bench` measured: a table of docs/performance.md, by `report`."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Aim:
    what: str
    aim: float
    measured: float
    unit: str  # what follows either number
    more: bool = False  # is better

    @property
    def row(self) -> list[str]:
        met = self.measured >= self.aim if self.more else self.measured <= self.aim
        least = "at least " if self.more else "at most "
        return [
            self.what,
            f"{least}{self.aim:g}{self.unit}",
            f"{self.measured:.3g}{self.unit}",
            "yes" if met else "**no**",
        ]


def of_kernels(kernels: dict[str, Any]) -> Iterator[Aim]:
    small, large = kernels["subspaces"]
    for name, aim in (("project", 0.8), ("add_expanded", 1.05)):
        yield Aim(f"`{name}`, D = {large['D']:,}, d = 16 384", aim, large[f"{name}_over_copy"], " copies")
    for row in (small, large):
        D = f"{row['D']:,}"
        yield Aim(
            f"rotation against the common Fastfood, D = {D}",
            400,
            row["speedup_over_torch_fastfood"],
            " times",
            True,
        )
        ours = row["fastfood_speedup_over_torch_fastfood"]
        yield Aim(f"our Fastfood against the common one, D = {D}", 20, ours, " times", True)
    yield Aim("a new subspace", 1, large["new_subspace_s"] * 1e3, " ms")
    by_size = {(row["D"], row["d"]): row for row in kernels["growth"]}
    most = max(D for D, _ in by_size)
    for name in ("project", "add_expanded"):
        cost = {key: row[f"{name}_ns"] for key, row in by_size.items()}
        yield Aim(
            f"`{name}` at D = 2^20, over its cost a parameter at 2^27",
            1.15,
            cost[1 << 20, 1 << 14] / cost[most, 1 << 14],
            "",
        )
        yield Aim(
            f"`{name}` at d = 2^8, over its cost at d = 2^14",
            1.5,
            cost[most, 1 << 8] / cost[most, 1 << 14],
            "",
        )
    slowest = min(row["one_core_gelem_s"] for row in kernels["fwht"] if row["size"] <= 1 << 20)
    yield Aim("`fwht` on one core, the slowest of 2^12 to 2^20", 1.5, slowest, " Gelement/s", True)
    first = kernels["first_call"]
    yield Aim("first call of a process, kernels compiled before", 2, first["cached_s"], " s")
    yield Aim("first call ever", 30, first["compiled_s"], " s")


def of_peers(rows: list[dict[str, Any]]) -> Iterator[Aim]:
    seconds = {
        (r["case"], r["engine"], r.get("method", "")): r["seconds_per_round"]
        for r in rows
        if "error" not in r
    }
    titles = {"mlp": "MLP", "conv": "conv net", "text": "small Llama"}
    aims = {"mlp-1": 10, "mlp-5": 10, "conv-1": 4, "conv-5": 2, "text-1": 2, "text-5": 2}
    for more, named in (("", aims), (", per client", dict.fromkeys(("mlp-1", "mlp-5", "conv-1"), 3))):
        for case, aim in named.items():
            net, steps = case.split("-")
            mine = seconds[case, "narrowcast", ("uncompressed" if steps == "1" else "fedavg") + more]
            what = f"{titles[net]}, local steps: {steps}{more}, against pfl in two processes"
            yield Aim(what, aim, seconds[case, "pfl-2proc", "federated averaging"] / mine, " times", True)
    bare = seconds["resnet9-1", "torch", "bare gradient of 500 images"]
    yield Aim(
        "ResNet-9's round over the bare gradient of its images",
        1.05,
        seconds["resnet9-1", "narrowcast", "uncompressed"] / bare,
        " times",
    )


def of_rounds(steps: dict[str, Any], narrow: dict[str, Any], resnet: dict[str, Any]) -> Iterator[Aim]:
    over = {row["round"]: row["over_static"] for row in steps["rounds"]}
    yield Aim("K-subspace, K = 8, over static", 1.5, over["k-subspace, K = 8"], " times")
    for (what, row), aim in zip(narrow["rounds"].items(), (10, 1.3), strict=True):
        yield Aim(f"few bits over float32: {what}", aim, row["ratio"], " times")
    worst = max(m["overhead_percent_of_bare"] for m in resnet["methods"].values())
    yield Aim("compression, wire and accounting in a round of ResNet-9, over its gradient", 5, worst, " %")


def of_sizes(clients: dict[str, Any], full: dict[str, Any]) -> Iterator[Aim]:
    million = clients["memory"][-1]
    yield Aim("a client of a million", 200, million["peak_bytes_a_client"], " bytes")
    peak = max(m["peak_memory_gib"] for m in full["methods"].values())
    yield Aim("a round of 124 443 648 parameters", 24, peak, " GiB")
