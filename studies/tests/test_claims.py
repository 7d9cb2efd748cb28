"""Claims are data: verdicts are computed from results, and a hostile file is refused."""

import math

import pytest

from narrowcast.errors import ConfigError
from narrowcast.runs.summary import Compression
from narrowcast_studies.reproduce import claims, sections
from narrowcast_studies.reproduce.claims import Claim, Judged, judge
from narrowcast_studies.reproduce.table import Line

T = 4.302653  # of Student's distribution with two degrees of freedom, 95 % within


def row(name: str, values: list[float], size: float = 100.0, diverged: int = 0) -> Line:
    """A row whose whole run takes `size` bytes, half of them each way."""
    ratio = Compression(1000 / size, 1000 / size)
    return Line(name, "static", "", 1.0, {}, values, diverged, size / 2, size / 2, 1.0, ratio)


def asked(kind: str | list[str], *pairs: tuple[str, str], **more: float) -> Claim:
    (claim,), _ = claims.parse(
        {"claim": [{"says": "so", "why": "since", "kind": kind, "pairs": [list(p) for p in pairs], **more}]},
        "x",
    )
    return claim


def judged(claim: Claim, *rows: Line, higher: bool = True) -> Judged:
    return judge(claim, {"small": {line.name: line for line in rows}}, higher)


BEST, GOOD, LIKE, POOR = (
    row("best", [0.90, 0.91, 0.92]),
    row("good", [0.80, 0.81, 0.82]),
    row("like", [0.80, 0.815, 0.81]),
    row("poor", [0.71, 0.70, 0.72]),
)


def test_reasons_of_several_scales_are_told_apart_and_those_of_one_are_not() -> None:
    claim = Claim("so", "ahead", [("good", "poor"), ("best", "poor")], {"small": "Short.", "medium": "Long."})
    small = {line.name: line for line in (BEST, GOOD, POOR)}
    assert judge(claim, {"small": small}, True).why == "Short."
    assert judge(claim, {"medium": small, "small": small}, True).why == "Long."
    both = judge(claim, {"medium": {"good": GOOD, "poor": POOR}, "small": small}, True)
    assert [pair.scale for pair in both.pairs] == ["medium", "small"]
    assert both.why == "At scale small: Short. At scale medium: Long."


def test_what_is_said_of_several_published_rows_is_said_once() -> None:
    rows = [claims.Published(name, "topk", 1.0, note=note) for name, note in zip("abc", "xyx", strict=True)]
    assert sections.notes(rows) == ["Of a, c: x.", "Of b: y."]


def test_a_clear_win_a_tie_and_a_loss() -> None:
    claim = asked("ahead", ("good", "poor"), ("good", "like"), ("good", "best"))
    one = judged(claim, BEST, GOOD, LIKE, POOR)
    assert [pair.answer for pair in one.pairs] == ["yes", "open", "no"]
    assert one.verdict == "holds in part"
    assert one.share == " (1 yes, 1 no, 1 open)"
    assert one.pairs[0].difference == pytest.approx(0.1)  # of 0.09, 0.11 and 0.1
    assert one.pairs[0].error == pytest.approx(T * 0.01 / math.sqrt(3))


@pytest.mark.parametrize(
    ("pairs", "verdict"),
    [
        ([("good", "poor"), ("best", "good")], "holds"),
        ([("good", "poor"), ("good", "like")], "holds in part"),
        ([("good", "poor"), ("poor", "good")], "holds in part"),
        ([("good", "like")], "open"),
        ([("good", "like"), ("poor", "good")], "does not hold here"),
        ([("poor", "good"), ("poor", "best")], "does not hold here"),
        ([("good", "poor"), ("good", "absent")], "run in part"),
        ([("good", "absent")], "not run yet"),
    ],
)
def test_all_pairs_some_or_none(pairs: list[tuple[str, str]], verdict: str) -> None:
    assert judged(asked("ahead", *pairs), BEST, GOOD, LIKE, POOR).verdict == verdict


def test_a_claim_of_which_a_pair_lacks_its_rows_says_what_the_others_answer() -> None:
    one = judged(asked("ahead", ("good", "poor"), ("good", "absent")), GOOD, POOR)
    assert one.share == " (1 yes, 1 not run yet)"
    assert judged(asked("ahead", ("good", "absent")), GOOD).share == ""


def test_the_limit_is_students_interval_of_the_differences() -> None:
    """Differences m - h, m, m + h have the standard error h / sqrt(3): ahead is m from T times it on."""
    limit = T / math.sqrt(3)
    for shift, verdict in [(limit + 0.01, "holds"), (limit - 0.01, "open"), (-limit - 0.01, "does not")]:
        low, high = row("low", [5.0, 0.0, 9.0]), row("high", [4 + shift, 1 + shift, 9 + shift])
        assert judged(asked("ahead", ("high", "low")), low, high).verdict.startswith(verdict)


def test_an_open_pair_says_how_many_seeds_would_settle_it() -> None:
    """Differences 0.01, 0.03 and 0.05: their mean is 0.03, their deviation 0.02, and 4.3 / sqrt(3) > 1.5."""
    one, other = row("one", [0.51, 0.53, 0.55]), row("other", [0.5, 0.5, 0.5])
    (ahead,) = judged(asked("ahead", ("one", "other")), one, other).pairs
    assert (ahead.answer, ahead.takes) == ("open", 5)  # t is 3.18 with four, 2.78 with five: / sqrt(5) = 1.24
    (near,) = judged(asked("within", ("other", "one"), by=0.03), one, other).pairs
    assert (near.answer, near.takes) == ("open", math.inf)  # at the limit
    (more,) = judged(asked("within", ("one", "other"), by=0.01), one, other).pairs
    assert (more.answer, more.takes) == ("open", 4)
    (settled,) = judged(asked("within", ("one", "other"), by=0.03), one, other).pairs
    assert (settled.answer, settled.takes) == ("yes", None)
    alone = judged(asked("ahead", ("a", "b")), row("a", [0.6]), row("b", [0.5])).pairs[0]
    assert (alone.answer, alone.takes) == ("open", None)


def test_rows_are_compared_seed_by_seed() -> None:
    """Seeds far apart hide nothing where each of them orders the rows alike."""
    easy, hard = row("easy", [0.5, 0.7, 0.9]), row("hard", [0.49, 0.688, 0.891])
    assert judged(asked("ahead", ("easy", "hard")), easy, hard).verdict == "holds"
    mixed = row("mixed", hard.values[::-1])
    assert judged(asked("ahead", ("easy", "mixed")), easy, mixed).verdict == "open"


def test_lower_is_better_turns_every_answer_round() -> None:
    claim = asked("ahead", ("poor", "good"))
    assert judged(claim, GOOD, POOR).verdict == "does not hold here"
    (pair,) = judged(claim, GOOD, POOR, higher=False).pairs
    assert (pair.answer, pair.difference > 0) == ("yes", True)
    near = asked("within", ("good", "poor"), by=0.2)
    assert judged(near, GOOD, POOR, higher=False).verdict == "holds"
    assert judged(asked("within", ("good", "poor"), by=0.05), GOOD, POOR, higher=False).verdict != "holds"


def test_within_is_not_behind_by_more_than_so_much() -> None:
    answers = {
        by: judged(asked("within", ("good", "best"), by=by), BEST, GOOD).pairs[0].answer
        for by in (0.05, 0.1, 0.2)
    }
    assert answers == {0.05: "no", 0.1: "open", 0.2: "yes"}
    assert judged(asked("within", ("best", "good"), by=0.0), BEST, GOOD).verdict == "holds"


def test_cheaper_counts_the_bytes_of_the_run_both_ways() -> None:
    small, large = row("small", [0.5, 0.6], 100), row("large", [0.9, 0.91], 1000)
    assert judged(asked("cheaper", ("small", "large")), small, large).verdict == "holds"
    assert judged(asked("cheaper", ("small", "large"), times=9.0), small, large).verdict == "holds"
    assert judged(asked("cheaper", ("small", "large"), times=11.0), small, large).verdict != "holds"
    assert judged(asked("cheaper", ("large", "small")), small, large).verdict == "does not hold here"
    assert judged(asked("cheaper", ("good", "best")), GOOD, BEST).verdict != "holds"  # as many


def test_of_several_kinds_every_pair_is_asked_all() -> None:
    both = asked(["ahead", "cheaper"], ("one", "other"))
    ahead, behind = [0.9, 0.91, 0.92], [0.8, 0.81, 0.82]
    for values, size, verdict in [(ahead, 50, "holds"), (ahead, 200, "does not"), (behind, 50, "does not")]:
        one = judged(both, row("one", values, size), row("other", [0.85, 0.86, 0.85]))
        assert one.verdict.startswith(verdict)


def test_a_row_that_was_not_run_leaves_the_claim_open() -> None:
    one = judged(asked("ahead", ("best", "poor"), ("best", "nobody")), BEST, POOR)
    assert [pair.answer for pair in one.pairs] == ["yes", "not run yet"]
    assert one.verdict == "run in part"


def test_what_diverged_is_behind_and_a_lost_seed_is_never_ahead() -> None:
    lost = row("lost", [], math.nan, diverged=3)
    for kind, more in [("ahead", {}), ("within", {"by": 0.5}), ("cheaper", {})]:
        assert judged(asked(kind, ("lost", "poor"), **more), lost, POOR).verdict == "does not hold here"
    assert judged(asked("ahead", ("poor", "lost")), lost, POOR).verdict == "holds"
    assert judged(asked(["ahead", "cheaper"], ("poor", "lost")), lost, POOR).verdict == "holds"
    part = row("part", BEST.values, diverged=1)
    assert judged(asked("ahead", ("part", "poor")), part, POOR).pairs[0].answer == "open"
    assert judged(asked("ahead", ("poor", "part")), part, POOR).pairs[0].answer == "open"
    worse = row("worse", POOR.values, diverged=1)
    assert judged(asked("ahead", ("worse", "best")), worse, BEST).pairs[0].answer == "no"
    assert judged(asked("ahead", ("worse", "part")), worse, part).pairs[0].answer == "open"  # both lost one
    untuned = row("untuned", [], math.nan)  # it diverged at every rate of its tuning
    assert judged(asked("ahead", ("lost", "untuned")), lost, untuned).verdict == "does not hold here"
    assert judged(asked("ahead", ("untuned", "lost")), lost, untuned).verdict == "does not hold here"
    assert judged(asked("ahead", ("poor", "untuned")), untuned, POOR).verdict == "holds"


def test_a_single_seed_settles_nothing() -> None:
    alone = row("alone", [0.99])
    assert judged(asked("ahead", ("alone", "poor")), alone, POOR).verdict == "open"
    assert judged(asked("ahead", ("poor", "alone")), alone, POOR).pairs[0].answer == "open"


CLAIM = {"says": "a is ahead", "why": "because", "kind": "ahead", "pairs": [["a", "b"]]}
WRONG_CLAIMS = [
    ({"kind": "best"}, "best"),
    ({"kind": []}, "length >= 1"),
    ({"kind": ["ahead", "nearby"]}, "nearby"),
    ({"pairs": []}, "length >= 1"),
    ({"pairs": [["a"]]}, "length 2"),
    ({"pairs": [["a", "a"]]}, "two rows"),
    ({"pairs": "a, b"}, "array"),
    ({"verdict": "holds"}, "verdict"),
    ({"kind": "within"}, "by says how far"),
    ({"by": 0.1}, "by says how far"),
    ({"kind": "within", "by": -0.1}, ">= 0"),
    ({"times": 2.0}, "times is for kind cheaper"),
    ({"kind": "cheaper", "times": 0.5}, ">= 1"),
    ({"why": "it reaches 0.82 there"}, "'0.82' in says or why"),
    ({"says": "it takes 20 MB down"}, "'20 MB' in says or why"),
    ({"says": ""}, "length >= 1"),
    ({"why": 3}, "str"),
]


@pytest.mark.parametrize(("change", "error"), WRONG_CLAIMS, ids=str)
def test_a_wrong_claim_is_refused(change: dict[str, object], error: str) -> None:
    claims.parse({"claim": [CLAIM]}, "x.toml")
    with pytest.raises(ConfigError, match=rf"x.toml: \[\[claim\]\].*{error}"):
        claims.parse({"claim": [CLAIM | change]}, "x.toml")


PUBLISHED = {
    "name": "static d=16",
    "method": "static",
    "metric": 27.7,
    "up": 7595,
    "down": 7595,
    "total": 7595,
}


@pytest.mark.parametrize(
    ("rows", "error"),
    [
        ([PUBLISHED | {"method": "zip"}], "unknown method 'zip'"),
        ([PUBLISHED | {"metric": "high"}], "float"),
        ([PUBLISHED | {"metric": math.nan}], "finite"),
        ([PUBLISHED | {"total": 0}], "above 0"),
        ([PUBLISHED | {"compression": 3}], "compression"),
        ([PUBLISHED, PUBLISHED], "more than one is called static d=16"),
        ({"name": "x"}, "array"),
    ],
    ids=str,
)
def test_wrong_published_rows_are_refused(rows: object, error: str) -> None:
    with pytest.raises(ConfigError, match=rf"x.toml: \[\[published\]\].*{error}"):
        claims.parse({"published": rows}, "x.toml")
