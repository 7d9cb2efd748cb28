"""Settings that are one of a few words, each list in one place."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from difflib import get_close_matches

SAMPLING = ("epoch", "uniform", "poisson")  # every client once an epoch, drawn afresh, or by secret coins
WEIGHTING = ("clients", "examples")  # what an update weighs
PARTITIONS = ("class", "iid", "dirichlet", "natural")  # of data into clients
TRAINABLE = ("all", "biases", "lora")  # parameters that are trained and sent
PRECISIONS = ("f32", "bf16")  # a text model computes in
CONVENTIONS = ("orthonormal", "unbiased")  # of the rate: a step along an orthonormal basis, or E[AA^T] = I
DOWNLINKS = ("f32", "f16")  # of Sigma: a finished one is sent again, so it must encode to itself
ATTACKS = ("sign-flip", "scale", "noise", "label-flip", "little-is-enough")  # of simulated liars
ENGINES = ("here", "flower-sim")  # where clients run
DEVICE = r"auto|[a-z]+(:[0-9]+)?"  # how a device is written; whether there is one, a run finds out


def check(name: str, value: object, choices: Collection[str]) -> None:
    """A ValueError that names the choices, unless the value is one of them."""
    if not isinstance(value, str) or value not in choices:
        raise ValueError(
            f"unknown {name} {value!r}{meant(str(value), choices)}: choose one of {', '.join(choices)}"
        )


def meant(word: str, known: Iterable[str]) -> str:
    """ " (did you mean 'static'?)", where a known word is close to this one; else nothing."""
    close = get_close_matches(word.lower().replace("_", "-"), known, n=1) or get_close_matches(
        word, known, n=1
    )
    return f" (did you mean {close[0]!r}?)" if close else ""
