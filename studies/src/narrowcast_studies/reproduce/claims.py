"""Claims as data: which row should be ahead of which, and a verdict that is computed, never typed.

[[claim]]
says = "..."                      in our own words
where = "the paper, section ..."  who says so; left out: a question of our own
kind = "ahead"                    or "within", or "cheaper", or a list: every pair is asked all of it
by = 0.01                         within: how far behind is still within
times = 10.0                      cheaper: more than so many times fewer bytes (1 where left out)
pairs = [["row", "other row"]]    names of rows
why = "..."                       the reason, in prose; why.small, why.medium: that of pairs judged there

A pair is judged at the largest scale that has results of both rows, and never across two.
The rows of a study share their seeds, and with a seed the first model, the clients and who comes when: two
rows are compared seed by seed. Let m be the mean of the differences in favour of the first, e the half width
of Student's 95 % interval. The first is ahead where m - e > 0, and within where m - e > -by; the answer is no
where m + e lies below that limit, and open in between. `says` and `why` have no figures: those of the pairs
are printed beside them, from the results, and cannot drift from them. A row that lost a seed, to one that
lost none, is never beyond the limit, and behind it where the mean of what it has left is. An open pair says
how many seeds would settle it, if m and the scatter of the differences stayed what they are.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Literal, get_args

import msgspec
from msgspec import Meta

from narrowcast.errors import ConfigError
from narrowcast.intervals import enough, student
from narrowcast.methods import METHODS
from narrowcast_studies.reproduce.table import Line

Kind = Literal["ahead", "within", "cheaper"]
Answer = Literal["yes", "no", "open", "not run yet"]
Verdict = Literal["holds", "holds in part", "open", "does not hold here", "run in part", "not run yet"]
Text = Annotated[str, Meta(min_length=1)]
FIGURE = re.compile(r"\d+\.\d+|\d+\s*[kMGT]?B\b")  # decimals and bytes: what a run prints


class Claim(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    says: Text
    kind: Kind | Annotated[list[Kind], Meta(min_length=1)]
    pairs: Annotated[list[tuple[str, str]], Meta(min_length=1)]
    why: Text | Annotated[dict[str, Text], Meta(min_length=1)]
    where: str = ""
    by: Annotated[float, Meta(ge=0)] | None = None
    times: Annotated[float, Meta(ge=1)] | None = None

    def __post_init__(self) -> None:
        if ("within" in self.kinds) != (self.by is not None):
            raise ValueError(f"by says how far behind is still within: needed there alone, got {self.by}")
        if self.times is not None and "cheaper" not in self.kinds:
            raise ValueError(f"times is for kind cheaper, got {self.times} for {', '.join(self.kinds)}")
        if found := FIGURE.search(" ".join([self.says, *self.reasons.values()])):
            advice = "leave figures out, the page prints those of the pairs"
            raise ValueError(f"{found[0]!r} in says or why: {advice}")
        if same := [one for one, other in self.pairs if one == other]:
            raise ValueError(f"a pair needs two rows, got {same[0]!r} twice")

    @property
    def reasons(self) -> dict[str, str]:
        """By scale; "": whatever the scale."""
        return self.why if isinstance(self.why, dict) else {"": self.why}

    @property
    def kinds(self) -> list[Kind]:
        return self.kind if isinstance(self.kind, list) else [self.kind]


class Published(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """[[published]]: a row as the paper prints it. Under the name of one of ours it stands beside that."""

    name: Text
    method: str  # for its colour
    metric: float
    error: Annotated[float, Meta(ge=0)] = 0.0  # 0: none is given
    up: float | None = None  # times fewer bytes, each way and of both
    down: float | None = None
    total: float | None = None
    dim: int | None = None
    note: str = ""  # what is odd about it

    def __post_init__(self) -> None:
        if self.method not in METHODS:
            raise ValueError(f"unknown method {self.method!r}: choose one of {', '.join(METHODS)}")
        numbers = [self.metric, *(x for x in (self.up, self.down, self.total, self.dim) if x is not None)]
        if not all(math.isfinite(x) and x > 0 for x in numbers):
            raise ValueError(f"numbers of {self.name!r} must be finite and above 0, got {numbers}")


@dataclass(frozen=True)
class Pair:
    """Two rows compared, in favour of the first; nan where one of them has no result."""

    names: tuple[str, str]
    lines: tuple[Line | None, Line | None]  # None: it was not run yet
    difference: float  # mean over the seeds
    error: float  # half width of its interval; inf with a single seed, or one that diverged
    fewer: float  # bytes of the second's run over those of the first's
    answer: Answer
    scale: str = ""  # where it was judged; "": nowhere yet
    takes: float | None = None  # seeds that would settle it; None: it is settled, or has no interval


@dataclass(frozen=True)
class Judged:
    claim: Claim
    pairs: list[Pair]
    verdict: Verdict

    @property
    def why(self) -> str:
        """The reasons, of the scales that its pairs were judged at; each is named where there are several."""
        scales = {pair.scale for pair in self.pairs} - {""}
        reasons = [(scale, text) for scale, text in self.claim.reasons.items() if scale in {"", *scales}]
        several = len(scales) > 1
        return " ".join(f"At scale {scale}: {text}" if scale and several else text for scale, text in reasons)

    @property
    def share(self) -> str:
        """ " (3 yes, 1 no)": how the pairs answer, where they do not agree."""
        answers = [pair.answer for pair in self.pairs]
        counts = [f"{n} {answer}" for answer in get_args(Answer) if (n := answers.count(answer))]
        return f" ({', '.join(counts)})" if len(counts) > 1 else ""


def parse(table: Mapping[str, Any], path: str) -> tuple[list[Claim], list[Published]]:
    """The claims of an experiment's file and the rows that its paper prints, checked."""
    try:
        claims = msgspec.convert(table.get("claim", []), list[Claim])
    except msgspec.ValidationError as error:
        raise ConfigError(f"{path}: [[claim]]: {error}") from None
    try:
        published = msgspec.convert(table.get("published", []), list[Published])
    except msgspec.ValidationError as error:
        raise ConfigError(f"{path}: [[published]]: {error}") from None
    names = [row.name for row in published]
    if twice := sorted({name for name in names if names.count(name) > 1}):
        raise ConfigError(f"{path}: [[published]]: more than one is called {', '.join(twice)}")
    return claims, published


Scales = Mapping[str, Mapping[str, Line]]  # scale -> row -> its results, the largest scale first


def judge(claim: Claim, scales: Scales, higher_is_better: bool) -> Judged:
    """The claim against the results: every pair's figures and answer, and what follows for the claim."""
    pairs = [_pair(claim, names, scales, 1.0 if higher_is_better else -1.0) for names in claim.pairs]
    return Judged(claim, pairs, verdict([pair.answer for pair in pairs]))


def verdict(answers: list[Answer]) -> Verdict:
    if "not run yet" in answers:
        return "run in part" if set(answers) > {"not run yet"} else "not run yet"
    if all(answer == "yes" for answer in answers):
        return "holds"
    if "yes" in answers:
        return "holds in part"
    return "does not hold here" if "no" in answers else "open"


def _pair(claim: Claim, names: tuple[str, str], scales: Scales, sign: float) -> Pair:
    scale = next((scale for scale, lines in scales.items() if all(name in lines for name in names)), "")
    if not scale:
        alone = [next((lines[n] for lines in scales.values() if n in lines), None) for n in names]
        return Pair(names, (alone[0], alone[1]), math.nan, math.nan, math.nan, "not run yet")
    one, other = (scales[scale][name] for name in names)
    difference, error = _difference(one, other, sign)
    taken = one.up + one.down  # a private run tells no bytes
    fewer = (other.up + other.down) / taken if taken else math.nan
    answers: list[Answer] = []
    for kind in claim.kinds:
        if kind == "cheaper":
            answers.append(_cheaper(one, other, fewer, claim.times or 1.0))
        else:
            answers.append(_beyond(one, other, difference, error, -(claim.by or 0.0)))
    answer: Answer = "no" if "no" in answers else "open" if "open" in answers else "yes"
    takes = None
    if answer == "open" and math.isfinite(error):
        takes = enough(difference + (claim.by or 0.0), error, len(one.values))
    return Pair(names, (one, other), difference, error, fewer, answer, scale, takes)


def _cheaper(one: Line, other: Line, fewer: float, times: float) -> Answer:
    """Bytes of runs that came to their end; against a row that never did the other kinds decide."""
    if not one.values:
        return "no"
    return "yes" if not other.values or fewer > times else "no"


def _beyond(one: Line, other: Line, difference: float, error: float, limit: float) -> Answer:
    """Whether the first row lies beyond the limit; with a seed that diverged it never does."""
    if not one.values or (one.diverged and not other.diverged and difference < limit):
        return "no"
    if not other.values:
        difference, error = math.inf, 0.0
    if difference + error < limit:
        return "no"
    return "yes" if difference - error > limit and not one.diverged else "open"


def _difference(one: Line, other: Line, sign: float) -> tuple[float, float]:
    """(mean, half width) over the seeds; where one diverged, values have lost their partners: no interval."""
    complete = one.values and len(one.values) == len(other.values) and not one.diverged + other.diverged
    if not complete:
        return sign * (one.mean - other.mean), math.inf
    return student([sign * (a - b) for a, b in zip(one.values, other.values, strict=True)])
