"""All of it, in pieces: each is a JSON file with the settings it was made with, and is never repeated."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from narrowcast.files import write_atomically
from narrowcast.numerics import Key, Purpose, keyed
from narrowcast_studies.theory import bounds, dimension, proposition, trials
from narrowcast_studies.theory.bounds import Constants, Steps
from narrowcast_studies.theory.dimension import UNIFORM, Quantile
from narrowcast_studies.theory.problems import Logistic, Problem, exponential, power_law
from narrowcast_studies.theory.proposition import Carried
from narrowcast_studies.theory.trials import Trial

Say = Callable[[str], None]
KINDS = ("dense", "rotation")  # of the runs; the columns of `dense` span a uniform subspace
TRIALS = ("static", "k-subspace", "time-varying")
MARKS = 20  # points of a curve
R = TypeVar("R")


class Spec(msgspec.Struct, frozen=True):
    """How one problem is examined. Epsilons are in units of g(theta0) - g*."""

    problem: str
    size: int  # D of a quadratic, examples of the regression
    dim: int  # d of the runs
    dims: list[int]  # d of the table of rho
    draws: int
    runs: int
    epsilon: float = 0.03
    epsilon_k: float = 0.1  # of theorem 2, whose runs are K (1 + 1/C) times as long
    E: int = 4
    K: int = 2
    delta: float = 0.1
    confidence: float = 0.95
    pilots: int = 5
    seed: int = 1


class Rho(msgspec.Struct, frozen=True):
    """rho of one d and kind of subspace, at theta0 and where it is worst."""

    kind: str
    d: int
    rho: Quantile  # at 1 - delta
    median: Quantile  # at 1/2
    worst: Quantile  # at 1 - delta, next to the optimum along the direction of least curvature
    floor: float  # what no problem can be below, for all theta0
    misses: int  # draws with a ratio above 1/2: delta at rho = 1/2 is misses / draws


class Dimension(msgspec.Struct, frozen=True):
    title: str
    D: int
    gap: float
    rows: list[Rho]


class Pilot(msgspec.Struct, frozen=True):
    """What is needed before the runs: constants, steps, rho at theta0 and along the way."""

    constants: Constants
    static: Steps
    k_subspace: Steps  # of static at epsilon_k; a K-subspace run takes K (1 + 1/C) times as many
    time_varying: Steps  # an epoch
    rho: Quantile
    path: list[Quantile]  # rho at the start of each epoch of time-varying runs
    variances: list[tuple[int, float, float]]  # K, the ratio of variances, K (1 + 1/C)


class Trials(msgspec.Struct, frozen=True):
    runs: list[Trial]


class Proposition(msgspec.Struct, frozen=True):
    rows: list[Carried]


FULL = [
    Spec("power-law", 300, 32, [8, 16, 32, 64], 400, 30),
    Spec("exponential", 300, 32, [8, 16, 32, 64], 400, 30),
    Spec("logistic", 600, 32, [16, 32, 64], 200, 30),
]
QUICK = [
    Spec("power-law", 64, 16, [8, 16], 60, 4, epsilon=0.1, epsilon_k=0.2, E=2, pilots=2),
    Spec("logistic", 100, 16, [16], 30, 2, epsilon=0.15, epsilon_k=0.3, E=2, pilots=1),
]


def build(spec: Spec) -> Problem:
    key = keyed.derive(spec.seed, Purpose.DATA)
    if spec.problem == "logistic":
        return Logistic("logistic", key, spec.size)
    return {"power-law": power_law, "exponential": exponential}[spec.problem](spec.size, key)


def measure(spec: Spec, problem: Problem, key: Key) -> Dimension:
    """The definition, by Monte Carlo: uniform subspaces, and rotation beside them."""
    p = 1 - spec.delta
    rows = []
    for kind in (UNIFORM, "rotation"):
        for d in spec.dims:
            here = dimension.ratios(problem, [problem.start], kind, d, spec.draws, key)
            worst = dimension.worst_ratios(problem, kind, d, spec.draws, key)
            rho, median, bad = (
                dimension.quantile(values, q, spec.confidence)
                for values, q in ((here, p), (here, 0.5), (worst, p))
            )
            floor = dimension.floor(problem.D, d, spec.delta)
            rows.append(Rho(kind, d, rho, median, bad, floor, sum(r > 0.5 for r in here)))
    return Dimension(problem.title, problem.D, problem.gap, rows)


def pilot(spec: Spec, problem: Problem, kind: str, key: Key) -> Pilot:
    """Constants over the subspaces of `kind` through theta0, and rho at theta0 and along pilot runs."""
    p, keys = 1 - spec.delta, [keyed.derive(key, Purpose.RUN, i) for i in range(3)]
    bases = [dimension.basis(kind, problem.D, spec.dim, keyed.derive(keys[0], Purpose.SUBSPACE, i))
             for i in range(16)]  # fmt: skip
    c = bounds.largest([bounds.constants(problem, problem.start, Q) for Q in bases])
    epsilon = spec.epsilon * problem.gap
    epoch = bounds.steps(c, epsilon * math.sqrt(spec.E))
    drawn = UNIFORM if kind == "dense" else kind
    visited = [
        trials.bases(problem, kind, spec.dim, epoch, spec.E, keyed.derive(keys[1], Purpose.RUN, i))
        for i in range(spec.pilots)
    ]
    path = []
    for e, there in enumerate(zip(*visited, strict=True)):
        where = [problem.start] if e == 0 else there
        own = keyed.derive(keys[2], Purpose.RUN, e)
        found = dimension.ratios(problem, where, drawn, spec.dim, spec.draws, own)
        path.append(dimension.quantile(found, p, spec.confidence))
    return Pilot(
        constants=c,
        static=bounds.steps(c, epsilon),
        k_subspace=bounds.steps(c, spec.epsilon_k * problem.gap),
        time_varying=epoch,
        rho=path[0],
        path=path,
        variances=[(K, *bounds.variance_ratio(problem, problem.start, bases[:K])) for K in (2, 4, 8)],
    )


def runs(spec: Spec, problem: Problem, kind: str, name: str, found: Pilot, key: Key) -> Trials:
    """Independent runs of one method, each with its own A and its own noise."""
    made = []
    for i in range(spec.runs):
        own = keyed.derive(key, Purpose.RUN, i)
        if name == "static":
            made.append(trials.static(problem, kind, spec.dim, found.static, own, MARKS))
        elif name == "k-subspace":
            made.append(trials.k_subspace(problem, kind, spec.dim, found.k_subspace, spec.K, own, MARKS))
        else:
            made.append(trials.time_varying(problem, kind, spec.dim, found.time_varying, spec.E, own))
    return Trials(made)


def carried(spec: Spec, problem: Problem, key: Key) -> Proposition:
    rate = 0.5 / problem.curvature(dimension.basis(UNIFORM, problem.D, spec.dim, key))
    rate = min(rate, 0.2 / float(problem.hessian().diagonal().max()))  # local steps go all ways
    return Proposition([
        proposition.carry(problem, v, name, spec.dim, 20, rate, key)
        for v in proposition.UPDATES
        for name in proposition.METHODS
    ])  # fmt: skip


class Pieces:
    """The pieces of one problem, each read from its file or made; the problem is built when first needed."""

    def __init__(self, spec: Spec, out: Path, say: Say) -> None:
        self.spec, self.out, self.say = spec, out, say
        self._problem: Problem | None = None

    @property
    def problem(self) -> Problem:
        if self._problem is None:
            self._problem = build(self.spec)
        return self._problem

    def piece(self, part: str, number: int, kind: type[R], make: Callable[..., R], *more: Any) -> R:
        """make(spec, problem, *more, key), unless it is there."""
        known = read(self.out, self.spec, part, kind)
        if known is not None:
            return known
        self.say(f"{self.spec.problem}: {part}")
        made = make(self.spec, self.problem, *more, keyed.derive(self.spec.seed, Purpose.RUN, number))
        write(self.out, self.spec, part, made)
        return made


def conduct(specs: list[Spec], out: Path, say: Say) -> None:
    """Make every piece that is missing or was made with other settings."""
    out.mkdir(parents=True, exist_ok=True)
    for spec in specs:
        pieces = Pieces(spec, out, say)
        pieces.piece("dimension", 0, Dimension, measure)
        pieces.piece("proposition", 1, Proposition, carried)
        for i, kind in enumerate(KINDS):
            found = pieces.piece(f"{kind}-pilot", 2 + i, Pilot, pilot, kind)
            for j, name in enumerate(TRIALS):
                pieces.piece(f"{kind}-{name}", 4 + 3 * i + j, Trials, runs, kind, name, found)


def path_of(out: Path, spec: Spec, part: str) -> Path:
    return out / f"{spec.problem}-{part}.json"


def write(out: Path, spec: Spec, part: str, result: Any) -> None:
    data = msgspec.json.encode({"spec": spec, "result": result})
    write_atomically(path_of(out, spec, part), msgspec.json.format(data, indent=1) + b"\n")


def read(out: Path, spec: Spec, part: str, kind: type[R]) -> R | None:
    """The piece, if it is there and was made with these settings."""
    path = path_of(out, spec, part)
    if not path.is_file():
        return None
    try:
        stored = msgspec.json.decode(path.read_bytes())
        if msgspec.convert(stored["spec"], Spec) != spec:
            return None
        return msgspec.convert(stored["result"], kind)
    except (msgspec.MsgspecError, KeyError, TypeError) as error:
        raise ValueError(f"{path} is not a piece of `narrowcast theory` ({error}): remove it") from None


class Result(msgspec.Struct, frozen=True):
    """All pieces of one problem."""

    spec: Spec
    dimension: Dimension
    proposition: Proposition
    pilots: dict[str, Pilot]
    trials: dict[str, dict[str, list[Trial]]]  # kind -> method -> runs


def load(specs: list[Spec], out: Path) -> list[Result]:
    """The results from the files alone."""

    def need(spec: Spec, part: str, kind: type[R]) -> R:
        found = read(out, spec, part, kind)
        if found is None:
            raise ValueError(f"{path_of(out, spec, part)} is missing or of other settings: run it again")
        return found

    return [
        Result(
            spec,
            need(spec, "dimension", Dimension),
            need(spec, "proposition", Proposition),
            {kind: need(spec, f"{kind}-pilot", Pilot) for kind in KINDS},
            {kind: {n: need(spec, f"{kind}-{n}", Trials).runs for n in TRIALS} for kind in KINDS},
        )
        for spec in specs
    ]
