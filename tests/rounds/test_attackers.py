"""Simulated liars: who they are, what they send, and what it does to a run with and without a rule."""

import re
from dataclasses import replace

import numpy as np
import pytest
import torch

from naive import toy
from narrowcast import choices
from narrowcast.aggregates import Median
from narrowcast.errors import ConfigError
from narrowcast.methods import method
from narrowcast.rounds.attackers import Attackers
from narrowcast.rounds.plan import Plan
from narrowcast.rounds.simulator import Simulation
from narrowcast.runs.reading import make_config
from narrowcast.runs.used import refuse_unused
from narrowcast.tasks import build

PLAN = Plan(cohort=20, lr=3.0, rounds=12, key=1)


@pytest.fixture(scope="module")
def task():
    return toy("mlp", 20)[0]


def lied(attack, share=0.25, clients=20, key=1):
    return Attackers(share, attack, key, clients)


def test_who_lies_follows_from_the_key_alone() -> None:
    few, many = (lied("noise", share).clients for share in (0.1, 0.4))
    assert (len(few), len(many)) == (2, 8)
    assert few < many
    assert lied("scale", 0.4).clients == many
    assert lied("noise", 0.4, key=2).clients != many
    assert not lied("noise", 0.0).clients


@pytest.mark.parametrize("share", [-0.1, 1.0])
def test_a_share_is_a_share(share: float) -> None:
    with pytest.raises(ValueError, match="a share of the clients"):
        lied("noise", share)


def test_a_share_that_makes_nobody_lie_is_refused_with_the_smallest_that_does() -> None:
    with pytest.raises(ConfigError, match=r"--attackers 0\.04: of 12 clients .* or 0\.0417 at least"):
        lied("scale", 0.04, 12)
    for clients in (1, 2, 3, 7, 11, 12, 13, 99, 100, 101, 2400, 65_537, 10**6 + 3):
        with pytest.raises(ConfigError, match=f"of {clients} clients it makes nobody lie") as refused:
            lied("noise", 0.499 / clients, clients)
        smallest = float(re.search("or (.*) at least", str(refused.value))[1])
        assert len(lied("noise", smallest, clients).clients) == 1
        assert smallest <= 0.51 / clients


def test_an_unknown_attack_is_named() -> None:
    with pytest.raises(ValueError, match="did you mean 'sign-flip'"):
        lied("sign-flop")


@pytest.mark.parametrize("attack", choices.ATTACKS)
def test_the_honest_send_what_they_have_and_liars_what_the_attack_says(attack: str) -> None:
    attackers, clients = lied(attack), list(range(20))
    vs = torch.randn(20, 50, generator=torch.Generator().manual_seed(0))
    kept, liars = vs.clone(), sorted(attackers.clients)
    common = attackers.agree([([0.0] * 2, vs[liars[:2]]), ([0.0] * 3, vs[liars[2:]])])
    sent = attackers.turned(vs, clients, common, round=3)
    assert torch.equal(vs, kept)
    honest = [c for c in clients if c not in attackers.clients]
    assert torch.equal(sent[honest], vs[honest])
    lies, own = sent[liars], vs[liars]
    if attack == "sign-flip":
        assert torch.equal(lies, -own)
    elif attack == "scale":
        assert torch.equal(lies, own * 100)
    elif attack == "noise":
        assert torch.allclose(lies.norm(dim=1), 10 * own.norm(dim=1))
        assert len(torch.unique(lies, dim=0)) == len(liars)
        assert not torch.equal(attackers.turned(vs, clients, common, round=4)[liars], lies)
    elif attack == "label-flip":
        assert torch.equal(lies, own)
    else:
        expected = own.double().mean(0) - 1.5 * own.double().std(0, correction=0)
        assert torch.allclose(lies.double(), expected.expand(len(liars), -1), atol=1e-5)


def test_labels_are_turned_of_the_liars_alone_and_the_task_stays_as_it_was(task) -> None:
    attackers = lied("label-flip")
    turned, labels = attackers.corrupted(task), task._train[1].clone()
    index = np.concatenate([task.clients[c] for c in attackers.clients])
    expected = labels.clone()
    expected[index] = 2 - labels[index]
    assert torch.equal(turned._train[1], expected)
    assert not torch.equal(expected, labels)
    assert torch.equal(task._train[1], labels)
    assert lied("noise").corrupted(task) is task


def test_a_task_without_classes_has_no_labels_to_turn() -> None:
    quadratic = build("quadratic", make_config({"task": "quadratic", "rounds": 1}).task_options())
    with pytest.raises(ConfigError, match="whose examples have classes"):
        Simulation(
            quadratic, method("uncompressed"), replace(PLAN, cohort=2, attackers=0.3, attack="label-flip")
        )


@pytest.mark.parametrize("attack", choices.ATTACKS)
def test_a_run_with_liars_is_another_and_the_same_again(task, attack: str) -> None:
    def theta(**changes):
        run = Simulation(task, method("static", dim=32, key=5), replace(PLAN, lr=0.1, **changes))
        list(run)
        return run.theta.clone()

    honest, one, two = (
        theta(per_client=True),
        theta(attackers=0.2, attack=attack),
        theta(attackers=0.2, attack=attack),
    )
    assert torch.equal(one, two)
    assert not torch.equal(one, honest)


@pytest.mark.parametrize("attack", ["scale", "noise"])
def test_a_median_withstands_what_the_mean_does_not(task, attack: str) -> None:
    def loss(**changes):
        run = Simulation(
            task, method("static", dim=64, key=5), replace(PLAN, attackers=0.2, attack=attack, **changes)
        )
        list(run)
        return task.evaluate(run.theta)["loss"]

    assert loss(aggregate=Median()) < 0.8 * loss()


@pytest.mark.parametrize(
    ("given", "why"),
    [
        ({"attack": "scale"}, "without a share of them nobody lies"),
        ({"tolerate": 0.1}, "is not told how many lie"),
        ({"aggregate": "median", "tolerate": 0.1}, "is not told how many lie"),
        ({"attackers": 0.1, "engine": "flower-sim"}, "nobody is made to lie"),
    ],
)
def test_settings_that_would_change_nothing_are_refused(given: dict[str, object], why: str) -> None:
    with pytest.raises(ConfigError, match=why):
        refuse_unused(given, make_config({"task": "digits", "rounds": 1, **given}))


def test_settings_that_matter_are_not() -> None:
    given = {"aggregate": "krum", "tolerate": 0.1, "attackers": 0.1, "attack": "noise"}
    config = make_config({"task": "digits", "rounds": 1, **given})
    refuse_unused(given, config)
    plan = config.plan(100)
    assert (plan.aggregate.name, plan.aggregate.tolerate) == ("krum", 0.1)
    assert (plan.attackers, plan.attack) == (0.1, "noise")
    assert config.label.endswith("krum")
