"""The theory: the estimator against known answers, minima against brute force, theorems on fixed seeds.

Counts of runs are judged at the stated confidence: with 30 runs all within a bound, its probability is above
0.9 with confidence 0.95 (0.9^30 < 0.05).
"""

import math
from pathlib import Path

import numpy as np
import pytest
import torch
from scipy.stats import beta, binom
from typer.testing import CliRunner

from narrowcast.cli.app import app
from narrowcast.numerics import keyed
from narrowcast.numerics.keyed import Purpose
from narrowcast_studies.theory import bounds, checks, dimension, programme, proposition, tables, trials
from narrowcast_studies.theory.bounds import Constants, Steps
from narrowcast_studies.theory.dimension import UNIFORM, basis, proportion, quantile, ratios
from narrowcast_studies.theory.problems import Logistic, Problem, Quadratic, isotropic, power_law

D, d = 60, 12
CONFIDENCE = 0.95


@pytest.fixture(scope="module")
def quadratic() -> Quadratic:
    return power_law(D, 3)


@pytest.fixture(scope="module")
def logistic() -> Logistic:
    return Logistic("logistic", 3, 100, reg=0.05)


# --- the estimator ---


@pytest.mark.parametrize("p", [0.5, 0.9])
def test_rho_of_an_isotropic_quadratic_is_a_beta_quantile(p: float) -> None:
    """1 - r is the share of a fixed vector in a uniform subspace: Beta(d/2, (D-d)/2), whatever theta0 is."""
    problem = isotropic(40, 1)
    found = ratios(problem, [problem.start], UNIFORM, 10, 400, 5)
    q = quantile(found, p, 0.999)
    assert q.low <= beta.ppf(p, 15, 5) <= q.high
    assert q.high - q.low < 0.1  # and it says something
    assert np.mean(found) == pytest.approx(0.75, abs=4 * math.sqrt(0.75 * 0.25 / 21 / 400))


def test_order_statistics_cover_the_quantile_as_often_as_they_say() -> None:
    values = keyed.uniforms(7, Purpose.DATA, 500 * 60).reshape(500, 60)
    found = [quantile(row.tolist(), 0.9, 0.9) for row in values]
    for missed in (sum(q.high < 0.9 for q in found), sum(q.low > 0.9 for q in found)):
        assert binom.sf(missed - 1, 500, 0.1) > 1e-3  # no more often than one in ten
    with pytest.raises(ValueError, match="20 draws cannot bound"):
        quantile([0.5] * 20, 0.9, 0.95)


@pytest.mark.parametrize(("hits", "n"), [(0, 9), (4, 9), (9, 9), (27, 30), (30, 30)])
def test_proportion_is_clopper_and_pearson(hits: int, n: int) -> None:
    low, high = proportion(hits, n, 0.95)
    assert low == pytest.approx(beta.ppf(0.05, hits, n - hits + 1) if hits else 0.0, abs=1e-9)
    assert high == pytest.approx(beta.ppf(0.95, hits + 1, n - hits) if hits < n else 1.0, abs=1e-9)


def test_bases_are_what_they_say() -> None:
    Q = basis(UNIFORM, D, d, 4)
    assert torch.allclose(Q.T @ Q, torch.eye(d).double(), atol=1e-12)
    Q = basis("rotation", D, d, 4)  # D is a multiple of d
    assert torch.allclose(Q.T @ Q, torch.eye(d).double(), atol=1e-6)


def test_read_for_all_theta0_no_decay_of_the_spectrum_helps(quadratic: Quadratic) -> None:
    """Some direction keeps at most d/D on average: the worst rho is above the floor for any spectrum."""
    here = quantile(ratios(quadratic, [quadratic.start], UNIFORM, d, 100, 5), 0.9)
    worst = dimension.worst_ratios(quadratic, UNIFORM, d, 100, 5)
    floor = dimension.floor(D, d, 0.1)
    assert here.high < floor < quantile(worst, 0.9).low
    # the same ratios, from the definition at a theta0 in that direction
    base = quadratic.centre.clone()
    base[-1] += 0.5
    assert worst[:5] == pytest.approx(ratios(quadratic, [base], UNIFORM, d, 5, 5))


# --- the problems ---


def by_descent(problem: Problem, base: torch.Tensor, Q: torch.Tensor) -> float:
    """The minimum over base + span(Q) by plain gradient descent on g."""
    sizes = torch.tensor([len(c) for c in problem.clients])
    index, weight = np.concatenate(list(problem.clients)), (1.0 / sizes / len(sizes)).repeat_interleave(sizes)
    x, rate = torch.zeros(Q.shape[1]).double(), 1.0 / problem.curvature(Q)
    for _ in range(400):
        x = x - rate * (Q.T @ problem.weighted(base + Q @ x, index, weight.double())[1])
    return problem.excess(base + Q @ x)


@pytest.mark.parametrize("which", ["quadratic", "logistic"])
def test_restricted_minimum_against_gradient_descent(which: str, request: pytest.FixtureRequest) -> None:
    problem: Problem = request.getfixturevalue(which)
    Q = basis(UNIFORM, problem.D, 6, 2)
    exact = problem.restricted(problem.start, Q)
    assert problem.excess(problem.start + Q @ exact.x) == pytest.approx(exact.excess)
    slope = Q.T @ problem.gradients(problem.start + Q @ exact.x).mean(0)
    assert slope.norm() < 1e-5 * problem.gradients(problem.start).mean(0).norm()
    slow = by_descent(problem, problem.start, Q)
    assert exact.excess - 1e-9 <= slow <= exact.excess + 0.01 * problem.gap


def test_the_optimum_of_the_regression(logistic: Logistic) -> None:
    """No gradient, a Hessian that finite differences confirm, and a curvature that bounds it."""
    assert logistic.gradients(logistic.best).mean(0).norm() < 1e-5
    v = basis(UNIFORM, logistic.D, 1, 9)[:, 0]
    H, step = logistic.hessian(), 1e-5
    ahead, behind = (logistic.gradients(logistic.best + s * v).mean(0) for s in (step, -step))
    assert torch.allclose(H @ v, (ahead - behind) / (2 * step), atol=1e-6)
    Q = basis(UNIFORM, logistic.D, 8, 1)
    assert torch.linalg.matrix_norm(Q.T @ H @ Q, 2) <= logistic.curvature(Q)
    whole = torch.eye(logistic.D).double()
    assert logistic.restricted(logistic.start, whole).excess == pytest.approx(0, abs=1e-9)


# --- the constants ---


def test_the_lemma_bounds_the_mean_error_of_descent_with_noise() -> None:
    """Many runs at once on a quadratic of d = 5: the mean error at T is below epsilon, and not far below."""
    m = torch.tensor([1.0, 0.3, 0.1, 0.03, 0.01]).double()
    start, variance, epsilon = torch.full((5,), 2.0).double(), 0.5, 0.2
    plan = bounds.steps(Constants(float(start @ start), 1.0, variance, 1.0), epsilon)
    x = start.repeat(400, 1)
    shocks = keyed.normals(3, Purpose.NORMALS, plan.count * 400 * 5).reshape(plan.count, 400, 5)
    for shock in shocks:
        x = x - plan.rate * (m * x + torch.from_numpy(shock).double() * math.sqrt(variance / 5))
    error = (m * x.square()).sum(1) / 2
    assert epsilon / 10 < error.mean() <= epsilon


def test_the_variance_of_k_subspace_is_within_theorem_2(quadratic: Quadratic) -> None:
    """The exact ratio against a count over all clients and routes, and below K (1 + 1/C)."""
    Qs = [basis(UNIFORM, D, d, k) for k in range(3)]
    ratio, most = bounds.variance_ratio(quadratic, quadratic.start, Qs)
    rows = quadratic.gradients(quadratic.start)
    plain = rows @ torch.cat(Qs, 1)
    routed = []
    for k, Q in enumerate(Qs):
        block = torch.zeros(len(rows), 3 * d).double()
        block[:, k * d : (k + 1) * d] = 3 * (rows @ Q)
        routed.append(block)
    both = [(v - v.mean(0)).square().sum(1).mean() for v in (torch.cat(routed), plain)]
    assert ratio == pytest.approx(float(both[0] / both[1]))
    assert ratio <= most
    assert torch.allclose(torch.cat(routed).mean(0), plain.mean(0))  # unbiased


# --- the theorems ---


def plan_of(problem: Problem, epsilon: float, kind: str = "dense") -> Steps:
    each = [bounds.constants(problem, problem.start, basis(kind, problem.D, d, i)) for i in range(10)]
    return bounds.steps(bounds.largest(each), epsilon * problem.gap)


def within(runs: list[trials.Trial], bound: float) -> float:
    """A lower bound, with confidence 0.95, of the probability that a run ends within the bound."""
    return proportion(sum(t.curve[-1] <= bound for t in runs), len(runs), CONFIDENCE)[0]


def keys(count: int, seed: int) -> list[int]:
    return [keyed.derive(seed, Purpose.RUN, i) for i in range(count)]


def rho_at(problem: Problem, delta: float) -> float:
    return quantile(ratios(problem, [problem.start], UNIFORM, d, 200, 11), 1 - delta, CONFIDENCE).high


def test_theorem_1(quadratic: Quadratic) -> None:
    epsilon = 0.1
    plan, bound = plan_of(quadratic, epsilon), rho_at(quadratic, 0.1) + epsilon
    runs = [trials.static(quadratic, "dense", d, plan, key) for key in keys(30, 21)]
    assert within(runs, bound) >= 0.9
    assert np.mean([t.gaps[0] for t in runs]) <= epsilon
    assert min(t.gaps[0] for t in runs) >= -1e-6  # never below the exact minimum of its subspace
    assert np.median([t.curve[-1] for t in runs]) > bound / 3  # the bound is no empty one


def test_theorem_2(quadratic: Quadratic) -> None:
    epsilon = 0.25
    plan, bound = plan_of(quadratic, epsilon), rho_at(quadratic, 0.2) + epsilon
    runs = [trials.k_subspace(quadratic, "dense", d, plan, 2, key) for key in keys(14, 22)]
    assert within(runs, bound) >= 0.8  # 0.8^14 < 0.05
    assert all(t.steps == math.ceil(plan.count * t.factor) and t.factor > 2 for t in runs)
    assert min(t.gaps[0] for t in runs) >= -1e-6


def test_theorem_3(quadratic: Quadratic) -> None:
    """With rho along the way: the largest at the bases where the epochs of other runs begin."""
    E, delta, epsilon = 4, 0.1, 0.05
    plan = plan_of(quadratic, epsilon * math.sqrt(E))
    visited = [trials.bases(quadratic, "dense", d, plan, E, key) for key in keys(4, 23)]
    path = [
        quantile(ratios(quadratic, there, UNIFORM, d, 120, 31 + e), 1 - delta, CONFIDENCE).high
        for e, there in enumerate(zip(*visited, strict=True))
    ]
    runs = [trials.time_varying(quadratic, "dense", d, plan, E, key) for key in keys(12, 24)]
    assert within(runs, bounds.time_varying(max(path), 1, epsilon, E)) >= (1 - delta) ** E
    assert np.mean([t.gaps for t in runs]) <= epsilon * math.sqrt(E)


def test_rho_at_theta0_is_not_enough_for_theorem_3(quadratic: Quadratic) -> None:
    """Exact minima, so epsilon = 0: rho grows once the easy directions are done, and rho^E is missed."""
    E, delta, losses = 4, 0.1, []
    for key in keys(30, 25):
        theta = quadratic.start
        for e in range(E):
            Q = basis(UNIFORM, D, d, keyed.derive(key, Purpose.SUBSPACE, e))
            theta = theta + Q @ quadratic.restricted(theta, Q).x
        losses.append(quadratic.excess(theta) / quadratic.gap)
    bound = bounds.time_varying(rho_at(quadratic, delta), 1, 0.0, E)
    within_bound = sum(loss <= bound for loss in losses)
    assert proportion(within_bound, 30, CONFIDENCE)[1] < (1 - delta) ** E  # refuted with confidence


def test_the_expressions_of_the_theorems() -> None:
    assert bounds.static(0.5, 8.0, 0.25) == 4.25
    assert bounds.factor(4, 0.5) == 12
    rho, E, epsilon, x = 0.6, 5, 0.01, 3.0
    assert bounds.time_varying(rho, x, epsilon, 1) == pytest.approx(rho * x + epsilon / (1 - rho))
    loss = x  # the proof: r(x) = rho x + epsilon sqrt(E), applied E times
    for _ in range(E):
        loss = rho * loss + epsilon * math.sqrt(E)
    bound = bounds.time_varying(rho, x, epsilon, E)
    assert loss <= bound <= loss + epsilon * math.sqrt(E) * rho**E / (1 - rho) + 1e-12


# --- proposition 1 ---


@pytest.mark.parametrize("name", proposition.METHODS)
@pytest.mark.parametrize("v", proposition.UPDATES)
def test_any_v_is_carried_by_d_numbers(v: str, name: str, quadratic: Quadratic) -> None:
    row = proposition.carry(quadratic, v, name, d, 12, 0.2, 5)
    assert row.numbers == d
    assert row.difference < 1e-5
    assert row.outside < 1e-6


def test_the_kinds_of_v_differ(quadratic: Quadratic) -> None:
    clip = proposition.threshold(quadratic)
    theta = quadratic.start
    made = [
        u.v(quadratic, theta, 3, 0.2, clip / 2) for n, u in proposition.UPDATES.items() if n != "momentum"
    ]
    assert all(not torch.allclose(a, b) for i, a in enumerate(made) for b in made[:i])


# --- the command ---


def test_the_quick_command_makes_tables_and_pictures_and_never_repeats(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    done = CliRunner().invoke(app, ["theory", "--quick", "--out", str(tmp_path)], env={"COLUMNS": "200"})
    assert done.exit_code == 0, done.output
    text = (tmp_path / "theory.md").read_text()
    assert "narrowcast theory --quick" in text
    results = programme.load(programme.QUICK, tmp_path)
    for check in checks.checks(results):
        assert f"{check.bound:.3f}" in text
        assert check.verdict != "fails" or not check.reading
    assert all((tmp_path / f"{r.spec.problem}.png").stat().st_size > 10_000 for r in results)
    assert tables.fill(f"a {tables.BEGIN} old {tables.END} z", results, "").startswith("a ")
    kept = (tmp_path / "logistic-proposition.json").read_bytes()
    monkeypatch.setattr(programme, "build", lambda spec: pytest.fail("everything is there"))
    assert CliRunner().invoke(app, ["theory", "--quick", "--out", str(tmp_path)]).exit_code == 0
    assert (tmp_path / "logistic-proposition.json").read_bytes() == kept
    (tmp_path / "logistic-proposition.json").write_text("{")
    said = CliRunner().invoke(app, ["theory", "--quick", "--out", str(tmp_path)])
    assert said.exit_code == 2
    assert "logistic-proposition.json is not a piece" in said.output.replace("\n", "")


def test_a_changed_setting_is_made_again(tmp_path: Path) -> None:
    spec = programme.QUICK[0]
    programme.write(tmp_path, spec, "proposition", programme.Proposition([]))
    assert programme.read(tmp_path, spec, "proposition", programme.Proposition) == programme.Proposition([])
    other = programme.Spec(**{**{f: getattr(spec, f) for f in spec.__struct_fields__}, "seed": 2})
    assert programme.read(tmp_path, other, "proposition", programme.Proposition) is None


def test_every_client_is_one_row_of_the_gradients(quadratic: Quadratic) -> None:
    theta = basis(UNIFORM, D, 1, 6)[:, 0]
    assert torch.allclose(quadratic.gradients(theta), Problem.gradients(quadratic, theta))
    assert torch.allclose(quadratic.gradients(quadratic.centre).mean(0), torch.zeros(D).double(), atol=1e-12)
