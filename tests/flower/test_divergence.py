"""A fleet whose training blows up: the last good model is kept, nonsense is called so."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import torch

pytest.importorskip("flwr", reason="needs the extra narrowcast[flower]")
import narrowcast as nc
from fake_grid import FakeGrid
from federations import PATIENT, impatient, settings, whole
from narrowcast.errors import Diverged
from narrowcast.flower import client_app
from narrowcast.flower.federation import Federation
from narrowcast.flower.messages import Answer, Upload, pack, unpack
from narrowcast.flower.server import driver
from narrowcast.runs import modelfile, run_folder, runner
from narrowcast.tasks import build

__all__ = ["impatient"]
pytestmark = pytest.mark.usefixtures("impatient")


def test_a_fleet_whose_every_update_is_nan_keeps_its_last_good_model(tmp_path: Path) -> None:
    """Five good rounds, then NaN: the run stops, the file holds the last one trained from."""
    config, good, fleet = settings(clients=3, cohort=3, rounds=20), list[torch.Tensor](), list[Federation]()
    grid = FakeGrid(client_app(config=config), 3)

    def nan(node: int, honest: Any) -> Any:
        answer = unpack(honest, Answer) if len(good) >= 5 else None
        return pack(Answer(answer.have, [Upload(node - 100, b"", math.nan)])) if answer else honest

    def begin(task: Any, method: Any, plan: Any, folder: Path) -> Federation:
        fleet.append(Federation(task, method, plan, grid, PATIENT))
        return fleet[0]

    def keep(facts: object, record: object) -> None:
        good.append(fleet[0].theta.clone())

    grid.lie = nan
    with pytest.raises(Diverged, match=r"lower lr .*last good model, of version 4, is kept"):
        runner.start(config, tmp_path, keep, force=True, driver=begin)
    path = tmp_path / run_folder.LAST_GOOD
    theta0 = build(config.task, config.task_options()).theta0()
    assert torch.equal(modelfile.rebuild(modelfile.read(path), theta0), good[3])
    task = build(config.task, config.task_options())
    nc.apply(task.module, path)  # type: ignore[attr-defined]
    assert torch.equal(task.buffer(), good[3])
    with pytest.raises(Diverged, match=rf"Its last good model is {path}.*lower --lr"):
        runner.resume(tmp_path, driver=begin)


def test_a_fleet_that_ends_in_finite_nonsense_has_diverged_and_keeps_none_of_it(tmp_path: Path) -> None:
    config = settings("signsgd", lr=1e9, clients=3, cohort=3)
    with pytest.raises(Diverged, match=r"at first: lower lr \(the model was taken back 3 times"):
        runner.start(
            config, tmp_path, force=True, driver=driver(FakeGrid(client_app(config=config), 3), PATIENT)
        )
    assert run_folder.diverged(tmp_path) is not None
    assert not (tmp_path / run_folder.LAST_GOOD).exists()
    assert not run_folder.finished(tmp_path)


def test_a_fleet_whose_losses_are_negative_is_not_taken_back() -> None:
    """As likelihoods and cosines are: ten thousand times less is less."""
    run, grid = whole(settings(clients=3, cohort=3), nodes=3)

    def negative(node: int, honest: Any) -> Any:
        answer = unpack(honest, Answer)
        return pack(Answer(answer.have, [Upload(u.client, u.data, u.loss - 10) for u in answer.uploads]))

    grid.lie = negative
    assert [record.rolled_back for record in run] == [False] * run.rounds
    assert run.first is not None
    assert run.first < 0


@pytest.mark.parametrize("nodes", [2, 3])
@pytest.mark.parametrize("lie", [math.nan, 1e30])
def test_one_node_alone_does_not_end_a_run_by_what_it_says_of_the_model(lie: float, nodes: int) -> None:
    """In rounds of one client nobody contradicts it at once: the next who can train does."""
    run, grid = whole(settings(clients=nodes, cohort=1, rounds=24), nodes=nodes)

    def lies(node: int, records: Any) -> Any:
        answer = unpack(records, Answer)
        told = [Upload(u.client, u.data if lie < math.inf else b"", lie) for u in answer.uploads]
        return pack(Answer(answer.have, told)) if node == 100 and run.round >= nodes else records

    grid.lie = lies
    assert not any(record.rolled_back for record in run)
    assert run.round == 24


def test_rounds_of_one_client_end_too_where_two_nodes_cannot_train() -> None:
    run, grid = whole(settings(clients=3, cohort=1, rounds=40), nodes=3)
    grid.lie = lambda node, records: (
        pack(Answer(unpack(records, Answer).have, [Upload(node - 100, b"", math.nan)]))
        if run.round >= 6
        else records
    )
    with pytest.raises(Diverged, match=r"lower lr .*3 times in a row"):
        list(run)


@pytest.mark.parametrize("said", [1e-30, -1.0, 1e30])
def test_who_comes_first_does_not_say_what_the_loss_was_at_first(said: float) -> None:
    """One of twelve, alone in the first round: what later losses are held against is five clients' median."""
    config = settings(cohort=1, rounds=12)
    honest, _ = whole(config)
    run, grid = whole(config)

    def lies(node: int, records: Any) -> Any:
        answer = unpack(records, Answer)
        told = [Upload(u.client, u.data, said) for u in answer.uploads]
        return pack(Answer(answer.have, told)) if run.round == 0 else records

    grid.lie = lies
    found = [run.step() for _ in range(4)]
    assert run.first is None
    again, _ = whole(config)
    again.restore(run.state())
    assert not any(record.rolled_back for record in [*found, *run])
    list(honest)
    assert torch.equal(run.theta, honest.theta)
    assert run.first == pytest.approx(honest.first, rel=0.5)
    again.step()
    assert again.first == run.first
    old = {key: value for key, value in run.state().items() if key != "firsts"}  # of an earlier version
    again.restore(old)
    assert again.first == run.first
