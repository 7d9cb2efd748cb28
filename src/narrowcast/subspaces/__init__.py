"""The matrix A of theta = theta0 + A Sigma, by kind. `make(spec)` rebuilds the A that a spec names."""

from __future__ import annotations

from narrowcast.random import Key
from narrowcast.subspaces.base import Subspace, SubspaceSpec, add_family
from narrowcast.subspaces.dense import Dense
from narrowcast.subspaces.fastfood import Fastfood
from narrowcast.subspaces.rotation import Grouping, Rotation

KINDS: dict[str, type[Subspace]] = {
    "rotation": Rotation,
    "fastfood": Fastfood,
    "grouping": Grouping,
    "dense": Dense,
}


def subspace(kind: str, D: int, d: int, key: Key) -> Subspace:
    """A of a kind, in R^{D x d}, from a key."""
    if kind not in KINDS:
        raise ValueError(f"unknown kind of subspace {kind!r}: choose one of {', '.join(KINDS)}")
    return KINDS[kind](D, d, key)


def make(spec: SubspaceSpec) -> Subspace:
    """The A that `spec` names; a spec whose n and V are not those of its kind is refused."""
    made = subspace(spec.kind, spec.D, spec.d, spec.key)
    if made.spec != spec:
        raise ValueError(f"this version builds {made.spec}, the spec asks for {spec}")
    return made


__all__ = [
    "KINDS",
    "Dense",
    "Fastfood",
    "Grouping",
    "Rotation",
    "Subspace",
    "SubspaceSpec",
    "add_family",
    "make",
    "subspace",
]
