"""`narrowcast measure`: the search on made-up curves, the rules as laws, runs that are kept and resumed."""

import csv
import doctest
import math
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats
from typer.testing import CliRunner

from narrowcast.cli.app import app
from narrowcast.measure import docs, intrinsic_dimension, library, probing, results, rules, tables, trainers
from narrowcast.measure.probing import About, Spec, Trial
from narrowcast.measure.results import Trained
from narrowcast.measure.searching import Found, interval, search
from narrowcast.numerics import keyed
from narrowcast.numerics.keyed import Purpose
from narrowcast.rounds import records
from narrowcast.runs import run_folder, runner
from narrowcast.runs.reading import make_config
from places import ROOT

# --- the search ---


def once(reaches: Callable[[int], bool], most: int) -> Callable[[int], bool]:
    """The same, but no d may be asked for twice, or outside of 1 .. most."""
    asked: set[int] = set()

    def ask(d: int) -> bool:
        assert d not in asked
        assert 1 <= d <= most
        asked.add(d)
        return reaches(d)

    return ask


@given(st.integers(1, 10**6), st.data(), st.floats(1.01, 3), st.floats(1.5, 8))
def test_an_exact_curve_is_found_to_the_tolerance(
    most: int, data: st.DataObject, tolerance: float, factor: float
) -> None:
    true, start = (data.draw(st.integers(1, most)) for _ in range(2))
    found = search(once(lambda d: d >= true, most), start, most, factor=factor, tolerance=tolerance)
    assert found.d is not None
    assert found.failed < true <= found.d <= max(found.failed + 1, tolerance * found.failed)
    assert found.probes == {d: d >= true for d in found.probes}
    brackets = abs(math.log(true / start, factor)) + 2
    bisections = math.log2(max(1, math.log(max(factor, 3)) / math.log(tolerance))) + 1
    assert len(found.probes) <= brackets + bisections + math.log2(factor) + 3


def test_a_threshold_that_no_d_reaches_ends_at_all_parameters() -> None:
    found = search(once(lambda d: False, 1000), 30, 1000)
    assert found == Found(None, 1000, {30: False, 120: False, 480: False, 1000: False})


def test_a_threshold_that_every_d_reaches_ends_at_one() -> None:
    found = search(once(lambda d: True, 1000), 30, 1000)
    assert (found.d, found.failed) == (1, 0)
    assert search(lambda d: True, 1, 1) == Found(1, 0, {1: True})
    assert search(lambda d: False, 1, 1) == Found(None, 1, {1: False})


def test_a_curve_with_two_crossings_ends_at_one_of_them() -> None:
    found = search(once(lambda d: 100 <= d < 200 or d >= 1000, 5000), 400, 5000, tolerance=1.05)
    assert found.d is not None
    assert found.probes[found.d]
    assert not found.probes[found.failed]
    assert found.failed < 1000 <= found.d <= 1.05 * found.failed


def test_noise_moves_single_searches_and_not_their_middle() -> None:
    """A probe reaches with a probability that rises from 0 to 1 between d = 200 and 800, 1/2 at 400."""
    ends = []
    for seed in range(200):
        luck = iter(keyed.uniforms(keyed.derive(seed, Purpose.RUN), Purpose.DATA, 100))

        def reaches(d: int, luck: object = luck) -> bool:
            return math.log(d / 200) / math.log(4) > next(luck)  # type: ignore[call-overload]

        found = search(once(reaches, 10**5), 316, 10**5)
        assert found.d is not None
        assert 200 < found.d < 880
        ends.append(math.sqrt(found.d * found.failed))
    middle = interval([round(d) for d in ends])
    assert 360 < middle.low < middle.high < 440
    assert stats.tstd([math.log(d) for d in ends]) > 0.1  # the noise is there


@pytest.mark.parametrize(
    ("start", "changes", "message"),
    [
        (0, {}, "starts at a d of 1 to 10"),
        (11, {}, "got 11"),
        (5, {"factor": 1.0}, "must be above 1, got 1.0"),
        (5, {"tolerance": math.inf}, "got 4.0 and inf"),
    ],
)
def test_a_search_that_cannot_end_is_refused(start: int, changes: dict[str, float], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        search(lambda d: True, start, 10, **changes)


def test_the_interval_covers_as_often_as_it_says() -> None:
    noise = keyed.normals(5, Purpose.NORMALS, 600 * 3).reshape(600, 3)
    found = [interval([round(1e6 * math.exp(0.2 * float(z))) for z in row]) for row in noise]
    hits = sum(i.low <= 1e6 <= i.high for i in found)
    assert stats.binom.ppf(1e-3, 600, 0.95) <= hits <= stats.binom.ppf(1 - 1e-3, 600, 0.95)
    two = interval([100, 400])
    assert two.d == pytest.approx(200)
    assert (two.least, two.most) == (100, 400)
    assert interval([7]).high == math.inf
    with pytest.raises(ValueError, match="at least one d"):
        interval([])


# --- the rules ---


@given(
    st.lists(st.floats(0, 1), min_size=2, max_size=20),
    st.floats(0.1, 1),
    st.integers(1, 30),
)
def test_no_curve_that_flattens_out_and_reaches_is_given_up(
    gains: list[float], target: float, every: int
) -> None:
    """Concave curves: what is still to come is less than the pace of late, so hope is never lost wrongly."""
    total = sum(gains) or 1.0
    value, curve = 0.0, []
    for number, gain in enumerate(sorted(gains, reverse=True), 1):
        value += gain / total * target * 1.0001
        curve.append((number * every, value))
    rounds = curve[-1][0]
    if value < target:
        return
    for end in range(1, len(curve)):
        assert rules.verdict(curve[:end], rounds, target) in (None, rules.REACHED)
    assert rules.verdict(curve, rounds, target) == rules.REACHED


def test_a_flat_curve_is_given_up_after_half_its_rounds_and_not_before() -> None:
    flat = [(10 * i, 0.5) for i in range(1, 25)]
    ends = [rules.verdict(flat[:end], 240, 0.9) for end in range(1, 25)]
    assert ends == [None] * 11 + [rules.FAILED] * 13
    near = [(10 * i, 0.87) for i in range(1, 25)]  # within the margin: it may have its rounds
    assert [rules.verdict(near[:end], 240, 0.9) for end in (12, 23, 24)] == [None, None, rules.FAILED]
    assert rules.verdict([], 240, 0.9) is None


@given(st.lists(st.floats(0.01, 10), min_size=1, max_size=20), st.floats(0.05, 12))
def test_a_metric_that_is_better_when_lower_is_the_mirror(values: list[float], target: float) -> None:
    up = [(i, v) for i, v in enumerate(values, 1)]
    down = [(i, -v) for i, v in up]
    assert rules.verdict(up, 20, target) == rules.verdict(down, 20, -target, higher_is_better=False)


def test_targets() -> None:
    assert rules.target(0.8, 0.5) == 0.4
    assert rules.target(0.8, 0.5, higher_is_better=False) == 1.6
    with pytest.raises(ValueError, match=r"0 < share <= 1, got 1\.5"):
        rules.target(0.8, 1.5)
    with pytest.raises(ValueError, match="only when it is positive"):
        rules.target(0.0, 0.9)


def test_the_rate_falls_with_d_to_that_of_uncompressed_training() -> None:
    made = [rules.rate(d, 10**6, 0.3) for d in (1, 10**3, 10**4, 10**5, 10**6)]
    assert made == sorted(made, reverse=True)
    assert made[-1] == 0.3
    assert rules.rates(9.0, 4) == [9, 27, 3, 81]
    with pytest.raises(ValueError, match="at least one rate, got 0"):
        rules.rates(1.0, 0)


# --- a measurement with a made-up trainer ---


class Curves:
    """The metric of d rises to 1 - exp(-d/50) in five of ten evaluations; a rate above `limit` diverges."""

    def __init__(self, limit: float = math.inf, higher_is_better: bool = True) -> None:
        self.limit, self.up, self.trials = limit, higher_is_better, list[Trial]()

    def about(self) -> About:
        return About(1000, "score", self.up, 100, 10.0)

    def train(self, trial: Trial, target: float | None) -> Trained:
        assert trial not in self.trials
        self.trials.append(trial)
        if trial.rate > self.limit:
            return Trained([], 100, diverged=True)
        end = 1.0 if trial.d is None else 1 - math.exp(-trial.d / 50)
        values = [end * min(1.0, i / 5) for i in range(1, 11)]
        curve = [(10 * i, v if self.up else 2 - v) for i, v in enumerate(values, 1)]
        return Trained(trainers.cut(curve, 100, target, self.up)[0], 100)


@pytest.mark.parametrize("up", [True, False])
def test_a_measurement_finds_the_crossing(up: bool) -> None:
    trainer, lines = Curves(higher_is_better=up), list[str]()
    (seed,) = probing.conduct(trainer, Spec(seeds=(4,), tolerance=1.02), lines.append)
    share = 0.9 if up else 2 - 1 / 0.9  # of the rise from 0 to 1
    true = -50 * math.log(1 - share)
    assert seed.target == pytest.approx(0.9 if up else 1 / 0.9)
    assert seed.d is not None
    assert seed.failed < true <= seed.d <= 1.02 * seed.failed + 1
    assert trainer.trials[0] == Trial("uncompressed", None, 0.3, 4)
    assert [t.d for t in trainer.trials[1:]] == [p.d for p in seed.probes]
    assert seed.probes[0].d == 32  # sqrt(1000)
    assert all(t.rate == rules.rate(t.d, 1000) for t in trainer.trials[1:] if t.d)
    large = max(seed.probes, key=lambda p: p.d)
    assert (large.reached, large.used) == (True, 50)  # stopped where it reached
    assert f"seed 4: d = {seed.d}" in lines
    assert any("reached, score" in line and (">=" if up else "<=") in line for line in lines)


def test_rates_that_diverge_are_made_smaller_and_say_nothing_about_d() -> None:
    trainer = Curves(limit=2.0)
    (seed,) = probing.conduct(trainer, Spec(seeds=(0,), rate=17.0))
    assert seed.d is not None
    assert abs(seed.d - 115) < 13
    assert all(p.rates == [17.0, 5.67, 1.89] for p in seed.probes)
    assert [run.diverged for run in seed.probes[0].runs] == [True, True, False]
    with pytest.raises(ValueError, match="uncompressed training diverged at rates"):
        probing.conduct(Curves(limit=1e-9), Spec(seeds=(0,)))


def test_with_more_rates_one_is_enough() -> None:
    trainer = Curves()
    (seed,) = probing.conduct(trainer, Spec(seeds=(0,), rates=3))
    assert len(seed.baseline.rates) == 3
    assert all(len(p.rates) == (1 if p.reached else 3) for p in seed.probes)


def test_methods_without_d_are_refused() -> None:
    with pytest.raises(ValueError, match="'topk' has no d to measure: choose one of static"):
        Spec(method="topk")


def test_the_answer_says_when_nothing_reaches() -> None:
    spec = Spec(seeds=(0,), threshold=1.0)
    trainer = Curves()
    made = probing.measured(trainer.about(), spec, probing.conduct(trainer, spec), "curves", {})
    assert made.interval is None
    assert "reached 100 % of the uncompressed score at no d" in tables.answer(made)


# --- runs in folders ---


def config_of(**changes: object) -> trainers.RunConfig:
    return make_config({"task": "digits", "width": 16, "epochs": 6, "cohort": 29, "threads": 1, **changes})


def test_a_probe_stops_when_decided_goes_on_for_a_higher_target_and_is_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trial = Trial("static", 64, 10.0, 0)
    whole = trainers.InFolders(config_of(), tmp_path / "a").train(trial, None)
    first, last = whole.curve[0][1], rules.best(whole.curve)
    assert len(whole.curve) == 6
    assert first < last
    parts = trainers.InFolders(config_of(), tmp_path / "b")
    early = parts.train(trial, first)
    assert early.curve == whole.curve[:1]
    (folder,) = (tmp_path / "b").iterdir()
    assert not run_folder.finished(folder)
    later = parts.train(trial, last)
    assert later.curve == whole.curve[: len(later.curve)]
    assert later.curve[-1][1] == last
    assert parts.train(trial, None).curve == whole.curve  # on to the end, as if never stopped
    assert run_folder.finished(folder)
    monkeypatch.setattr(runner, "start", lambda *a, **k: pytest.fail("it is there"))
    monkeypatch.setattr(runner, "resume", lambda *a, **k: pytest.fail("it is there"))
    assert parts.train(trial, first) == early
    assert parts.train(trial, last) == later


def test_a_run_in_memory_is_the_run_in_a_folder(tmp_path: Path) -> None:
    config = config_of()
    task = trainers.build("digits", config.task_options())
    plan = config.plan(len(task.clients), bytes(8))
    for trial in (Trial("static", 64, 10.0, 0), Trial("uncompressed", None, 0.3, 0)):
        kept = trainers.InFolders(config, tmp_path).train(trial, 0.8)
        assert trainers.InMemory(task, plan).train(trial, 0.8) == kept


def test_a_run_that_diverges_is_said_and_kept(tmp_path: Path) -> None:
    trainer = trainers.InFolders(config_of(), tmp_path)
    made = trainer.train(Trial("static", 64, 1e30, 0), 0.9)
    assert made.diverged
    assert trainer.train(Trial("static", 64, 1e30, 0), 0.9) == made


def test_until_ends_a_run_that_can_go_on(tmp_path: Path) -> None:
    rounds: list[int] = []
    config = config_of(rounds=8, dim=8)
    runner.start(config, tmp_path / "a", lambda f, r: rounds.append(r.round), until=lambda: len(rounds) == 3)
    assert len(records.read(tmp_path / "a" / "records.jsonl")) == 3
    assert not run_folder.finished(tmp_path / "a")
    runner.resume(tmp_path / "a")
    runner.start(config, tmp_path / "b")
    done, other = (records.read(tmp_path / name / "records.jsonl") for name in "ab")
    assert all(x.same_as(y) for x, y in zip(done, other, strict=True))
    assert (tmp_path / "a/model.narrowcast").read_bytes() == (tmp_path / "b/model.narrowcast").read_bytes()


# --- the library call ---


def test_the_example_of_the_library_call() -> None:
    torch.manual_seed(0)
    (example,) = [t for t in doctest.DocTestFinder().find(library.intrinsic_dimension) if t.examples]
    assert doctest.DocTestRunner().run(example) == (0, len(example.examples))


def test_the_library_call_on_a_regression_puts_the_weights_back() -> None:
    """y depends on one direction of 30: a metric that is better when lower, and another method."""
    g = torch.Generator().manual_seed(3)
    x = torch.randn(300, 30, generator=g)
    y = x @ torch.randn(30, 1, generator=g) + 0.5 * torch.randn(300, 1, generator=g)
    model = torch.nn.Linear(30, 1)
    torch.nn.init.zeros_(model.weight)
    torch.nn.init.zeros_(model.bias)

    def squared(outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        return (outputs - targets).square().sum(1)

    found = intrinsic_dimension(
        model,
        squared,
        train=(x, y),
        test=(x, y),
        metrics=lambda outputs, targets: {"mse": float(squared(outputs, targets).mean())},
        metric="mse",
        higher_is_better=False,
        batch=50,
        full_lr=0.05,
        threshold=0.1,
        seeds=[0],
        method="time-varying",
        refresh=3,
    )
    assert found.dims
    assert 1 <= found.dims[0] <= 31
    assert not model.weight.any()
    assert found.settings == {"refresh": "3"}
    assert "10 % of the uncompressed mse takes d" in tables.answer(found)


# --- the documentation ---


def test_the_page_is_what_the_results_say() -> None:
    root = ROOT
    page = (root / "docs" / "measure.md").read_text()
    made = docs.fill(
        page, root / "studies/experiments/results/measure", "../studies/experiments/results/measure/"
    )
    assert made == page, "docs/measure.md is stale: run `python docs/make.py`"


# --- the command ---


def invoke(*words: str) -> tuple[int, str]:
    done = CliRunner().invoke(app, ["measure", *words], env={"COLUMNS": "200"})
    return done.exit_code, done.output


def test_the_quick_command_makes_tables_and_a_picture_and_never_repeats(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    code, said = invoke("--quick", "--out", str(tmp_path))
    assert code == 0, said
    measured = results.read_results(tmp_path / "measure.json", results.Measured)
    assert len(measured.dims) == 2
    assert 4 < min(measured.dims) <= max(measured.dims) < 2000
    page = (tmp_path / "README.md").read_text()
    assert f"`narrowcast measure --quick --out {tmp_path}`" in page
    assert tables.answer(measured) in page
    rows = list(csv.DictReader((tmp_path / "probes.csv").read_text().splitlines()))
    assert len(rows) == sum(len(p.runs) for s in measured.seeds for p in (s.baseline, *s.probes))
    for s in measured.seeds:
        mine = {int(r["d"]): r["verdict"] for r in rows if r["seed"] == str(s.seed) and r["run"] == "static"}
        assert mine == {p.d: "reached" if p.reached else "failed" for p in s.probes}
    assert (tmp_path / "measure.png").stat().st_size > 10_000
    kept = (tmp_path / "measure.json").read_bytes()
    monkeypatch.setattr(runner, "start", lambda *a, **k: pytest.fail("everything is there"))
    assert invoke("--quick", "--out", str(tmp_path))[0] == 0
    assert (tmp_path / "measure.json").read_bytes() == kept


SUGGEST = ("digits", "--suggest", "--budget", "30kB")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ((), "say what to measure"),
        (("quadratic",), "say how long to train"),
        (("digits", "--suggest"), "--suggest and --budget go together"),
        (("digits", "--method", "topk"), "'topk' has no d to measure"),
        (("digits", "--threshold", "0"), "0 < share <= 1"),
        (("digits", "--repeats", "0"), "'--repeats': 0 is not in the range"),
        (("digits", "--rates", "0"), "'--rates': 0 is not in the range"),
        (("digits", "--full-lr", "0"), "--full-lr is a number above 0, got 0"),
        (("digits", "--tolerance", "0"), "--tolerance is a number above 1, got 0"),
        (("digits", "--tolerance", "1"), "--tolerance is a number above 1, got 1"),
        (("digits", "--dim", "0"), "--dim is a number above 0, got 0"),
        ((*SUGGEST, "--full-lr", "0"), "--full-lr is a number above 0, got 0"),
        ((*SUGGEST, "--threshold", "0.9"), "--suggest goes without --threshold: it tries our methods"),
        ((*SUGGEST, "--tolerance", "2"), "--suggest goes without --tolerance:"),
        ((*SUGGEST, "--dim", "64", "--lr", "1"), "--suggest goes without --dim, --lr:"),
        ((*SUGGEST, "--lr", "auto"), "--suggest goes without --lr:"),
        ((*SUGGEST, "--method", "static"), "--suggest goes without --method:"),
    ],
)
def test_what_cannot_be_measured_is_said(words: tuple[str, ...], message: str, tmp_path: Path) -> None:
    code, said = invoke(*words, "--out", str(tmp_path))
    assert code == 2
    assert message in said.replace("\n", " ")
    assert not list(tmp_path.iterdir())
