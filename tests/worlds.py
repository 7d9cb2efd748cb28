"""Methods small enough for a test, and hypothesis's events for the worlds of `narrowcast.testing`."""

from itertools import product

from hypothesis import strategies as st

from fitting import made
from narrowcast.methods import method
from narrowcast.methods.base import DENSE, LOG
from narrowcast.testing.contract import raw as raw
from narrowcast.testing.worlds import KEY
from narrowcast.testing.worlds import RUN as RUN
from narrowcast.testing.worlds import World as Anyones
from narrowcast.testing.worlds import wander as wander
from narrowcast.wire import messages as wire

VARIANTS = list(product([1, 3], [0, "epoch", 1, 4]))  # K, refresh


# Small enough for a model of 61 parameters; each method takes what concerns it.
SMALL = {"key": KEY, "dim": 5, "subspaces": 3, "k": 7, "sketch_rows": 3, "sketch_columns": 11, "rank": 1,
         "directions": 9, "clients": 6}  # fmt: skip


def small(name, **options):
    return made(name, **SMALL | options)


def intrinsic(K=1, refresh=0, dim=5, **options):
    return method("k-subspace-time-varying", key=KEY, dim=dim, subspaces=K, refresh=refresh, **options)


class World(Anyones):
    """What is known of the family's stages beside."""

    def behind(self, have):
        """How many stages ago the server was at version `have`; nobody was ever at an unknown version."""
        return self.server.stage - self.stages.get(have, 0)

    def smallest(self, m):
        """(bytes, kind) of the least that brings a client m stages on: m + 1 blocks, or base and one."""
        sigma, stage = wire.block(self.server.sigma, self.method.downlink), self.server.stage
        log = wire.payload([sigma] * (m + 1), kind=LOG, stage=stage)
        dense = wire.payload([wire.block(self.server.base), sigma], kind=DENSE, stage=stage)
        return min((len(wire.encode_payload(p)), p.kind) for p in (log, dense))


EVENTS = st.tuples(
    st.sampled_from(["visit"] * 6 + ["step"] * 3 + ["empty step", "lost model", "wrong claim"]),
    st.integers(0, 5),  # which client
    st.integers(-3, 90),  # what it claims, if it is wrong
)
