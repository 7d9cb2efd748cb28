"""The paper's four methods by name: `Intrinsic` with K and the refreshing of A fixed or left open."""

from __future__ import annotations

from narrowcast.methods.entry import About, Entry
from narrowcast.methods.intrinsic import Intrinsic

STATIC = Entry(
    Intrinsic,
    About(
        up="d numbers",
        down="d numbers",
        client="nothing",
        server="d numbers, theta0",
        formula="theta = theta0 + A Sigma;  Sigma <- Sigma - lr (d/D) (1/W) sum_w A^T v_w",
        source="the paper, algorithm 1",
        text="""
K = 1, one stage: `theta = theta0 + A Sigma`. The client sends `A^T v` and is sent `Sigma`. Training never
leaves the d-dimensional subspace through `theta0`.
""",
    ),
    fixes={"subspaces": 1, "refresh": 0, "carry": False},
)
TIME_VARYING = Entry(
    Intrinsic,
    About(
        up="d numbers",
        down="(m+1) d numbers when m stages behind",
        client="nothing",
        server="d numbers a stage",
        formula="theta = base_e + A_e Sigma_e, a new A_e every epoch",
        source="the paper, algorithm 3",
        text="""
K = 1, a new A every epoch or every N rounds (`--refresh`): `theta = base_e + A_e Sigma_e`, where `base_e`
has every finished stage folded in. E stages explore d E dimensions.
""",
    ),
    fixes={"subspaces": 1},
    defaults={"refresh": "epoch"},
)
K_SUBSPACE = Entry(
    Intrinsic,
    About(
        up="d numbers",
        down="d K numbers",
        client="nothing",
        server="d K numbers, theta0",
        formula="theta = theta0 + sum_k A_k Sigma_k, a client uses one k",
        source="the paper, algorithm 2",
        text="""
K matrices, one stage: `theta = theta0 + sum_k A_k Sigma_k`. A client uploads `A_k^T v` for the k that the
round's key gives it, so uploads stay at d numbers while d K dimensions are explored.
""",
    ),
    fixes={"refresh": 0, "carry": False},
    defaults={"subspaces": 8},
)
NARROW = Entry(
    Intrinsic,
    About(
        up="d numbers of 1 bit",
        down="(m+1) d numbers of 2 bits when m stages behind",
        client="d numbers",
        server="d numbers a stage, of a few bits, and those of the last versions",
        formula="as time-varying;  up: s (round(x/s + u) - u),  down: s rint(Sigma/s)",
        source="ours, on dithered quantisation (Roberts 1962) and entropy coding (Duda 2013)",
        text="""
`time-varying` with few bits a number both ways, which `--up-bits` and `--down-bits` change and give to every
method of the family: "Narrow numbers" in docs/methods.md has the mathematics.
""",
    ),
    fixes={"subspaces": 1, "uplink": "f32", "downlink": "f32"},
    defaults={"refresh": "epoch", "up_bits": 1.0, "down_bits": 2.0},
)
COMBINATION = Entry(
    Intrinsic,
    About(
        up="d numbers",
        down="(m+1) d K numbers when m stages behind",
        client="nothing",
        server="d K numbers a stage",
        formula="theta = base_e + sum_k A_{e,k} Sigma_{e,k}",
        source="the paper, named there and not run",
        text="""
Both together: K subspaces, all of them new in every stage.
""",
    ),
    defaults={"subspaces": 8, "refresh": "epoch"},
)
