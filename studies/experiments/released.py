"""What the strongest attacker identifies from what a private run releases.

The attacker knows theta, A, every other client's update, that the victim came, and a hundred pictures one of
which the victim trained on: all but the noise. What is released of a round then tells it clip(M grad(x)) +
N(0, (sigma C)^2), and it takes the picture whose own clipped upload lies nearest, which no attacker can do
better. A reconstruction that is looked up among the same hundred, as `narrowcast attack` has it, finds no
more. Where the client comes in several rounds with one picture and theta stays, the noise is averaged.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch
from scipy.stats import binomtest
from torch import Tensor

from narrowcast.numerics import Purpose, keyed
from narrowcast.privacy import noise_for
from narrowcast.tables import markdown_table
from narrowcast_studies.attacks import images, models
from narrowcast_studies.attacks.images import CANDIDATES
from narrowcast_studies.attacks.uploads import observe

EPSILONS = (2.0, 4.0, 8.0)
WHO: dict[str, Any] = {  # as the study privacy has it
    "delta": 1e-5,
    "sampling": "poisson",
    "clients": 12_000,
    "cohort": 1_000,
    "rounds": 36,
}
UPLOADS = (("uncompressed", 0), ("static", 4096), ("static", 1024), ("static", 64))
VISITS = (1, 3)  # of the victim: three is what it expects
DRAWS = 20  # of the noise, a picture
OUT = Path("studies/experiments/results/privacy/released.md")


def uploads(method: str, numbers: int) -> Tensor:
    """What each of the hundred pictures would have its client send, clipped to 1, (100, m)."""
    net = models.build("lenet", keyed.derive(0, Purpose.INIT))
    drawn = images.load("photos", None, 1, 0)
    x, y = torch.cat([drawn.x, drawn.decoys]), torch.cat([drawn.y, drawn.decoy_labels])
    sent = [observe(net, x[i : i + 1], y[i : i + 1], method, numbers, 1)[0].sent for i in range(CANDIDATES)]
    return torch.stack([v / max(1.0, float(v.norm())) for v in sent]).double()


def identified(sent: Tensor, sigma: float, rng: np.random.Generator) -> int:
    """How many of the pictures are the nearest to their own release, over all draws.

    |r - t_j|^2 is least where r . t_j - |t_j|^2 / 2 is greatest, and of the noise only its products with the
    t_j matter: N(0, sigma^2 G), G their Gram matrix.
    """
    gram = (sent @ sent.T).numpy()
    values, vectors = np.linalg.eigh(gram)
    root = vectors * np.sqrt(np.maximum(values, 0))
    right = 0
    for _ in range(DRAWS):
        noise = sigma * rng.standard_normal((len(sent), len(sent))) @ root.T
        scores = gram + noise - np.diag(gram) / 2
        right += int((scores.argmax(1) == np.arange(len(sent))).sum())
    return right


def main() -> None:
    rng, rows = np.random.Generator(np.random.Philox(1)), []
    noises = {epsilon: noise_for(epsilon, **WHO) for epsilon in EPSILONS}
    for method, numbers in UPLOADS:
        sent = uploads(method, numbers)
        name = "full gradient" if method == "uncompressed" else f"{method}, d = {numbers}"
        for visits in VISITS:
            cells = [f"{identified(sent, 0.0, rng) / (CANDIDATES * DRAWS):.0%}"]
            for sigma in reversed(noises.values()):
                found = identified(sent, sigma / visits**0.5, rng)
                low, high = binomtest(found, CANDIDATES * DRAWS).proportion_ci(0.95, method="wilson")
                cells.append(f"{found / (CANDIDATES * DRAWS):.1%} ({low:.1%} to {high:.1%})")
            rows.append([name, str(visits), *cells])
    heads = [f"epsilon {e:g} (noise {s:g})" for e, s in reversed(noises.items())]
    table = markdown_table(["released", "visits", "no noise", *heads], rows)
    OUT.parent.mkdir(parents=True, exist_ok=True)
    how = (
        "`python studies/experiments/released.py`: identified among 100 pictures by the attacker who knows "
        f"all but the noise (chance is 1 %; {DRAWS} draws of the noise a picture, 95 % intervals by Wilson). "
        "Clip 1; the noise is that of the study `privacy`: 36 rounds, coins of 1/12, delta 1e-5."
    )
    OUT.write_text(f"{how}\n\n{table}\n")
    print(OUT.read_text())


if __name__ == "__main__":
    main()
