"""What others bring works whatever way it came in; and no name from outside opens a door by itself."""

from __future__ import annotations

import pickle
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import msgspec
import pytest
import tomli_w
import torch
from typer.testing import CliRunner

import narrowcast as nc
import outside
from doors import Doors
from fake_grid import FakeGrid
from narrowcast import registry
from narrowcast.cli.app import app
from narrowcast.errors import ConfigError
from narrowcast.flower import FleetSettings, client_app
from narrowcast.flower.server import begin_or_resume, driver
from narrowcast.flower.settings import run_settings
from narrowcast.methods import METHODS, Method
from narrowcast.rounds import records
from narrowcast.runs import make_config, modelfile, own, runner
from narrowcast.subspaces import KINDS, make, subspace
from narrowcast.tasks import TASKS, build
from narrowcast.wire import FORMATS, WireError
from narrowcast.wire import block as block_of
from narrowcast.wire.messages import Block
from narrowcast.wire.table import name_of, number_of
from places import ROOT

METHOD, TASK = "outside:Clipped", "outside:blobs"


def by_entry_point(doors: Doors) -> tuple[str, str]:
    doors.install("methods", clipped=METHOD)
    doors.install("tasks", blobs=TASK)
    return "clipped", "blobs"


def by_register(doors: Doors) -> tuple[str, str]:
    nc.register("method", "clipped", outside.Clipped)
    nc.register("task", "blobs", TASK)
    return "clipped", "blobs"


def by_place(doors: Doors) -> tuple[str, str]:
    return METHOD, TASK


every_door = pytest.mark.parametrize("door", [by_entry_point, by_register, by_place])
FLAGS = {"clip": 0.5, "noise": 0.1, "clients": 8, "cohort": 4, "rounds": 6, "lr": 0.5}


def call(*words: object, code: int = 0) -> str:
    done = CliRunner().invoke(app, list(map(str, words)), env={"COLUMNS": "120"})
    assert done.exit_code == code, done.output
    return done.output


def words(**flags: object) -> list[object]:
    return [word for name, value in flags.items() for word in (f"--{name.replace('_', '-')}", value)]


def theta_of(folder: Path) -> torch.Tensor:
    return runner.rebuild(folder)[1]


@every_door
def test_it_trains_resumes_and_is_exported_with_flags_of_its_own(
    door: Any, doors: Doors, tmp_path: Path
) -> None:
    method, task = door(doors)
    call("run", task, "--method", method, *words(**FLAGS), "--out", tmp_path / "run")
    table = tomllib.loads((tmp_path / "run/config.toml").read_text())
    assert (table["clip"], table["noise"], table["quiet"]) == (0.5, 0.1, False)
    naive = nc.Simulation(
        outside.blobs(clients=8, key=make_config(table).key, noise=0.1),
        outside.Clipped(clip=0.5),
        make_config(table).plan(8),
    )
    list(naive)
    assert torch.equal(theta_of(tmp_path / "run"), naive.theta)

    left = iter(range(2))
    runner.start(make_config({**table}), tmp_path / "cut", until=lambda: next(left, None) is None)
    assert not (tmp_path / "cut/model.narrowcast").exists()
    call("run", "--resume", tmp_path / "cut")
    assert torch.equal(theta_of(tmp_path / "cut"), naive.theta)
    call("export", tmp_path / "cut", "--to", tmp_path / "weights.pt")
    assert "0.bias" in torch.load(tmp_path / "weights.pt", weights_only=True)
    assert f"{method} c=0.5" in call("show", tmp_path / "cut")


@every_door
def test_its_settings_are_checked_like_ours_and_shown(door: Any, doors: Doors) -> None:
    method, task = door(doors)
    common = ("run", task, "--method", method, "--rounds", 2)
    assert "--clip: Input should be greater than 0, got -1" in call(*common, "--clip", -1, code=2)
    assert "is not a valid float" in call(*common, "--noise", "loud", code=2)
    assert "No such option '--clap'" in call(*common, "--clap", 1, code=2)
    assert "does not use it" in call(*common, "--trainable", "biases", code=2)
    assert "does not use it" in call(*common, "--dim", 4, code=2)
    assert "No such option '--clip'" in call("run", task, "--rounds", 2, "--clip", 1, code=2)
    shown = call("run", task, "--method", method, "--help")
    assert "--clip FLOAT" in shown
    assert "--noise FLOAT" in shown
    assert "--quiet" in shown
    page = call("methods", method)
    assert "sum_w clip(v_w, c)" in page
    assert "--clip" in page
    assert "the largest magnitude" in page


@every_door
def test_it_is_compared(door: Any, doors: Doors, tmp_path: Path) -> None:
    """A shared setting that only one of the runs has is that one's."""
    method, task = door(doors)
    rows = [{"method": method}, {"method": method, "clip": 0.1}, {"method": "static", "dim": 4}]
    shared = {"task": task, "clip": 0.5, **{k: v for k, v in FLAGS.items() if k != "clip"}}
    (tmp_path / "c.toml").write_text(tomli_w.dumps({**shared, "run": rows}))
    text = call("compare", tmp_path / "c.toml", "--out", tmp_path / "out")
    for label in (f"{method} c=0.5", f"{method} c=0.1", "static d=4"):
        assert label in text
    assert (tmp_path / "out/frontier.png").is_file()
    call("compare", tmp_path / "c.toml", "--out", tmp_path / "out")  # all there is left as it is
    (tmp_path / "c.toml").write_text(tomli_w.dumps({**shared, "run": rows[2:]}))
    call("compare", tmp_path / "c.toml", "--out", tmp_path / "other", code=2)


@every_door
def test_it_is_a_candidate_where_bytes_are_few(door: Any, doors: Doors, tmp_path: Path) -> None:
    method, task = door(doors)
    text = call(
        "measure", task, "--suggest", "--budget", "100kB", "--method", method, "--clip", 0.5, "--noise", 0.1,
        *words(clients=8, cohort=4, rounds=4, repeats=1, rates=1), "--out", tmp_path / "m", "--full-lr", 0.5,
    )  # fmt: skip
    tried = msgspec.json.decode((tmp_path / "m/suggest.json").read_bytes())["options"]
    (mine,) = [option for option in tried if option["method"] == method]
    assert mine["own"]["clip"] == 0.5
    assert mine["predicted"] == pytest.approx(mine["sent"])
    assert method in text


@every_door
def test_the_model_file_is_read_where_the_method_is_here(door: Any, doors: Doors, tmp_path: Path) -> None:
    method, task = door(doors)
    call("run", task, "--method", method, *words(**FLAGS), "--out", tmp_path / "run")
    model = modelfile.read(tmp_path / "run/model.narrowcast")
    assert (model.method, model.settings["clip"]) == (method, 0.5)
    assert (model.base.task, model.base.settings["noise"]) == (task, 0.1)


# Flower: the name travels, never code.


def fleet(tmp_path: Path, table: dict[str, object], **node: object) -> tuple[FakeGrid, Any]:
    """A grid whose nodes and server learn of the run by its config alone, as a real one's do."""
    run_config = {f"narrowcast.{name.replace('_', '-')}": value for name, value in table.items()}
    grid = FakeGrid(client_app(), 8, node)
    for context in grid.contexts.values():
        context.run_config = run_config
    settings = FleetSettings(folder=str(tmp_path / "fleet"), wait=1.0, min_clients=8)

    def train() -> Path:
        return begin_or_resume(run_settings(run_config), settings, driver(grid, settings), None)

    return grid, train


@every_door
def test_nodes_train_what_is_installed_or_what_they_allow_by_name(
    door: Any, doors: Doors, tmp_path: Path
) -> None:
    method, task = door(doors)
    table = {"task": task, "method": method, **FLAGS}
    if door is by_place:
        own.admit(table)  # at the server; nodes are asked to allow it
    here = runner.start(make_config({**table, "per_client": True}), tmp_path / "here")
    listed = "" if door is by_entry_point else f"{METHOD}, {TASK}"
    _, train = fleet(tmp_path, table, **({"narrowcast-allow": listed} if listed else {}))
    folder = train()
    torch.testing.assert_close(
        theta_of(folder), theta_of(here), rtol=1e-5, atol=1e-6
    )  # sums in another order
    first, second = (records.read(path / "records.jsonl") for path in (here, folder))
    assert [(r.up, r.down) for r in first] == [(r.up, r.down) for r in second]


def test_a_name_from_the_wire_imports_nothing(
    doors: Doors, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither in a run's config at a node or a server, nor in a model file, nor by any of its settings."""
    (tmp_path / "evil.py").write_text("raise SystemExit('imported')")
    monkeypatch.syspath_prepend(str(tmp_path))
    good = {"task": "digits", "method": "static", "rounds": 1}
    for key in ("task", "method", "subspace", "uplink"):
        config = {f"narrowcast.{k}": v for k, v in {**good, key: "evil:thing"}.items()}
        with pytest.raises(ConfigError, match="'evil:thing' is not here"):
            run_settings(config)
        with pytest.raises(ConfigError, match="only where it was"):
            run_settings(config, allowed=("evil2:thing",))
    with pytest.raises(ConfigError, match="only where it was"):
        make_config({**good, "method": "evil:thing"})
    run = runner.start(make_config({**good, "task": "quadratic", "dim": 4, "width": 20}), tmp_path / "run")
    model = modelfile.read(run / "model.narrowcast")
    for change in ({"method": "evil:thing"}, {"settings": {**model.settings, "subspace": "evil:thing"}}):
        changed = msgspec.structs.replace(model, **change)
        (tmp_path / "m").write_bytes(msgspec.msgpack.encode(changed))
        with pytest.raises(WireError, match="evil:thing"):
            modelfile.load_model(
                tmp_path / "m",
                build(
                    "quadratic",
                    make_config({**good, "task": "quadratic", "dim": 4, "width": 20}).task_options(),
                ).theta0(),
            )
    (run / "facts.json").write_text((run / "facts.json").read_text().replace("static", "evil:thing"))
    (run / "config.toml").write_text((run / "config.toml").read_text().replace("static", "evil:thing"))
    assert "evil:thing" in call("show", run)
    assert "evil" not in sys.modules


def test_a_node_refuses_what_its_config_does_not_list(doors: Doors, tmp_path: Path) -> None:
    method, task = by_entry_point(doors)
    table = {f"narrowcast.{k}": v for k, v in {"task": task, "method": method, **FLAGS}.items()}
    assert run_settings(table, allowed=(method, task)).method == method
    with pytest.raises(
        ConfigError, match=r"'clipped' is installed on this node, but narrowcast-allow .* blobs"
    ):
        run_settings(table, allowed=(task,))
    with pytest.raises(ConfigError, match=r"unknown method 'absent'"):
        run_settings({**table, "narrowcast.method": "absent"})
    grid, _ = fleet(tmp_path, {"task": task, "method": method, **FLAGS}, **{"narrowcast-allow": "blobs"})
    reply = _asked(grid)
    assert reply.has_error()
    assert "narrowcast-allow" in reply.error.reason


def _asked(grid: FakeGrid) -> Any:
    from flwr.app import Message, MessageType

    from narrowcast.flower.messages import Ask, pack

    message = Message(pack(Ask(b"the run.")), dst_node_id=100, message_type=MessageType.QUERY)
    return grid.send_and_receive([message])[0]


# Kinds of A and number formats.


def test_a_kind_of_a_trains_and_is_found_again_by_the_name_it_came_with(doors: Doors, tmp_path: Path) -> None:
    nc.register("subspace", "backwards", outside.Backwards)
    A = subspace("backwards", 300, 70, 5)
    assert (A.spec.kind, make(A.spec).spec) == ("backwards", A.spec)
    x = torch.randn(70)
    assert torch.equal(A.expand(x), subspace("rotation", 300, 70, 5).expand(x).flip(0))
    assert torch.equal(make(A.spec).expand(x), A.expand(x))
    for name in ("backwards", "outside:Backwards"):
        folder = tmp_path / name.replace(":", "-")
        call("run", "quadratic", "--subspace", name, *words(dim=8, width=50, rounds=5), "--out", folder)
        assert modelfile.read(folder / "model.narrowcast").settings["subspace"] == name
        assert theta_of(folder).shape == (50,)


def test_a_number_format_has_a_number_of_its_own_and_is_read_only_where_it_is_used(
    doors: Doors, tmp_path: Path
) -> None:
    doors.install("formats", bf16="outside:Brain16")
    number = number_of("bf16")
    assert number in range(32, 120)
    data = b"\x80\x3f"
    with pytest.raises(WireError, match=f"unknown number format {number}"):  # installed, but not asked for
        Block(number, data).numbers(1)
    nc.method("static", dim=4, uplink="bf16")
    assert name_of(number) == "bf16"
    assert Block(number, data).numbers(1).tolist() == [1.0]
    with pytest.raises(WireError, match="NaN or an infinity"):
        Block(number, b"\x80\x7f").numbers(1)
    call("run", "quadratic", "--uplink", "bf16", *words(dim=8, width=50, rounds=5), "--out", tmp_path / "run")
    up = [r.up for r in records.read(tmp_path / "run/records.jsonl")]
    call("run", "quadratic", *words(dim=8, width=50, rounds=5), "--out", tmp_path / "plain")
    assert [r.up - 2 * 8 * r.clients for r in records.read(tmp_path / "plain/records.jsonl")] == up


def test_two_formats_with_one_number_are_refused(doors: Doors) -> None:
    """By the pigeonhole there are two among 89 names."""
    seen: dict[int, str] = {}
    for i in range(89):
        name = f"format-{i}"
        nc.register("format", name, outside.Brain16())
        if number_of(name) in seen:
            break
        seen[number_of(name)] = name
    FORMATS.find(seen[number_of(name)])
    with pytest.raises(ValueError, match="have the same number: rename one"):
        block_of(torch.ones(1), name)


# Commands, and what is wrong with what others bring.


def test_a_command_by_its_place_and_by_register(doors: Doors) -> None:
    assert "hello you" in call("outside:hello")
    nc.register("command", "greet", outside.hello)
    assert "hello me" in call("greet", "--name", "me")
    assert "Say hello, from outside." in call("--help")
    assert "there is no command 'outsider'" in call("outsider", code=2)
    assert "cannot be loaded from outside:nobody" in call("outside:nobody", code=2)


class Bare(Method[Any]):
    pass


class Loose(outside.Clipped):
    extra: int = 3


@pytest.mark.parametrize(
    ("what", "thing", "message"),
    [
        ("method", Bare, "lacks compress, download"),
        ("method", Loose, "put @dataclass"),
        ("method", 7, "must be a class that inherits from Method"),
        ("method", "outside:missing", "cannot be loaded from outside:missing: AttributeError"),
        ("method", "no.such.module:it", "cannot be loaded from no.such.module:it: ModuleNotFoundError"),
        ("task", 7, "must be a function that returns a task"),
        ("task", lambda options: 7, "returned int, which lacks name, layout"),
        ("task", lambda alpha=0.1: 7, "alpha is 0.5 by default in every run, not 0.1"),
        ("subspace", outside.Clipped, "must be a class that inherits from Subspace"),
        ("format", object(), "lacks name, exact, size, pack, unpack"),
    ],
)
def test_what_is_wrong_with_it_is_said(what: str, thing: Any, message: str, doors: Doors) -> None:
    nc.register(what, "mine", thing)
    field = {"format": "uplink"}.get(what, what)
    with pytest.raises(ValueError, match=message):
        runner.prepare(make_config({"task": "quadratic", "rounds": 1, "dim": 4, field: "mine"})).simulation()


def test_an_option_that_contradicts_a_setting_of_every_run_is_refused(doors: Doors) -> None:
    from dataclasses import dataclass

    @dataclass(frozen=True)
    class Ranked(outside.Clipped):
        rank: int = 4

    nc.register("method", "ranked", Ranked)
    with pytest.raises(ConfigError, match="rank is 2 by default in every run, not 4"):
        make_config({"task": "quadratic", "rounds": 1, "method": "ranked"})
    nc.register("task", "priced", lambda lr=3.0: 7)
    with pytest.raises(ConfigError, match="lr is a setting of every run: rename"):
        make_config({"task": "priced", "rounds": 1})


def test_names_are_checked_ours_cannot_be_replaced_and_a_registration_can(doors: Doors) -> None:
    with pytest.raises(ValueError, match="narrowcast's own"):
        nc.register("method", "static", outside.Clipped)
    for name in ("Static", "a b", "", "-", "a--b", "a:", "1a"):
        with pytest.raises(ValueError, match="is no name for a method"):
            nc.register("method", name, outside.Clipped)
    with pytest.raises(ValueError, match="unknown kind of thing to register 'optimiser'"):
        nc.register("optimiser", "mine", 7)
    nc.register("method", "mine", 7)
    nc.register("method", "mine", outside.Clipped)
    assert isinstance(nc.method("mine", clip=1.0), outside.Clipped)
    doors.install("methods", static=METHOD)
    assert METHODS["static"].kind is not outside.Clipped
    assert "static" not in METHODS.others


def test_a_kind_of_a_that_is_registered_again_is_the_new_one_in_methods_too(doors: Doors) -> None:
    class Forwards(outside.Backwards):
        pass

    for kind in (outside.Backwards, Forwards, outside.Backwards):
        nc.register("subspace", "backwards", kind)
        method = nc.method("static", dim=8, subspace="backwards", key=3)
        assert type(method.matrix(100, 0, 0)) is kind
        assert method.matrix(100, 0, 0) is method.matrix(100, 0, 0)


def test_two_packages_that_declare_one_name_are_both_named(doors: Doors) -> None:
    doors.install("methods", clipped=METHOD)
    doors.install("methods", clipped="elsewhere:Clipped")
    with pytest.raises(ValueError, match=r"declared by elsewhere:Clipped and outside:Clipped"):
        METHODS.find("clipped")


def test_a_broken_one_is_said_and_the_others_are_listed(doors: Doors) -> None:
    doors.install("methods", broken="no.such.module:it", clipped=METHOD)
    text = call("methods")
    assert "the method 'broken' cannot be loaded" in text
    assert "clipped: not linear" in text
    assert "clipped" in call("run", "--help")


def test_listing_names_imports_nothing(doors: Doors) -> None:
    doors.install("methods", broken="no.such.module:it")
    assert "broken" in METHODS
    assert list(METHODS)[-1] == "broken"
    assert len(METHODS) == len(METHODS.own) + 1
    assert [*TASKS.own, *KINDS.own, *FORMATS.own] == [*TASKS, *KINDS, *FORMATS]


def test_settings_of_its_own_cross_processes(doors: Doors) -> None:
    """Ray's workers get the configuration pickled."""
    config = make_config({"task": TASK, "method": METHOD, **FLAGS}, admit=True)
    there = (
        "import pickle, sys; config = pickle.loads(sys.stdin.buffer.read()); "
        "print(config.clip, config.build_method().clip, type(config).__mro__[1].__name__)"
    )
    done = subprocess.run(
        [sys.executable, "-c", there], input=pickle.dumps(config), capture_output=True, cwd=ROOT / "tests"
    )
    assert done.stdout.decode().split() == ["0.5", "0.5", "RunConfig"], done.stderr.decode()
    assert pickle.loads(pickle.dumps(config)) == config


def test_other_settings_go_when_the_method_does(doors: Doors) -> None:
    config = make_config({"task": TASK, "method": METHOD, **FLAGS}, admit=True)
    static = config.but(method="static", dim=9)
    assert "clip" not in static.model_dump()
    assert (static.model_dump()["noise"], static.dim) == (0.1, 9)
    assert config.but(lr=0.25).model_dump() == {**config.model_dump(), "lr": 0.25}


@pytest.mark.parametrize("per_client", [False, True])
@pytest.mark.parametrize("returned", [lambda v: v, lambda v: (None, v)])
def test_a_compress_that_returns_no_payload_is_told_what_to_return(returned: Any, per_client: bool) -> None:
    class Bad(outside.Clipped):
        linear = property(lambda self: not per_client)

        def compress(self, private: Any, v: Any, model: Any, key: int) -> Any:
            return returned(v)

    run = nc.Simulation(outside.blobs(), Bad(), nc.Plan(cohort=4, lr=0.1, rounds=1))
    with pytest.raises(TypeError, match=r"Bad returned .*Tensor: return \(private, payload\("):
        run.step()


@pytest.mark.parametrize(
    ("place", "advice"),
    [
        ("absent_file:task", "folder where absent_file.py lies, or put that folder on PYTHONPATH"),
        ("absent_package.part:task", "folder where the folder absent_package lies, or put that"),
        ("outside.py:blobs", ": write outside:blobs"),
        ("narrowcast_broken:task", "No module named 'absent_elsewhere'$"),  # not its own
    ],
)
def test_a_place_that_is_not_found_is_said_with_what_to_do(
    place: str, advice: str, doors: Doors, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "narrowcast_broken.py").write_text("import absent_elsewhere")
    monkeypatch.syspath_prepend(str(tmp_path))
    with pytest.raises(ConfigError, match=advice):
        make_config({"task": place, "rounds": 1}, admit=True)


def test_what_the_current_folder_has_is_found_after_what_is_installed(
    doors: Doors, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "path", [entry for entry in sys.path if entry])
    (tmp_path / "narrowcast_here.py").write_text("from outside import blobs, Clipped\n")
    (tmp_path / "torch.py").write_text("raise SystemExit('the wrong torch')")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigError, match="'narrowcast_here:blobs' is not here"):
        make_config({"task": "narrowcast_here:blobs", "rounds": 1})
    assert make_config({"task": "narrowcast_here:blobs", "rounds": 1}, admit=True).task
    assert sys.path[-1] == str(tmp_path)
    assert registry._at("torch:Tensor") is torch.Tensor
