"""Hours: links are drawn as they say, and a round takes what its slowest client takes, by a plain twin."""

import math
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from fitting import made as fit
from narrowcast.bandwidth.hours import sample, slowest
from narrowcast.bandwidth.planner import plan as planned
from narrowcast.errors import ConfigError
from narrowcast.methods.sizes import shape_of
from narrowcast.rounds.clock import LATE, flops_of
from narrowcast.rounds.network import NETWORKS, Kind, Law, Network, draw, find, setting
from narrowcast.rounds.plan import Plan
from narrowcast.rounds.simulator import Simulation
from narrowcast.runs import make_config, refuse_unused
from narrowcast.runs import runner as running
from narrowcast.runs.summary import summarise
from narrowcast.tasks.partition import iid
from narrowcast.tasks.torch_task import TorchTask

CLIENTS, COHORT, EPOCHS, D = 12, 4, 3, 21
SLOW = Network("slow", "made up", (Kind(Law(2000.0, 1.0), Law(500.0, 1.0), Law(0.3, 0.5), Law(1e4, 1.0)),))


def task(clients=CLIENTS):
    torch.manual_seed(0)
    x, y = torch.randn(3 * clients, 6), torch.arange(3 * clients) % 3
    return TorchTask(nn.Linear(6, 3), train=(x, y), test=(x[:3], y[:3]), clients=iid(3 * clients, clients))


def run(name, **more):
    made = fit(name, dim=4, subspaces=2, key=3)
    how = Plan(cohort=COHORT, lr=0.01, epochs=EPOCHS, key=3, **{"network": SLOW, **more})
    simulation = Simulation(task(), made, how)
    return made, how, simulation, list(simulation)


def twin(made, how, simulation, steps=1):
    """Every client's seconds in every round: its bytes by what it lacks, divided by its own links."""
    links, cohorts = draw(SLOW, CLIENTS, how.key), how.cohorts(CLIENTS)
    work = flops_of(simulation.task, simulation.theta0)
    shape = shape_of(made, D, EPOCHS, 1)
    seen, rounds = dict.fromkeys(range(CLIENTS), 0), []
    for number in range(simulation.rounds):
        stage, times = cohorts.epoch(number), {}
        for client in cohorts.come(number).tolist():
            down, up = shape.down(stage - seen[client]).bytes, shape.up.bytes
            seen[client] = stage
            times[client] = (
                2 * links.latency[client]
                + 8 * down / links.down[client]
                + steps * len(simulation.task.clients[client]) * work / links.flops[client]
                + 8 * up / links.up[client]
            )
        rounds.append(times)
    return rounds


@pytest.mark.parametrize("name", ["static", "time-varying", "k-subspace-time-varying", "uncompressed"])
@pytest.mark.parametrize("per_client", [False, True])
def test_a_round_takes_what_its_slowest_client_takes(name, per_client):
    made, how, simulation, records = run(name, per_client=per_client)
    for record, times in zip(records, twin(made, how, simulation), strict=True):
        assert record.network_seconds == pytest.approx(max(times.values()), rel=1e-9)


def test_local_steps_take_their_time():
    made, how, simulation, records = run("fedavg", local_steps=4)
    for record, times in zip(records, twin(made, how, simulation, steps=4), strict=True):
        assert record.network_seconds == pytest.approx(max(times.values()), rel=1e-9)


def test_who_is_late_is_dropped_and_its_upload_not_counted():
    made, how, simulation, _ = run("static")
    every = twin(made, how, simulation)
    deadline = float(np.median([t for times in every for t in times.values()]))
    _, _, _, records = run("static", deadline=deadline)
    assert any(LATE in record.dropped for record in records)
    up = shape_of(made, D, EPOCHS, 1).up.bytes
    for record, times in zip(records, every, strict=True):
        late = sum(t > deadline for t in times.values())
        assert record.dropped.get(LATE, 0) == late
        assert record.clients == len(times) - late
        assert record.up == record.clients * up
        assert record.network_seconds == pytest.approx(deadline if late else max(times.values()))


def test_a_round_whose_clients_are_all_late_leaves_the_model_as_it_was():
    _, _, simulation, records = run("static", deadline=1e-3)
    assert all(r.dropped == {LATE: COHORT} and r.loss is None and r.up == 0 for r in records)
    assert torch.equal(simulation.theta, simulation.theta0)
    assert math.fsum(r.network_seconds for r in records) == pytest.approx(1e-3 * len(records))


def test_who_never_answers_is_waited_for_until_the_deadline():
    _, _, _, with_deadline = run("static", dropout=0.5, deadline=1e6)
    _, _, _, without = run("static", dropout=0.5)
    for a, b in zip(with_deadline, without, strict=True):
        assert a.network_seconds == (1e6 if "no answer" in a.dropped else pytest.approx(b.network_seconds))
        assert b.network_seconds < 1e6


def test_a_network_changes_nothing_but_the_seconds():
    _, _, one, timed = run("time-varying")
    _, _, two, plain = run("time-varying", network=None)
    assert torch.equal(one.theta, two.theta)
    for a, b in zip(timed, plain, strict=True):
        assert a.network_seconds > b.network_seconds == 0
        a.network_seconds = 0.0
        assert a.same_as(b)


def test_work_is_counted_as_torch_counts_it():
    """A linear layer of 6 x 3: 2 * 18 forward; back, as much for the weights (its input needs none)."""
    assert flops_of(task(), task().theta0()) == 4 * 18


# Drawing.


@pytest.mark.parametrize("name", NETWORKS)
def test_links_follow_their_laws(name):
    """Medians and spreads of 40 000 clients, kind by kind, within five standard errors."""
    network, n = NETWORKS[name], 40_000
    for kind in network.kinds:
        links = draw(Network("one", "", (kind,)), n, 5)
        for field in ("down", "up", "latency", "flops"):
            law, logs = getattr(kind, field), np.log(getattr(links, field))
            assert abs(logs.mean() - math.log(law.median)) <= 5 * law.spread / math.sqrt(n) + 1e-9
            assert abs(logs.std() - law.spread) <= 5 * law.spread / math.sqrt(2 * n) + 1e-9
    assert network.source


def test_shares_are_kept_and_draws_are_those_of_the_key():
    kinds = (
        Kind(Law(1.0), Law(1.0), Law(1.0), Law(1.0), 1.0),
        Kind(Law(9.0), Law(9.0), Law(9.0), Law(9.0), 3.0),
    )
    links = draw(Network("two", "", kinds), 10_000, 1)
    assert abs(np.mean(links.down == 9.0) - 0.75) < 0.03
    assert np.array_equal(links.down, draw(Network("two", "", kinds), 10_000, 1).down)
    assert not np.array_equal(links.down, draw(Network("two", "", kinds), 10_000, 2).down)
    assert np.array_equal(links.down[:50], draw(Network("two", "", kinds), 50, 1).down)


def test_the_published_means_are_met():
    for name, down, up in (("4g", 36e6, 11.2e6),):
        links = draw(NETWORKS[name], 200_000, 0)
        assert links.down.mean() == pytest.approx(down, rel=0.06)
        assert links.up.mean() == pytest.approx(up, rel=0.06)
        assert np.mean(links.down < 5e6) == pytest.approx(0.2, abs=0.03)
    fixed = draw(Network("fixed", "", NETWORKS["mixed"].kinds[2:]), 200_000, 0)
    assert fixed.down.mean() == pytest.approx(86e6, rel=0.06)
    assert fixed.up.mean() == pytest.approx(46e6, rel=0.06)


# Settings.

VILLAGE = """
source = "a village"
[[kind]]
down = ["2Mbps", 0.8]
up = "300kbps"
latency = 0.6
flops = 1e9
"""


def test_a_file_becomes_what_it_says(tmp_path: Path):
    path = tmp_path / "village.toml"
    path.write_text(VILLAGE)
    config = make_config({"task": "quadratic", "rounds": 1, "network": str(path)})
    path.unlink()  # a resumed run does not need it any more
    network = config.plan(4).network
    assert network == Network("village", "a village", (Kind(Law(2e6, 0.8), Law(3e5), Law(0.6), Law(1e9)),))
    assert make_config(config.model_dump()).network == config.network == setting(config.network)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("5g", "unknown network '5g': choose one of 4g, dsl, lan, mixed"),
        ("missing.toml", "no such file"),
        ("{}", "not a network"),
        ('{"name":"x","source":"","kinds":[]}', "has no"),
        ('{"name":"x","source":"","kinds":[{"down":[0],"up":[1],"latency":[1],"flops":[1]}]}', "down of the"),
        ('{"name":"x","source":"","kinds":[{"down":[1,99],"up":[1],"latency":[1],"flops":[1]}]}', "spread"),
    ],
)
def test_bad_networks_are_refused(text, says):
    with pytest.raises(ConfigError, match=says):
        find(text)


@pytest.mark.parametrize("wrong", ["down = 'fast'", "down = -1", "colour = 3", "share = 0", "down = {}"])
def test_bad_files_are_refused(tmp_path: Path, wrong: str):
    path = tmp_path / "bad.toml"
    path.write_text(
        "\n".join(line for line in VILLAGE.splitlines() if line.split(" ")[0] != wrong.split()[0])
        + f"\n{wrong}\n"
    )
    with pytest.raises(ConfigError, match=r"bad"):
        make_config({"task": "quadratic", "rounds": 1, "network": str(path)})


def test_settings_that_would_change_nothing_are_refused():
    base = {"task": "quadratic", "rounds": 1}
    with pytest.raises(ConfigError, match="only with --network"):
        refuse_unused({"deadline"}, make_config({**base, "deadline": 3}))
    with pytest.raises(ConfigError, match="links that they have"):
        refuse_unused({"network"}, make_config({**base, "network": "4g", "engine": "flower-sim"}))


def test_a_run_on_a_network_says_its_hours(tmp_path: Path):
    config = make_config({"task": "quadratic", "rounds": 3, "dim": 8, "width": 100, "network": "mixed"})
    found = summarise(running.start(config, tmp_path / "run"))
    assert found.facts.network == "mixed"
    assert found.network_seconds
    assert found.timed[-1][0] == pytest.approx(found.network_seconds)


# The planner.


def test_the_slowest_of_a_cohort_on_average():
    times, rng = sample(NETWORKS["4g"]).seconds(1e4, 1e4, 1e9), np.random.default_rng(0)
    for cohort in (1, 7, 50):
        drawn = rng.choice(times, (20_000, cohort)).max(1)
        assert slowest(times, cohort) == pytest.approx(drawn.mean(), abs=5 * drawn.std() / math.sqrt(20_000))


def test_the_plan_is_what_a_run_takes():
    """Where every client is alike nothing is drawn, and plan and run agree."""
    alike = Network("alike", "", (Kind(Law(1e4), Law(5e3), Law(0.1), Law(1e5)),))
    how = Plan(cohort=COHORT, lr=0.01, epochs=EPOCHS, key=3, network=alike)
    simulation = Simulation(task(), fit("static", dim=4, key=3), how)
    simulation.clock.work = 6 * D  # as the planner counts it
    seconds = math.fsum(record.network_seconds for record in simulation)
    link = {"up_bps": 1, "down_bps": 1, "network": alike, "examples": 3, "names": ("static",)}
    (row,) = planned(D, 4, EPOCHS, clients=CLIENTS, cohort=COHORT, **link)
    assert row.training_seconds == pytest.approx(seconds)
