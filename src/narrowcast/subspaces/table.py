"""The kinds of A by name. `make(spec)` rebuilds the A that a spec names.

Others join by the entry-point group `narrowcast.subspaces`, or by `narrowcast.register("subspace", ...)`.
"""

from __future__ import annotations

from functools import lru_cache
from operator import index
from typing import TYPE_CHECKING

import msgspec

from narrowcast.registry import Registry

if TYPE_CHECKING:
    from narrowcast.numerics.purposes import Key
    from narrowcast.subspaces.base import Subspace, SubspaceSpec

KINDS: Registry[type[Subspace]] = Registry(
    "kind of subspace",
    {
        "rotation": "narrowcast.subspaces.rotation:Rotation",
        "fastfood": "narrowcast.subspaces.fastfood:Fastfood",
        "grouping": "narrowcast.subspaces.rotation:Grouping",
        "dense": "narrowcast.subspaces.dense:Dense",
    },
    group="narrowcast.subspaces",
    adapt="narrowcast.subspaces.base:as_kind",
    doc="""name -> class, of our kinds of A and then of those that others have brought.

    >>> import narrowcast as nc
    >>> nc.KINDS.own
    ('rotation', 'fastfood', 'grouping', 'dense')
    """,
)


def subspace(kind: str, D: int, d: int, key: Key) -> Subspace:
    """A of a kind, in R^{D x d}, from a key.

    >>> import torch, narrowcast as nc
    >>> A = nc.subspace("rotation", D=1000, d=64, key=7)
    >>> A.project(torch.ones(1000)).shape
    torch.Size([64])
    """
    made = KINDS.find(kind)(index(D), index(d), index(key))
    made.spec = msgspec.structs.replace(made.spec, kind=kind)  # by which it is found again
    return made


def remembered(kind: str, D: int, d: int, key: Key) -> Subspace:
    """`subspace(kind, D, d, key)`, made once for all who ask: it holds no numbers, only settings."""
    return _made(KINDS.find(kind), kind, D, d, key)


@lru_cache(maxsize=4096)
def _made(of: type[Subspace], kind: str, D: int, d: int, key: Key) -> Subspace:
    """`of`, so that a kind which is registered again is another from then on."""
    return subspace(kind, D, d, key)


def make(spec: SubspaceSpec) -> Subspace:
    """The A that `spec` names; a spec whose n and V are not those of its kind is refused."""
    made = subspace(spec.kind, spec.D, spec.d, spec.key)
    if made.spec != spec:
        raise ValueError(f"this version builds {made.spec}, the spec asks for {spec}")
    return made
