"""The first hour of a Hugging Face user, and of whoever gets the model file."""

import re
import runpy
import shutil
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from typer.testing import CliRunner

import narrowcast as nc
from fake_hub import FakeHub, stand_in
from narrowcast.cli.app import app
from narrowcast.tasks.text import Classifier
from places import ROOT
from text_data import write_checkpoint, write_sst2

transformers: Any = pytest.importorskip("transformers")
SENTENCES = ["a fine and moving film", "a dull and empty mess"]
EXAMPLES = ROOT / "examples"


def script(monkeypatch: pytest.MonkeyPatch, name: str, *words: object) -> None:
    monkeypatch.setattr(sys, "argv", [name, *map(str, words)])
    runpy.run_path(str(EXAMPLES / name), run_name="__main__")


def narrowcast(*words: object) -> Any:
    return CliRunner().invoke(app, [*map(str, words)])


def fresh(base: Path, seed: int) -> Any:
    """As a receiver loads it: the head is whatever torch draws."""
    torch.manual_seed(seed)
    kind = transformers.AutoModelForSequenceClassification
    return kind.from_pretrained(base, num_labels=2, dtype=torch.float32)


def scores(model: Any, base: Path) -> torch.Tensor:
    batch = transformers.AutoTokenizer.from_pretrained(base)(SENTENCES, padding=True, return_tensors="pt")
    with torch.no_grad():
        found: torch.Tensor = model.eval()(**batch).logits
    return found


@pytest.mark.filterwarnings("ignore:Use 'content:DeprecationWarning")
def test_fine_tune_send_a_few_kilobytes_and_run_it_elsewhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    # The sender has a base, data, and an evening.
    base, data, out = write_checkpoint(tmp_path / "bert"), write_sst2(tmp_path / "data"), tmp_path / "out"
    script(
        monkeypatch, "finetune_hf.py", "--model", base, "--data", data, "--rounds", 4, "--dim", 64,
        "--lr", 1, "--out", out,
    )  # fmt: skip
    said = capsys.readouterr().out
    accuracy = re.search(r"accuracy ([0-9.]+); whole gradients", said)
    assert accuracy
    file = out / "model.narrowcast"
    assert f"{file.stat().st_size:,} bytes, of a model of" in said
    assert file.stat().st_size < 3000
    shutil.rmtree(data)

    # The file travels; the receiver has the base and nothing else.
    with FakeHub(lfs=True) as hub:
        stand_in(hub, monkeypatch, tmp_path / "cache")
        assert narrowcast("push", file, "me/tuned").exit_code == 0
        assert narrowcast("pull", "me/tuned", "--to", tmp_path / "got.narrowcast").exit_code == 0
    shutil.rmtree(out)
    got = tmp_path / "got.narrowcast"
    model = nc.apply(fresh(base, seed=11), got)
    script(monkeypatch, "receive_hf.py", got, *SENTENCES, "--model", base)
    shown = capsys.readouterr().out.splitlines()
    assert [line[7:] for line in shown] == SENTENCES
    shares = scores(model, base).softmax(1)[:, 1].tolist()
    assert [line[:5] for line in shown] == [f"{share:.3f}" for share in shares]

    # Or the whole of it, as a folder that from_pretrained reads, bit for bit.
    done = narrowcast("export", got, "--base", base, "--to", tmp_path / "whole")
    assert done.exit_code == 0, done.output
    whole = transformers.AutoModelForSequenceClassification.from_pretrained(tmp_path / "whole")
    assert torch.equal(scores(whole, tmp_path / "whole"), scores(model, base))
    held = model.state_dict()
    assert all(torch.equal(value, held[name]) for name, value in whole.state_dict().items())
    done = narrowcast("export", got, "--base", base, "--to", tmp_path / "whole.safetensors")
    assert done.exit_code == 0, done.output

    # What goes wrong is said.
    done = narrowcast("export", got, "--to", tmp_path / "x.pt")
    assert done.exit_code == 2
    assert "'bert'" in done.output
    other = write_checkpoint(tmp_path / "other", seed=1)
    before = fresh(other, 0).state_dict()
    wrong = fresh(other, 0)
    with pytest.raises(ValueError, match=r"another theta0 .* its base is bert"):
        nc.apply(wrong, got)
    assert all(torch.equal(value, before[name]) for name, value in wrong.state_dict().items())
    assert "another theta0" in narrowcast("export", got, "--base", other, "--to", tmp_path / "x.pt").output
    with pytest.raises(ValueError, match=r"dtype=torch\.float32"):
        nc.apply(fresh(base, 0).half(), got)


@pytest.mark.parametrize("more", [[], ["--trainable", "lora", "--lora-rank", 2], ["--trainable", "biases"]])
def test_a_run_of_the_command_travels_too(tmp_path: Path, more: list[object]) -> None:
    """Its head is drawn from the seed, so the file need not hold it; adapters are put in by `apply`."""
    base, data, run = write_checkpoint(tmp_path / "bert"), write_sst2(tmp_path / "data"), tmp_path / "run"
    words = [
        "--model",
        base,
        "--data",
        data,
        "--method",
        "time-varying",
        "--dim",
        32,
        "--lr",
        3,
        "--rounds",
        3,
    ]
    done = narrowcast("run", "sst2", *words, "--clients", 6, "--cohort", 3, "--out", run, *more)
    assert done.exit_code == 0, done.output
    shutil.rmtree(data)
    assert narrowcast("export", run, "--to", tmp_path / "whole-v1.1").exit_code == 0  # a folder all the same
    model = nc.apply(fresh(base, 5), run / "model.narrowcast")
    whole = transformers.AutoModelForSequenceClassification.from_pretrained(tmp_path / "whole-v1.1")
    close = {"rtol": 1e-5, "atol": 1e-6} if more[1:2] == ["lora"] else {"rtol": 0, "atol": 0}
    torch.testing.assert_close(scores(whole, tmp_path / "whole-v1.1"), scores(model, base), **close)
    other = fresh(write_checkpoint(tmp_path / "other", seed=1), 5)
    with pytest.raises(ValueError, match=r"another (theta0|base)"):
        nc.apply(other, run / "model.narrowcast")


def test_a_base_that_is_not_the_one_cannot_be_named_when_saving(tmp_path: Path) -> None:
    base, other = write_checkpoint(tmp_path / "bert"), write_checkpoint(tmp_path / "other", seed=1)
    ids = [[2, 4, 5, 3], [2, 6, 7, 3]] * 4
    task = Classifier(
        fresh(base, 0), train=(ids, [0, 1] * 4), test=(ids, [0, 1] * 4), clients=nc.iid(8, clients=2)
    )
    run = nc.Simulation(task, nc.method("static", dim=8), nc.Plan(cohort=2, lr=0.1, rounds=1))
    list(run)
    with pytest.raises(ValueError, match="is not what training began with"):
        nc.save_model(tmp_path / "m", run, base=other)
    nc.save_model(tmp_path / "m", run, base=base)
    assert torch.equal(scores(nc.apply(fresh(base, 3), tmp_path / "m"), base), scores(task.module, base))
    nc.save_model(tmp_path / "bare", run, base="")
    nc.apply(fresh(base, 0), tmp_path / "bare")  # the head as it was, from torch's seed
    with pytest.raises(ValueError, match="another theta0"):
        nc.apply(fresh(base, 3), tmp_path / "bare")
