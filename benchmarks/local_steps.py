"""Clients trained by themselves: a loop, torch.func.vmap, side by side. One thread, 118 282 parameters.

    python benchmarks/local_steps.py [--quick] [--json FILE]

100 clients of five images take one gradient each, or five SGD steps each. After its first step a client has
weights of its own, and a chunk of C clients has C times 0.5 MB of them.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial

import torch
from machine import arguments, describe, table, write
from torch.func import functional_call, grad, vmap
from torch.nn.functional import cross_entropy

from narrowcast.numerics.flat import FlatParameters
from narrowcast.tasks.nets import mlp
from narrowcast.tasks.side_by_side import plain_layers, sgd_step

CLIENTS, IMAGES, RATE = 100, 5, 0.1


def main() -> None:
    options = arguments("local_steps", __doc__)
    torch.set_num_threads(1)
    module = mlp(0, 784, 128, 128, 10)
    flat = FlatParameters(module)
    theta = flat.theta.clone()
    x, y = torch.randn(CLIENTS, IMAGES, 784), torch.randint(0, 10, (CLIENTS, IMAGES))

    def objective(theta: torch.Tensor, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return cross_entropy(functional_call(module, flat.layout.split(theta), (x,)), y)

    shared, own = vmap(grad(objective), in_dims=(None, 0, 0)), vmap(grad(objective))

    def loop(steps: int) -> None:
        for c in range(CLIENTS):
            flat.theta.copy_(theta)
            for _ in range(steps):
                flat.grad.zero_()
                cross_entropy(module(x[c]), y[c]).backward()
                flat.theta.sub_(flat.grad, alpha=RATE)

    def chunks(size: int, steps: int) -> None:
        for first in range(0, CLIENTS, size):
            part = slice(first, first + size)
            weights = theta - RATE * shared(theta, x[part], y[part])
            for _ in range(steps - 1):
                weights = weights - RATE * own(weights, x[part], y[part])

    layers = plain_layers(module)

    def abreast(size: int, steps: int) -> None:
        for first in range(0, CLIENTS, size):
            here, targets = theta.repeat(len(x[first : first + size]), 1), y[first : first + size].flatten()

            def losses(outputs: torch.Tensor, targets: torch.Tensor = targets) -> torch.Tensor:
                each = cross_entropy(outputs.flatten(0, 1), targets, reduction="none")
                return each.view(-1, IMAGES).mean(1)

            for _ in range(steps):
                sgd_step(layers, flat.layout, here, x[first : first + size], losses, RATE)

    def best(call: Callable[[], None]) -> float:
        call()
        times = []
        for _ in range(2 if options.quick else 5):
            clock = time.process_time()
            call()
            times.append(time.process_time() - clock)
        return min(times)

    ways: dict[str, Callable[[int], None]] = {"loop": loop}
    ways |= {f"vmap, {size} at once": partial(chunks, size) for size in (10, 32, 50, 100)}
    ways |= {f"side by side, {size} at once": partial(abreast, size) for size in (1, 4, 10, 50)}
    rows = [
        {"how": name, **{f"{s}_steps_ms": best(partial(way, s)) * 1e3 for s in (1, 5)}}
        for name, way in ways.items()
    ]
    weight = torch.randn(CLIENTS, 784, 128)

    def speed(call: Callable[[], object]) -> float:
        """Gflop/s of multiplying all clients' images by their first layer."""
        return (
            2e-9
            * CLIENTS
            * IMAGES
            * weight[0].numel()
            / best(lambda: [call() for _ in range(20)] and None)
            * 20
        )

    products = {
        "one matrix for all clients": speed(lambda: x.view(-1, 784) @ weight[0]),
        "a matrix a client, 10 at once": speed(
            lambda: [x[i : i + 10].bmm(weight[i : i + 10]) for i in range(0, 100, 10)]
        ),
        "a matrix a client, 100 at once": speed(lambda: x.bmm(weight)),
    }
    machine = describe()
    cells = [[r["how"], f"{r['1_steps_ms']:.0f}", f"{r['5_steps_ms']:.0f}"] for r in rows]
    table(["CPU ms a round", "1 step", "5 steps"], cells)
    table(["the first layer's products", "Gflop/s"], [[k, f"{v:.0f}"] for k, v in products.items()])
    write(options.json, machine, options.quick, {"rows": rows, "products_gflops": products})


if __name__ == "__main__":
    main()
