"""The kilobyte file through huggingface_hub, against a stand-in on loopback."""

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner

from fake_hub import FakeHub, stand_in
from narrowcast.cli.app import app
from narrowcast.methods import METHODS
from narrowcast.numerics.flat import Layout
from narrowcast.runs import hub, modelfile
from narrowcast.runs.modelfile import Base
from narrowcast.wire.messages import WireError

pytest.importorskip("huggingface_hub")
pytestmark = pytest.mark.filterwarnings("ignore:Use 'content:DeprecationWarning")  # its own call of httpx


@pytest.fixture(params=[False, True], ids=["regular", "lfs"])
def there(
    request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> Iterator[FakeHub]:
    with FakeHub(lfs=request.param) as fake:
        stand_in(fake, monkeypatch, tmp_path / "cache")
        yield fake


def a_model(path: Path, name: str = "org/base") -> Path:
    method, layout = METHODS["static"].make(key=5, dim=20), Layout(("w",), ((100,),))
    server = method.server(torch.zeros(100), layout)
    options = {"key": 5, "dim": 20}
    modelfile.save(path, "static", options, server, torch.zeros(100), layout, Base("sst2", name))
    return path


def test_a_file_goes_up_and_comes_down_as_it_was(there: FakeHub, tmp_path: Path) -> None:
    path = a_model(tmp_path / "m.narrowcast")
    hub.push_model(path, "me/tuned", private=True)
    run = CliRunner().invoke(app, ["push", str(path), "me/tuned", "--private"])
    assert run.exit_code == 0, run.output
    assert there.repos["me/tuned"]["visibility"] == "private"
    assert there.files["me/tuned", "model.narrowcast"] == path.read_bytes()
    card = there.files["me/tuned", "README.md"].decode()
    assert card.startswith("---\nlibrary_name: narrowcast\nbase_model: org/base\n---\n")
    assert 'pull_model("me/tuned")' in card
    out = tmp_path / "down.narrowcast"
    run = CliRunner().invoke(app, ["pull", "me/tuned", "--to", str(out)])
    assert run.exit_code == 0, run.output
    assert out.read_bytes() == path.read_bytes()
    run = CliRunner().invoke(app, ["pull", "me/tuned", "--to", str(out)])
    assert run.exit_code == 2
    assert "exists" in run.output


def test_a_card_of_ones_own_is_left_alone(there: FakeHub, tmp_path: Path) -> None:
    there.files["me/tuned", "README.md"] = b"mine"
    hub.push_model(a_model(tmp_path / "m", "folder"), "me/tuned")
    assert there.files["me/tuned", "README.md"] == b"mine"


def test_what_is_no_model_is_neither_sent_nor_taken(there: FakeHub, tmp_path: Path) -> None:
    (tmp_path / "m").write_bytes(b"secret")
    with pytest.raises(WireError, match="not a narrowcast model"):
        hub.push_model(tmp_path / "m", "me/tuned")
    assert not there.files
    there.files["me/tuned", "model.narrowcast"] = b"\x80evil"
    with pytest.raises(WireError, match="not a narrowcast model"):
        hub.pull_model("me/tuned")
    there.claims["model.narrowcast"] = hub.MOST + 1
    with pytest.raises(ValueError, match="is not fetched"):
        hub.pull_model("me/tuned")
    run = CliRunner().invoke(app, ["pull", "me/nothing", "--to", str(tmp_path / "x")])
    assert run.exit_code == 2
    assert "Traceback" not in run.output


def test_a_card_trusts_no_name_in_the_file() -> None:
    model = modelfile.ModelFile(
        modelfile.MAGIC, "static", {}, Layout(("w",), ((3,),)), 0, b"", b"", b"", Base(name="x/y\nevil: 1")
    )
    assert "base_model" not in hub.card(model, 100, "me/tuned")
