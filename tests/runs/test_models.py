"""Models that travel: file and base alone give the server's weights, on any road, or say why not."""

import shutil
import sys
from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch
from torch import Tensor, nn
from typer.testing import CliRunner

import narrowcast as nc
from narrowcast.cli.app import app
from narrowcast.errors import ConfigError
from narrowcast.methods import METHODS
from narrowcast.numerics import keyed
from narrowcast.numerics.flat import to_bytes
from narrowcast.runs import bases, make_config, modelfile, models, runner
from narrowcast.tasks import build
from narrowcast.tasks.table import STARTS, TASKS
from narrowcast.wire.messages import WireError

BOLD = {"static", "time-varying", "narrow", "k-subspace", "k-subspace-time-varying"}  # a high rate suits them
SMALL = {"task": "digits", "width": 16, "seed": 3, "rounds": 3, "cohort": 4, "lr": 0.1}


def run_of(tmp_path: Path, name: str = "run", **settings: Any) -> tuple[Path, Tensor]:
    """(the model file of a run, alone in a folder; the weights the run ended with)."""
    table = {**SMALL, "method": "static", **settings}
    if table["method"] in BOLD:
        table.setdefault("dim", 32)
    if table["method"] == "fedkseed":
        table["lr"] = 1e-4  # at the others' its model is nonsense
    folder = runner.start(make_config(table), tmp_path / name)
    _, theta = runner.rebuild(folder)
    alone = tmp_path / f"{name}-alone" / "model.narrowcast"
    alone.parent.mkdir()
    shutil.copy(folder / "model.narrowcast", alone)
    shutil.rmtree(folder)
    return alone, theta.clone()


def take_data_away(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever gets the file has none."""

    def refuse(*_: object, **__: object) -> None:
        raise AssertionError("data was asked for")

    for builder in TASKS.values():
        if hasattr(module := sys.modules[builder.__module__], "load"):
            monkeypatch.setattr(module, "load", refuse)


def export(*words: object) -> Any:
    return CliRunner().invoke(app, ["export", *map(str, words)])


def flat_of(state: dict[str, Tensor], model: modelfile.ModelFile) -> Tensor:
    return torch.cat([state[name].reshape(-1) for name in model.layout.names])


@pytest.mark.parametrize("method", METHODS)
def test_every_methods_file_is_exported_from_the_file_alone(
    tmp_path: Path, method: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, theta = run_of(tmp_path, method=method)
    take_data_away(monkeypatch)
    for out in (tmp_path / "w.pt", tmp_path / "w.safetensors"):
        done = export(path, "--to", out)
        assert done.exit_code == 0, done.output
        state = models._read_weights(out)
        assert torch.equal(flat_of(state, modelfile.read(path)), theta)


@pytest.mark.parametrize(
    "more", [{"trainable": "lora"}, {"trainable": "biases"}, {"freeze": "^0"}, {"up_bits": 2, "down_bits": 2}]
)
def test_what_is_not_trained_is_held_to_its_digest(tmp_path: Path, more: dict[str, Any]) -> None:
    path, theta = run_of(tmp_path, **{"method": "time-varying", "refresh": "1", "dim": 20} | more)
    model = modelfile.read(path)
    task: Any = build("digits", make_config({**SMALL, "method": "static", "dim": 20}).task_options())
    module = task.module
    before = module.state_dict()
    nc.apply(module, path)
    assert torch.equal(flat_of(bases.weights_of(module), model), theta)
    x = torch.randn(5, 64)
    out = tmp_path / "w.pt"
    assert export(path, "--to", out).exit_code == 0
    whole = nc.apply(models.bases.find(model, None).module, path)
    whole.load_state_dict(torch.load(out, weights_only=True))
    assert torch.equal(whole(x), module(x))
    if "bits" not in str(more):
        frozen = next(name for name in before if name not in model.layout.names)
        strange = STARTS["digits"](
            make_config({**SMALL, "method": "static", "dim": 20}).task_options()
        ).module
        with torch.no_grad():
            strange.get_parameter(frozen).view(-1)[3] += 1e-6
        kept = {name: value.clone() for name, value in strange.state_dict().items()}
        with pytest.raises(ValueError, match="another base"):
            nc.apply(strange, path)
        assert {n: v.tolist() for n, v in strange.state_dict().items()} == {
            n: v.tolist() for n, v in kept.items()
        }


def test_a_wrong_base_is_refused_and_left_as_it_was(tmp_path: Path) -> None:
    path, _ = run_of(tmp_path)
    options = make_config({**SMALL, "method": "static", "seed": 4}).task_options()
    module = STARTS["digits"](options).module
    before = to_bytes(torch.cat([p.view(-1) for p in module.parameters()]))
    with pytest.raises(ValueError, match=r"another theta0 .* task digits of width 16, from seed 3"):
        nc.apply(module, path)
    assert before == to_bytes(torch.cat([p.view(-1) for p in module.parameters()]))
    with pytest.raises(ValueError, match="another model"):
        nc.apply(nn.Linear(3, 2), path)
    with pytest.raises(ValueError, match="float64"):
        nc.apply(STARTS["digits"](options).module.double(), path)
    done = export(path, "--to", tmp_path / "w.pt", "--base", tmp_path)
    assert done.exit_code == 2
    assert "leave it out" in done.output


def test_applying_twice_is_applying_once(tmp_path: Path) -> None:
    path, theta = run_of(tmp_path)
    module = STARTS["digits"](make_config({**SMALL, "method": "static"}).task_options()).module
    assert nc.apply(nc.apply(module, path), str(path)) is module
    assert torch.equal(torch.cat([p.detach().view(-1) for p in module.parameters()]), theta)


@pytest.mark.parametrize("name", TASKS)
def test_every_built_in_task_starts_without_data(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    take_data_away(monkeypatch)
    assert name in STARTS
    text = name in ("sst2", "personachat", "text-lm")
    options = {"model": "tiny"} if text else {"width": 8}
    config = make_config({"task": name, "method": "uncompressed", "rounds": 1, **options})
    module = STARTS[name](config.task_options()).module
    assert sum(p.numel() for p in module.parameters() if p.requires_grad) > 0


# ---- modules of one's own


class Tied(nn.Module):
    """A table of 8 rows that is both the first layer and the last; a buffer that is saved."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Embedding(8, 4)
        self.middle = nn.Linear(4, 4)
        self.last = nn.Linear(4, 8, bias=False)
        self.last.weight = self.first.weight
        self.register_buffer("scale", torch.tensor([2.0]))

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.last(self.middle(self.first(x)) * self.scale)
        return out


def own(seed: int = 0) -> Tied:
    torch.manual_seed(seed)
    return Tied()


def trained(module: nn.Module, method: str = "time-varying", **options: Any) -> nc.Simulation:
    x = torch.arange(24) % 8
    task = nc.TorchTask(module, train=(x, x.roll(1)), test=(x, x), clients=nc.iid(24, clients=4))
    made = nc.method(method, **METHODS[method].fitting({"dim": 10, "key": 7, "clients": 4, **options}))
    run = nc.Simulation(task, made, nc.Plan(cohort=2, lr=0.5 if method in BOLD else 0.001, rounds=4))
    for _ in run:
        pass
    return run


@pytest.mark.parametrize("method", METHODS)
def test_a_module_of_ones_own_is_saved_and_applied(tmp_path: Path, method: str) -> None:
    run, path = trained(own(), method), tmp_path / "m"
    nc.save_model(path, run)
    again = nc.apply(own(), path)
    x = torch.arange(8)
    run.task.module.eval()  # type: ignore[attr-defined]
    assert torch.equal(again(x), run.task.module(x))  # type: ignore[attr-defined]
    assert torch.equal(bases.gathered(bases.weights_of(again), run.task.layout), run.theta)
    assert again.get_parameter("last.weight") is again.get_parameter("first.weight")
    with pytest.raises(ValueError, match="another theta0"):
        nc.apply(own(1), path)
    other = own()
    other.get_buffer("scale").fill_(2.5)
    with pytest.raises(ValueError, match="another base"):
        nc.apply(other, path)


@pytest.mark.parametrize("names", ["both", "first.weight", "last.weight"])
@pytest.mark.parametrize("suffix", [".pt", ".safetensors"])
def test_a_file_of_weights_is_a_base_and_tied_ones_stay_tied(tmp_path: Path, names: str, suffix: str) -> None:
    run, path = trained(own()), tmp_path / "m"
    nc.save_model(path, run)
    state = own().state_dict()
    tied = {"first.weight", "last.weight"}
    weights = {n: v.clone() for n, v in state.items() if names == "both" or n not in tied or n == names}
    models._write(weights, tmp_path / f"base{suffix}")
    done = export(path, "--base", tmp_path / f"base{suffix}", "--to", tmp_path / "out.safetensors")
    assert done.exit_code == 0, done.output
    made = models._read_weights(tmp_path / "out.safetensors")
    assert made.keys() == weights.keys()
    expected = run.task.state_dict(run.theta)
    assert all(torch.equal(made[n], expected[n]) for n in made)


def test_without_a_base_the_error_says_how(tmp_path: Path) -> None:
    nc.save_model(tmp_path / "m", trained(own()))
    done = export(tmp_path / "m", "--to", tmp_path / "w.pt")
    assert done.exit_code == 2
    assert "weights. In Python, call nc.apply(module, file) on that; or give" in done.output.replace(
        "\n", " "
    )
    (tmp_path / "wrong.pt").write_bytes(b"no weights")
    done = export(tmp_path / "m", "--base", tmp_path / "wrong.pt", "--to", tmp_path / "w.pt")
    assert "is no file of weights" in done.output
    torch.save([1, 2], tmp_path / "list.pt")
    done = export(tmp_path / "m", "--base", tmp_path / "list.pt", "--to", tmp_path / "w.pt")
    assert "does not hold tensors by name" in done.output


def test_a_method_that_is_in_no_table_cannot_be_saved(tmp_path: Path) -> None:
    class Mine(type(nc.method("static"))):  # type: ignore[misc]
        pass

    run = trained(own())
    run.method = Mine(dim=10)
    with pytest.raises(ValueError, match="Mine is in no row"):
        nc.save_model(tmp_path / "m", run)


# ---- strangers' files


def changed(path: Path, **base: Any) -> modelfile.ModelFile:
    model = modelfile.read(path)
    return msgspec.structs.replace(model, base=msgspec.structs.replace(model.base, **base))


@pytest.mark.parametrize("name", ["../../etc", "/etc/passwd", "a/b/c", "a b", "~x", "..", "-rf\n"])
def test_a_files_name_for_its_base_is_a_name_and_no_path(tmp_path: Path, name: str) -> None:
    path, _ = run_of(tmp_path)
    with pytest.raises(ConfigError, match="no name of a model"):
        models.export(changed(path, task="sst2", name=name), tmp_path / "w.pt")


@pytest.mark.parametrize("kind", ["pipeline", "__dict__", "BertConfig", "nothing", "os"])
def test_a_files_class_must_be_a_model_of_transformers(tmp_path: Path, kind: str) -> None:
    path, _ = run_of(tmp_path)
    with pytest.raises(ConfigError, match="does not have"):
        models.export(changed(path, task="custom", name="x", kind=kind), tmp_path / "w.pt")


def test_a_file_that_claims_more_than_the_memory_is_refused(tmp_path: Path) -> None:
    path, _ = run_of(tmp_path)
    settings = modelfile.read(path).base.settings
    with pytest.raises(ValueError, match="bytes of memory"):
        models.export(changed(path, settings={**settings, "width": 1 << 30}), tmp_path / "w.pt")
    lora, _ = run_of(tmp_path, "lora", trainable="lora")
    settings = modelfile.read(lora).base.settings
    for rank in (1 << 40, 0, -1, "4", None, 1.5):
        with pytest.raises(WireError, match="rank"):
            models.export(changed(lora, settings={**settings, "lora_rank": rank}), tmp_path / "w.pt")


@pytest.mark.parametrize(
    "base",
    [
        {"task": "cifar10", "settings": {"width": 3000}},  # 36 MB squared, 57 GB made
        {"task": "digits", "settings": {"width": 1 << 32}},
        {"task": "cifar10", "settings": {"width": 1 << 31}},
        {"task": "quadratic", "settings": {"width": 1 << 32}},
        {"task": "digits", "settings": {"width": 4096}},  # a model that there could be, and another
    ],
)
def test_a_base_that_does_not_fit_is_refused_before_it_is_made(
    tmp_path: Path, base: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    path, _ = run_of(tmp_path)
    monkeypatch.setattr(keyed, "normals", lambda *_: pytest.fail("weights were drawn"))
    with pytest.raises(ValueError, match=r"bytes of memory|cannot be made|was trained as"):
        models.export(changed(path, **base), tmp_path / "w.pt")


@pytest.mark.parametrize(
    "base",
    [
        *({"settings": {"width": bad}} for bad in (float("inf"), "64", 2.5, True, -1, 1 << 40)),
        {"task": "sst2", "name": "tiny", "settings": {"tokens": "x"}},
        {"task": "custom", "name": "x", "kind": "BertModel", "settings": {"num_labels": 1 << 30}},
    ],
)
def test_what_a_file_says_of_a_models_size_is_a_whole_number(tmp_path: Path, base: dict[str, Any]) -> None:
    path, _ = run_of(tmp_path)
    with pytest.raises(WireError, match="must be a whole number"):
        models.export(changed(path, **base), tmp_path / "w.pt")


def test_fresh_weights_of_the_wrong_size_are_refused(tmp_path: Path) -> None:
    path, _ = run_of(tmp_path)
    for fresh, said in (({"0.weight": b"1234"}, "4 bytes for 0.weight"), ({"x": b""}, "no parameter x")):
        with pytest.raises(ValueError, match=said):
            models.export(changed(path, fresh=fresh), tmp_path / "w.pt")


def test_the_digest_of_what_is_frozen_knows_names_types_shapes_and_bits() -> None:
    weights = {"a": torch.zeros(2, 3), "b": torch.ones(1), "n": torch.tensor(7)}
    known = bases.frozen_digest(weights, ["b"])
    assert known == bases.frozen_digest(dict(reversed(weights.items())), ("b",))
    assert known == bases.frozen_digest({**weights, "b": torch.zeros(9)}, ("b",))
    for other in (
        {**weights, "a": torch.zeros(3, 2)},
        {**weights, "a": torch.zeros(2, 3).half()},
        {**weights, "a": -torch.zeros(2, 3)},
        {**weights, "n": torch.tensor(8)},
        {"A" if n == "a" else n: v for n, v in weights.items()},
        {**weights, "more": torch.zeros(0)},
    ):
        assert bases.frozen_digest(other, ("b",)) != known
    assert bases.frozen_digest({"h": torch.ones(3, dtype=torch.bfloat16)}, ()) != known


def test_what_a_file_records_of_a_base_has_no_path(tmp_path: Path) -> None:
    (tmp_path / "secret" / "mine").mkdir(parents=True)
    assert bases.portable(str(tmp_path / "secret" / "mine")) == "mine"
    assert bases.portable("/gone/away/mine") == "mine"
    assert bases.portable("org/name@abc") == "org/name"
    assert bases.portable("") == ""
