"""A server killed in every round goes on to the model of an undisturbed one, for all with private state."""

from pathlib import Path

import pytest

pytest.importorskip("flwr", reason="needs the extra narrowcast[flower]")
from fake_grid import FakeGrid
from federations import impatient, settings, whole  # noqa: F401
from fitting import made
from narrowcast.flower import FleetSettings, client_app
from narrowcast.flower.server import driver
from narrowcast.methods import METHODS
from narrowcast.rounds import records
from narrowcast.runs import checkpoints, modelfile, run_folder, runner
from narrowcast.runs.config import RunConfig
from narrowcast.tasks import build

pytestmark = pytest.mark.usefixtures("impatient")
ROUNDS = 6
STATEFUL = [name for name in METHODS if made(name).stateful]
HOW = FleetSettings(wait=600.0)


class Killed(BaseException):
    """What no handler of ours catches."""


class MortalGrid(FakeGrid):
    """Kills its server in a round, once its nodes have trained and before it has heard of it."""

    def __init__(self, config: RunConfig, folder: Path, nodes: int = 3) -> None:
        super().__init__(client_app(config=config), nodes, {"narrowcast-folder": str(folder)})
        self.trained = 0
        self.dies_after = -1  # trainings

    def pull_messages(self, message_ids):
        if 0 <= self.dies_after <= self.trained:
            raise Killed
        return super().pull_messages(message_ids)

    def push_messages(self, messages):
        messages = list(messages)
        self.trained += sum(message.metadata.message_type == "train" for message in messages)
        return super().push_messages(messages)


class SlowWrites(checkpoints.Checkpoints):
    """Writing takes so long that only every third round is kept."""

    def take_if_due(self) -> None:
        self.due = 0.0 if self.training.round % 3 == 0 else float("inf")
        super().take_if_due()


def lives(config: RunConfig, grid: MortalGrid, folder: Path) -> int:
    """Run to the end, killed once in every round: in the middle of the even ones, after the odd ones."""
    count = 0
    for deadly in range(ROUNDS):

        def tell(facts, record, deadly=deadly):
            grid.dies_after = grid.trained + 1 if record.round + 1 == deadly and deadly % 2 == 0 else -1
            if record.round == deadly and deadly % 2:
                raise Killed

        grid.dies_after = grid.trained + 1 if deadly == 0 else -1
        with pytest.raises(Killed):
            go(config, grid, folder, tell)
        for part in range(grid.nodes):
            grid.restart(part)
        count += 1
    grid.dies_after = -1
    go(config, grid, folder, None)
    return count


def go(config: RunConfig, grid: MortalGrid, folder: Path, tell) -> None:
    if run_folder.is_run(folder):
        runner.resume(folder, tell, driver=driver(grid, HOW))
    else:
        runner.start(config, folder, tell, driver=driver(grid, HOW))


@pytest.mark.parametrize("slow", [False, True], ids=["every round", "every third"])
@pytest.mark.parametrize("method", STATEFUL)
def test_killed_in_every_round_a_server_goes_on_to_the_same_model(
    method: str, slow: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(checkpoints, "COSTS", 0.0)
    if slow:
        monkeypatch.setattr(runner, "Checkpoints", SlowWrites)
    config = settings(method, clients=6, cohort=4, rounds=ROUNDS, lr=0.05)
    undisturbed, _ = whole(config, nodes=3)
    expected = list(undisturbed)
    grid = MortalGrid(config, tmp_path / "nodes")
    assert lives(config, grid, tmp_path / "run") == ROUNDS
    done = records.read(tmp_path / "run" / run_folder.RECORDS)
    assert [(r.round, r.clients, r.up, r.lost) for r in done] == [
        (r.round, r.clients, r.up, 0) for r in expected
    ]
    task = build("digits", config.task_options())
    model = modelfile.load_model(tmp_path / "run" / run_folder.MODEL, task.theta0())
    assert model.equal(undisturbed.theta)


def test_nodes_keep_no_more_than_four_states_of_a_client(tmp_path: Path) -> None:
    """The newest, the one that was counted, the one before that, and the one of the server's checkpoint."""
    config = settings("topk", clients=6, cohort=6, rounds=ROUNDS, lr=0.05)
    runner.start(config, tmp_path / "run", driver=driver(MortalGrid(config, tmp_path / "nodes"), HOW))
    for client in range(6):
        assert 1 <= len(list(tmp_path.glob(f"nodes/*/*/client-{client}-*"))) <= 4


def test_two_runs_of_equal_settings_do_not_share_a_nodes_shelf(tmp_path: Path) -> None:
    config = settings("topk", clients=6, cohort=6, rounds=2, lr=0.05)
    grid = MortalGrid(config, tmp_path / "nodes")
    for name in ("a", "b"):
        runner.start(config, tmp_path / name, driver=driver(grid, HOW))
    assert len(list((tmp_path / "nodes").iterdir())) == 2
    first, second = (records.read(tmp_path / name / run_folder.RECORDS) for name in ("a", "b"))
    assert all(a.same_as(b) for a, b in zip(first, second, strict=True))
