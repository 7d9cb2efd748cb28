"""The exported model: small, exact, and refused when it is damaged, foreign or hostile."""

import pickle
import zlib
from dataclasses import replace
from math import prod
from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from narrowcast.methods import METHODS, RoundInfo
from narrowcast.numerics.flat import Layout
from narrowcast.runs import make_config, modelfile, read_toml, runner
from narrowcast.runs.prepared import base_of
from narrowcast.tasks import build
from narrowcast.wire.earlier import digest1
from narrowcast.wire.messages import WireError, digest

D = 500


def trained(name: str, path: Path) -> tuple[torch.Tensor, torch.Tensor]:
    """A model after a few steps on random updates, saved to `path`: (theta0, theta)."""
    options = METHODS[name].fitting({"key": 5, "dim": 20, "subspaces": 3, "refresh": 2})
    method, layout = METHODS[name].make(**options), Layout(("w", "b"), ((48, 10), (20,)))
    generator = torch.Generator().manual_seed(1)
    theta0 = torch.randn(D, generator=generator)
    server = method.server(theta0, layout)
    model = method.newcomer(theta0, layout)
    for number in range(5):
        model, _ = method.reconcile(model, method.download(server, model.version), server.version)
        acc = method.zero(server)
        for key in range(4):
            _, up = method.compress(None, torch.randn(D, generator=generator), model, key)
            acc = method.add(acc, up, 1.0)
        server = method.step(server, acc, RoundInfo(number, 0, False, 0.1))
    modelfile.save(path, name, options, server, theta0, layout)
    return theta0, method.theta(server).clone()


@pytest.mark.parametrize("name", METHODS)
def test_loading_gives_the_servers_weights_bit_for_bit(name: str, tmp_path: Path) -> None:
    theta0, theta = trained(name, tmp_path / "m")
    assert torch.equal(modelfile.load_model(tmp_path / "m", theta0), theta)
    assert modelfile.read(tmp_path / "m").theta == digest(theta)


def test_another_theta0_is_refused(tmp_path: Path) -> None:
    theta0, _ = trained("static", tmp_path / "m")
    other = theta0.clone()
    other[7] += 1e-6
    for wrong in (other, theta0[:-1]):
        with pytest.raises(ValueError, match="another theta0"):
            modelfile.load_model(tmp_path / "m", wrong)


def test_a_pickle_is_not_opened(tmp_path: Path) -> None:
    class Run:
        def __reduce__(self) -> tuple[object, tuple[str]]:
            return exec, (f"open({str(tmp_path / 'ran')!r}, 'w')",)

    (tmp_path / "m").write_bytes(pickle.dumps(Run()))
    with pytest.raises(WireError):
        modelfile.load_model(tmp_path / "m", torch.zeros(D))
    assert not (tmp_path / "ran").exists()


@settings(max_examples=200, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.data())
def test_a_flipped_bit_is_never_loaded_as_another_model(tmp_path: Path, data: st.DataObject) -> None:
    path = tmp_path / "m"
    if not path.exists():
        trained("time-varying", path)
    theta0, theta = torch.randn(D, generator=torch.Generator().manual_seed(1)), modelfile.read(path).theta
    raw = bytearray(path.read_bytes())
    bit = data.draw(st.integers(0, 8 * len(raw) - 1))
    raw[bit // 8] ^= 1 << bit % 8
    (tmp_path / "flipped").write_bytes(raw)
    try:
        loaded = modelfile.load_model(tmp_path / "flipped", theta0)
    except ValueError:
        return
    assert digest(loaded) == theta  # the bit was one that the weights do not depend on


def test_a_file_that_claims_a_huge_model_allocates_nothing(tmp_path: Path) -> None:
    theta0, _ = trained("static", tmp_path / "m")
    model = modelfile.read(tmp_path / "m")
    change = msgspec.structs.replace
    large = Layout(("w",), ((1 << 47,),))
    huge = change(model, layout=large, settings={**model.settings, "dim": 1 << 50})
    (tmp_path / "huge").write_bytes(msgspec.msgpack.encode(huge))
    with pytest.raises(ValueError, match="another theta0"):
        modelfile.load_model(tmp_path / "huge", theta0)
    wide = change(model, settings={**model.settings, "subspaces": 4000, "dim": 1 << 45})
    (tmp_path / "wide").write_bytes(msgspec.msgpack.encode(wide))
    with pytest.raises(WireError):
        modelfile.load_model(tmp_path / "wide", theta0)


@pytest.mark.parametrize(
    "shapes",
    [((1 << 62,) * 200_000,), ((-1, 500),), ((1,) * 33,), ((1 << 48,),), ((500,), (1,)), ()],
    ids=["a product that takes minutes", "negative", "many axes", "long", "more than names", "fewer"],
)
def test_a_file_of_shapes_that_no_model_has_is_refused_at_once(tmp_path: Path, shapes: Any) -> None:
    trained("static", tmp_path / "m")
    model = msgspec.structs.replace(modelfile.read(tmp_path / "m"), layout=Layout(("w",), shapes))
    (tmp_path / "odd").write_bytes(msgspec.msgpack.encode(model))
    with pytest.raises(WireError, match="no model has"):
        modelfile.read(tmp_path / "odd")


@pytest.mark.parametrize("wrong", [{"downlink": 7}, {"downlink": None}, {"dim": "x"}])
def test_settings_of_the_wrong_type_are_refused(tmp_path: Path, wrong: dict[str, Any]) -> None:
    theta0, _ = trained("static", tmp_path / "m")
    model = modelfile.read(tmp_path / "m")
    (tmp_path / "odd").write_bytes(
        msgspec.msgpack.encode(msgspec.structs.replace(model, settings={**model.settings, **wrong}))
    )
    with pytest.raises(WireError, match="settings are wrong"):
        modelfile.load_model(tmp_path / "odd", theta0)


V1 = {"time-varying": "46c239277a6f0b79", "fedkseed": "75f9bfb014ac9378", "powersgd": "2940a5f6f353b738"}


@pytest.mark.parametrize("name", V1)
def test_a_file_of_version_1_still_loads_from_the_settings_beside_it(name: str) -> None:
    """Written when every file named the options of all methods, and fedkseed's directions were `seeds`."""
    folder = Path(__file__).with_name("v1")
    config = make_config(read_toml(folder / f"{name}.toml"))
    assert config.directions == 32
    task = build(config.task, config.task_options())
    theta = modelfile.load_model(folder / f"{name}.narrowcast", task.theta0())
    assert digest1(theta).hex() == V1[name]


def test_a_file_says_where_its_base_is_from(tmp_path: Path) -> None:
    """Name, revision or seed, and the settings that decide theta0: no path of the machine it was made on."""
    config = make_config(
        {"task": "digits", "width": 16, "seed": 3, "rounds": 1, "method": "narrow", "dim": 32}
    )
    folder = runner.start(config, tmp_path / "run")
    model = modelfile.read(folder / "model.narrowcast")
    assert (model.base.task, model.base.name, model.base.seed) == ("digits", "", 3)
    assert model.base.settings["width"] == 16
    assert model.layout.size == 1482
    assert (model.settings["up_bits"], model.settings["down_bits"]) == (1.0, 2.0)
    pretrained = make_config({"task": "sst2", "model": str(tmp_path / "run"), "rounds": 1, "data": "/secret"})
    base = base_of(pretrained, build("digits", config.task_options()))
    assert base.name == "run"
    assert not any("/" in str(value) for value in (base.name, *base.settings.values()))


def test_names_take_little_of_a_file_and_what_inflates_without_end_is_refused(tmp_path: Path) -> None:
    """A hundred names of 50 letters are 6 kB; a small file of zeros is not followed to where it ends."""
    names = tuple(f"bert.encoder.layer.{i}.attention.self.query.weight" for i in range(100))
    layout, theta0 = Layout(names, ((5,),) * 100), torch.zeros(500)
    method = METHODS["static"].make(key=5, dim=20)
    modelfile.save(
        tmp_path / "m", "static", {"key": 5, "dim": 20}, method.server(theta0, layout), theta0, layout
    )
    assert (tmp_path / "m").stat().st_size < 1000
    assert modelfile.read(tmp_path / "m").layout == layout
    for bomb in (zlib.compress(bytes(1 << 26), 9), zlib.compress(b"x")[:-1], b"\x78", b""):
        (tmp_path / "bomb").write_bytes(bomb)
        with pytest.raises(WireError, match="not a narrowcast model"):
            modelfile.read(tmp_path / "bomb")


def test_few_bits_make_a_small_file(tmp_path: Path) -> None:
    """Five stages of 2 000 numbers; as float32 they would take 40 kB."""
    theta0, layout = torch.zeros(4000), Layout(("w",), ((4000,),))
    method = METHODS["narrow"].make(key=5, dim=2000, refresh=4)
    server = method.server(theta0, layout)
    for number in range(20):
        acc = method.zero(server)
        generator = torch.Generator().manual_seed(number)
        acc.total[0] = torch.randn(2000, generator=generator)
        server = method.step(server, replace(acc, weight=1.0), RoundInfo(number, 0, False, 0.1, 4))
    modelfile.save(tmp_path / "m", "narrow", {"key": 5, "dim": 2000, "refresh": 4}, server, theta0, layout)
    assert (tmp_path / "m").stat().st_size < 5 * 2000 * 4 / 8 + 500
    assert torch.equal(modelfile.load_model(tmp_path / "m", theta0), method.theta(server))


@pytest.mark.parametrize("wrong", [{"dim": 2**32 - 1}, {"method": "k-subspace", "subspaces": 4096}])
def test_settings_of_more_numbers_than_the_model_has_are_refused_at_once(
    wrong: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Found by `make fuzz`: few bytes of zeros were read as 2^32 numbers, for half a minute; and by a run of
    tests that the system killed: a newcomer had room for as many, before anything was read."""
    config = make_config({"task": "quadratic", "width": 50, "dim": 8, "rounds": 1, "lr": 0.1})
    folder = runner.start(config, tmp_path / "run")
    model = modelfile.read(folder / "model.narrowcast")
    task, _ = runner.rebuild(folder)
    method = wrong.pop("method", model.method)
    changed = msgspec.structs.replace(model, method=method, settings={**model.settings, **wrong})
    zeros = torch.zeros

    def bounded(*shape: int, **more: Any) -> torch.Tensor:
        assert prod(shape) <= 50
        return zeros(*shape, **more)

    monkeypatch.setattr(torch, "zeros", bounded)
    with pytest.raises(WireError, match=r"exceeds the model's 50 parameters|larger than the model"):
        modelfile.rebuild(changed, task.theta0())
