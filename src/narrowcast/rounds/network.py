"""Networks: what links and computers the clients of a simulated run have, drawn for each of them.

A network is a mixture of kinds of clients. Of a kind, the speed down and up (bit/s), the time of a round trip
(s) and the speed of computing (flop/s) are log-normal: a median, and the spread of the logarithm. A client's
two speeds share their draw, since poor reception is poor both ways.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from narrowcast.errors import ConfigError
from narrowcast.units import parse_rate

if TYPE_CHECKING:  # settings are read without numba
    import numpy as np
    from numpy.typing import NDArray

    from narrowcast.numerics.purposes import Key

SPREAD = 5.0  # at most: two thirds lie between a 150th of the median and 150 times it


class Law(msgspec.Struct, frozen=True, array_like=True):
    """median * exp(spread * z), z standard normal."""

    median: float
    spread: float = 0.0


class Kind(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Clients of a kind, and how large a part of all they are."""

    down: Law
    up: Law
    latency: Law
    flops: Law
    share: float = 1.0


class Network(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    name: str
    source: str
    kinds: tuple[Kind, ...]


PHONE, HOME, SERVER = Law(1e10, 0.8), Law(5e10, 0.5), Law(5e11)  # flop/s
CELLULAR = Kind(Law(16e6, 1.3), Law(4.8e6, 1.3), Law(0.04, 0.4), PHONE)
ADSL = Kind(Law(12e6, 0.5), Law(0.9e6, 0.4), Law(0.035, 0.3), HOME)
FIXED = Kind(Law(52e6, 1.0), Law(28e6, 1.0), Law(0.021, 0.4), HOME)
COMPUTING = "Speeds of computing are orders of magnitude of our own."
SPEEDTEST = "Ookla's Speedtest Global Index of September 2020, means of the world"
NETWORKS = {
    "4g": Network(
        "4g",
        f"{SPEEDTEST}: mobile 36 Mbit/s down, 11 up, 40 ms. The spread is such that a fifth of the clients "
        f"have less than 5 Mbit/s down, as Ookla reported of American carriers in 2019. {COMPUTING}",
        (CELLULAR,),
    ),
    "dsl": Network(
        "dsl",
        "ADSL2+, ITU-T G.992.5: at most 24 Mbit/s down and 1.4 up; medians of 12 and 0.9 for lines of usual "
        f"length, 35 ms and the spreads are our own. {COMPUTING}",
        (ADSL,),
    ),
    "lan": Network(
        "lan",
        f"Gigabit Ethernet, IEEE 802.3ab: 1 Gbit/s both ways; 0.5 ms is our own. {COMPUTING}",
        (Kind(Law(1e9), Law(1e9), Law(0.0005), SERVER),),
    ),
    "mixed": Network(
        "mixed",
        f"Half as 4g, three tenths as dsl, the others as {SPEEDTEST}: fixed lines 86 Mbit/s down, 46 up, "
        f"21 ms. The shares are our own. {COMPUTING}",
        tuple(
            msgspec.structs.replace(kind, share=share)
            for kind, share in ((CELLULAR, 0.5), (ADSL, 0.3), (FIXED, 0.2))
        ),
    ),
}


class Links(NamedTuple):
    """What each client has, (clients,) each."""

    down: NDArray[np.float64]  # bit/s
    up: NDArray[np.float64]
    latency: NDArray[np.float64]  # s, of a round trip
    flops: NDArray[np.float64]  # flop/s

    def seconds(self, down: float, up: float, work: float) -> NDArray[np.float64]:
        """Of a round: two round trips, a download and an upload of so many bytes, so much computing."""
        return 2 * self.latency + 8 * down / self.down + work / self.flops + 8 * up / self.up


def draw(network: Network, clients: int, key: Key) -> Links:
    """The links of so many clients: a function of the key."""
    import numpy as np

    from narrowcast.numerics import keyed
    from narrowcast.numerics.keyed import Purpose

    of, link, trip, computer = (keyed.derive(key, Purpose.NETWORK, i) for i in range(4))
    shares = np.cumsum([kind.share for kind in network.kinds])
    which = np.searchsorted(shares / shares[-1], keyed.uniforms(of, Purpose.NETWORK, clients), "right")

    def drawn(name: str, of: Key) -> NDArray[np.float64]:
        laws = [getattr(kind, name) for kind in network.kinds]
        median, spread = (
            np.array([getattr(law, part) for law in laws])[which] for part in ("median", "spread")
        )
        found: NDArray[np.float64] = median * np.exp(spread * keyed.normals(of, Purpose.NETWORK, clients))
        return found

    return Links(drawn("down", link), drawn("up", link), drawn("latency", trip), drawn("flops", computer))


def find(text: str) -> Network:
    """The network that a setting means: a name, a TOML file, or what `setting` made of one."""
    if text in NETWORKS:
        return NETWORKS[text]
    if text.startswith("{"):
        try:
            return _checked(msgspec.json.decode(text, type=Network))
        except msgspec.DecodeError as error:
            raise ConfigError(f"not a network: {error}, got {text[:80]!r}") from None
    if not text.endswith(".toml"):
        raise ConfigError(
            f"unknown network {text!r}: choose one of {', '.join(NETWORKS)}, or name a TOML file"
        )
    return _from_file(Path(text))


def setting(text: str) -> str:
    """The same, so that nothing else is needed to read it: a file becomes what it says."""
    found = find(text)
    return text if text in NETWORKS else msgspec.json.encode(found).decode()


def _from_file(path: Path) -> Network:
    """name, source, and a [[kind]] for each kind of clients; a value is a number or [median, spread]."""
    import tomllib

    try:
        table = tomllib.loads(path.read_text(encoding="utf-8"))
        kinds = [
            {name: _value(name, value) for name, value in kind.items()} for kind in table.get("kind", [])
        ]
        named = {
            "name": path.stem,
            "source": str(path.name),
            **{k: v for k, v in table.items() if k != "kind"},
        }
        return _checked(msgspec.convert({**named, "kinds": kinds}, Network))
    except FileNotFoundError:
        raise ConfigError(f"{path}: no such file") from None
    except (OSError, ValueError, TypeError, AttributeError) as error:
        raise ConfigError(f"{path} is not a network: {error}") from None


def _value(name: str, value: Any) -> Any:
    """A law as [median, spread]; speeds may have a unit: "10Mbps"."""
    if name == "share":
        return value
    parts = value if isinstance(value, list) else [value]
    rate = name in ("down", "up")
    return [parse_rate(part) if rate and isinstance(part, str) else part for part in parts]


def _checked(network: Network) -> Network:
    if not network.kinds:
        raise ConfigError(f"the network {network.name!r} has no [[kind]] of clients")
    for kind in network.kinds:
        for name in ("down", "up", "latency", "flops"):
            law = getattr(kind, name)
            if not (0 < law.median < 1e18 and 0 <= law.spread <= SPREAD):
                raise ConfigError(
                    f"{name} of the network {network.name!r} must be [median, spread] with a positive median "
                    f"and a spread of 0 to {SPREAD:g}, got [{law.median}, {law.spread}]"
                )
        if not (math.isfinite(kind.share) and kind.share > 0):
            raise ConfigError(f"share of the network {network.name!r} must be positive, got {kind.share}")
    return network
