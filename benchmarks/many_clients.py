"""A million virtual clients: seconds a round, bytes a client and start-up, by the number of clients.

    python benchmarks/many_clients.py [--quick] [--json FILE] [--threads N]

Rounds of the three sizes alternate, so that whatever else the machine does meets all of them alike. Memory
is that of a fresh process: the growth of its resident bytes from the moment the examples are there, through
partition, task and simulation, to the end of the rounds. With --threads 1 seconds are those of the CPU.
"""

from __future__ import annotations

import gc
import multiprocessing
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from machine import arguments, clock, describe, table, write

from narrowcast import Plan, Simulation, TorchTask, method
from narrowcast.rounds import records
from narrowcast.tasks.init import initialise
from narrowcast.tasks.partition import Partition, iid

SIZES = (10_000, 100_000, 1_000_000)
COHORT, FEATURES, CLASSES, DIM = 100, 16, 10, 64
ROUNDS = 100  # an epoch of the smallest: every client is new
CASES: dict[str, tuple[str, dict[str, Any], str]] = {
    "static, epoch": ("static", {}, "epoch"),
    "time-varying, epoch": ("time-varying", {"refresh": 10}, "epoch"),
    "time-varying, uniform": ("time-varying", {"refresh": 10}, "uniform"),
}


def data(examples: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Bytes and classes, one example a client: 24 bytes."""
    generator = torch.Generator().manual_seed(1)
    x = torch.randint(256, (examples, FEATURES), dtype=torch.uint8, generator=generator)
    return x, torch.randint(CLASSES, (examples,), generator=generator)


def build(
    train: tuple[torch.Tensor, torch.Tensor], clients: int
) -> tuple[TorchTask, Partition, dict[str, float]]:
    """The task, its partition, and the CPU seconds of its partition and of its checks."""
    model = torch.nn.Sequential(torch.nn.Linear(FEATURES, 32), torch.nn.ReLU(), torch.nn.Linear(32, CLASSES))
    initialise(model, key=1)
    started = time.process_time()
    cut = iid(len(train[1]), clients, key=1)
    partitioned = time.process_time()
    task = TorchTask(
        model,
        train=train,
        test=(train[0][:100], train[1][:100]),
        clients=cut,
        prepare=lambda x: x.float() / 255 - 0.5,
    )
    return task, cut, {"partition": partitioned - started, "task": time.process_time() - partitioned}


def simulation(task: TorchTask, case: str, rounds: int) -> Simulation:
    name, options, sampling = CASES[case]
    plan = Plan(cohort=COHORT, lr=0.1, rounds=rounds, sampling=sampling, key=1)
    return Simulation(task, method(name, dim=DIM, key=1, **options), plan)


def resident() -> int:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) * 1024
    raise OSError("no VmRSS in /proc/self/status: memory is measured on Linux only")


def footprint(clients: int, rounds: int) -> dict[str, Any]:
    """In a fresh process: resident growth a client, its peak, and the CPU seconds of start-up."""
    warm, *_ = build(data(1000), 1000)  # compiles the kernels and starts torch's threads
    for case in CASES:
        for _ in simulation(warm, case, 3):
            pass
    train = data(clients)
    gc.collect()
    records.reset_peak_memory()
    before = resident()
    task, cut, seconds = build(train, clients)
    started = time.process_time()
    run = simulation(task, "time-varying, epoch", rounds + 1)
    seconds["simulation"] = time.process_time() - started
    peak = records.peak_memory()
    for _ in range(rounds):
        peak = max(peak, run.step().peak_memory)
    gc.collect()
    return {
        "clients": clients,
        "bytes_a_client": (resident() - before) / clients,
        "peak_bytes_a_client": (peak - before) / clients,
        "arrays_bytes_a_client": (run.have.nbytes + cut.order.nbytes + cut.offsets.nbytes) / clients,
        "data_bytes_a_client": FEATURES + 8,
        "start_up_cpu_seconds": seconds,
    }


def time_rounds(
    tasks: dict[int, TorchTask], case: str, rounds: int, now: Callable[[], float]
) -> dict[str, Any]:
    """Seconds a round by size: all clients new, then all returning with versions spread over the past."""
    runs = {n: simulation(task, case, 2 * rounds + 1) for n, task in tasks.items()}
    result = {}
    for phase in ("new", "returning"):
        if phase == "returning":
            for n, run in runs.items():
                run.have[:] = np.arange(n) * 7919 % rounds
        seconds: dict[int, list[float]] = {n: [] for n in runs}
        for i in range(rounds):
            order = list(runs) if i % 2 else list(runs)[::-1]
            for n in order:
                started = now()
                runs[n].step()
                seconds[n].append(now() - started)
        result[phase] = {
            str(n): {"median": statistics.median(s), "least": min(s), "quartile": float(np.quantile(s, 0.25))}
            for n, s in seconds.items()
        }
    return result


def main() -> None:
    options = arguments("many_clients", __doc__)
    machine = describe()
    now, unit = clock(options.threads)
    rounds = 20 if options.quick else ROUNDS
    fresh = multiprocessing.get_context("spawn").Pool(1, maxtasksperchild=1)
    with fresh:
        memory = [fresh.apply(footprint, (n, rounds)) for n in SIZES]
    print("memory and start-up, each in a fresh process; the examples themselves are not included")
    table(
        [
            "clients",
            "B/client",
            "peak B/client",
            "arrays",
            "partition s",
            "task s",
            "simulation s",
        ],
        [
            [
                f"{m['clients']:,}",
                *(f"{m[k]:.0f}" for k in ("bytes_a_client", "peak_bytes_a_client", "arrays_bytes_a_client")),
                *(f"{m['start_up_cpu_seconds'][k]:.3f}" for k in ("partition", "task", "simulation")),
            ]
            for m in memory
        ],
    )
    tasks = {n: build(data(n), n)[0] for n in SIZES}
    timed = {case: time_rounds(tasks, case, rounds, now) for case in CASES}
    print(f"\nmilliseconds ({unit}) a round of {COHORT} clients: the quicker quartile of {rounds}")
    head = ["case", *(f"N = {n:,}" for n in SIZES), "largest/smallest", "by median", "by least"]
    rows = []
    for case, phases in timed.items():
        for phase, by_size in phases.items():
            first, last = by_size[str(SIZES[0])], by_size[str(SIZES[-1])]
            ratios = (f"{last[k] / first[k]:.3f}" for k in ("quartile", "median", "least"))
            cells = (f"{1e3 * by_size[str(n)]['quartile']:.2f}" for n in SIZES)
            rows.append([f"{case}, {phase} clients", *cells, *ratios])
    table(head, rows)
    setting = {
        "clock": unit,
        "cohort": COHORT,
        "dim": DIM,
        "parameters": tasks[SIZES[0]].layout.size,
        "rounds": rounds,
    }
    results = {"setting": setting, "memory": memory, "seconds_a_round": timed}
    write(options.json, machine, options.quick, results)


if __name__ == "__main__":
    main()
