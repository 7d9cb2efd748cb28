"""The command as a user meets it: runs, folders, and errors said in one sentence."""

import dataclasses
import json
import sys
from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner, Result

from narrowcast import extras
from narrowcast.bench import kernels
from narrowcast.cli.app import app
from narrowcast.numerics import pool
from narrowcast.rounds import records
from narrowcast.rounds.training import Training
from narrowcast.runs import checkpoints, compare, frontier, run_folder, runner, summary
from places import EXAMPLES

PLAIN = ["--lr", "20", "--width", "16", "--rounds", "4", "--cohort", "40"]
SHORT = [*PLAIN, "--dim", "64"]


def narrowcast(*args: object) -> Result:
    return CliRunner().invoke(app, [str(a) for a in args], env={"COLUMNS": "120"})


@pytest.mark.parametrize(
    "method", ["static", "time-varying", "k-subspace", "k-subspace-time-varying", "uncompressed", "fedavg"]
)
def test_a_run_leaves_a_folder_that_shows_and_exports(tmp_path: Path, method: str) -> None:
    out = tmp_path / "run"
    flags = PLAIN if method in ("uncompressed", "fedavg") else SHORT
    done = narrowcast("run", "digits", "--method", method, *flags, "--out", out)
    assert done.exit_code == 0, done.output
    assert {p.name for p in out.iterdir()} >= {
        "config.toml",
        "facts.json",
        "records.jsonl",
        "checkpoint.pt",
        "model.narrowcast",
    }
    rows = records.read(out / "records.jsonl")
    assert [r.round for r in rows] == [0, 1, 2, 3]
    assert all(r.up > 0 and r.down > 0 and r.seconds > 0 and r.client_seconds > 0 for r in rows)
    assert all(r.peak_memory > 1 << 20 for r in rows)
    assert "accuracy" in rows[-1].metrics

    shown = narrowcast("show", out)
    assert shown.exit_code == 0
    assert f"{rows[-1].metrics['accuracy']:.4f}" in shown.output

    weights = tmp_path / "weights.pt"
    exported = narrowcast("export", out, "--to", weights)
    assert exported.exit_code == 0, exported.output
    task, theta = runner.rebuild(out)
    state = torch.load(weights, weights_only=True)
    assert torch.equal(torch.cat([t.reshape(-1) for t in state.values()]), theta)
    task.module.load_state_dict(state)
    assert task.evaluate(theta)["accuracy"] == rows[-1].metrics["accuracy"]


def test_a_static_model_of_any_size_is_a_few_kilobytes(tmp_path: Path) -> None:
    out = tmp_path / "run"
    narrowcast("run", "digits", "--dim", "1024", "--rounds", "2", "--out", out)
    assert (out / "model.narrowcast").stat().st_size < 4 * 1024 + 512
    assert run_folder.load_facts(out).parameters == 301_066


def test_flags_lie_over_the_toml_file(tmp_path: Path) -> None:
    (tmp_path / "c.toml").write_text('task = "digits"\nmethod = "static"\ndim = 32\nwidth = 16\nrounds = 2\n')
    done = narrowcast("run", tmp_path / "c.toml", "--dim", "48", "--out", tmp_path / "run")
    assert done.exit_code == 0, done.output
    config = run_folder.load_config(tmp_path / "run")
    assert (config.dim, config.width, config.method) == (48, 16, "static")


def test_compare_runs_all_once_and_draws(tmp_path: Path) -> None:
    file = tmp_path / "both.toml"
    file.write_text(
        'task = "digits"\nwidth = 16\nrounds = 3\ndim = 32\nlr = 5.0\n'
        '[[run]]\nmethod = "static"\n[[run]]\nmethod = "uncompressed"\nlr = 0.1\n'
    )
    done = narrowcast("compare", file, "--out", tmp_path / "out")
    assert done.exit_code == 0, done.output
    assert (tmp_path / "out" / "frontier.png").read_bytes().startswith(b"\x89PNG")
    before = (tmp_path / "out" / "uncompressed" / "records.jsonl").read_bytes()
    again = narrowcast("compare", file, "--out", tmp_path / "out")
    assert again.exit_code == 0
    assert (tmp_path / "out" / "uncompressed" / "records.jsonl").read_bytes() == before
    assert narrowcast("show", tmp_path / "out", "--markdown").output.count("|") > 20


def test_plan_prints_table_1() -> None:
    done = narrowcast("plan", "--params", "124M", "--dim", "65536", "--epochs", "2", "--subspaces", "8")
    assert done.exit_code == 0, done.output
    assert "1892/158/291" in done.output  # (2E-1) d K down, K = 8


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["run", "nothing"], "unknown task 'nothing': choose one of digits"),
        (["run"], "say what to train"),
        (["run", "digits"], "say how long to train"),
        (["run", "digits", "--rounds", "2", "--method", "zip"], "unknown method 'zip'"),
        (["run", "digits", "--rounds", "2", "--dim", "999999999"], "exceeds the model's 301066 parameters"),
        (
            ["run", "digits", "--rounds", "2", "--dim", "-4"],
            "--dim: Input should be greater than or equal to 1, got -4",
        ),
        (["run", "digits", "--rounds", "0"], "--rounds"),
        (["run", "digits", "--rounds", "2", "--lr", "nan"], "--lr"),
        (["run", "digits", "--rounds", "2", "--cohort", "5000"], "only 287 clients"),
        (["run", "digits", "--rounds", "2", "--refresh", "never"], "--refresh"),
        (["run", "digits", "--rounds", "2", "--schedule", "5:1,2:0"], "--schedule"),
        (["run", "absent.toml"], "absent.toml: no such file"),
        (["run", "--resume", "absent"], "absent is not a run folder"),
        (["run", "cifar10", "--rounds", "1", "--data", "absent"], "absent"),
        (["show", "absent"], "absent is not a run folder"),
        (["export", "absent"], "absent is not a run folder"),
        (["compare", "absent.toml"], "absent.toml: no such file"),
        (["plan", "--params", "x", "--dim", "1", "--epochs", "1"], "got 'x'"),
    ],
)
def test_a_users_mistake_is_one_sentence(
    arguments: list[str], says: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("NARROWCAST_DATA", raising=False)
    done = narrowcast(*arguments)
    assert done.exit_code == 2
    assert says in done.output.replace("\n", " ")
    assert "Traceback" not in done.output
    assert not list(tmp_path.glob("runs/*/records.jsonl"))


def test_an_unreadable_config_is_said(tmp_path: Path) -> None:
    (tmp_path / "bad.toml").write_text("task = [")
    assert "cannot be read as TOML" in narrowcast("run", tmp_path / "bad.toml").output
    (tmp_path / "odd.toml").write_text('task = "digits"\nrounds = 1\nspeed = 3\n')
    assert "--speed: there is no such setting" in narrowcast("run", tmp_path / "odd.toml").output


def test_an_existing_run_is_not_overwritten(tmp_path: Path) -> None:
    out = tmp_path / "run"
    narrowcast("run", "digits", *SHORT, "--out", out)
    before = (out / "records.jsonl").read_bytes()
    refused = narrowcast("run", "digits", *SHORT, "--out", out)
    assert refused.exit_code == 2
    assert "holds a run already" in refused.output
    assert (out / "records.jsonl").read_bytes() == before
    assert narrowcast("run", "digits", *SHORT, "--seed", "5", "--out", out, "--force").exit_code == 0


def test_a_diverging_run_stops_with_its_last_good_checkpoint(tmp_path: Path) -> None:
    out = tmp_path / "run"
    done = narrowcast(
        "run", "digits", "--lr", "1e30", "--schedule", "constant", "--rounds", "9", "--out", out
    )
    assert done.exit_code == 1
    assert "lower --lr" in done.output
    state = checkpoints.read(out / "checkpoint.pt")["simulation"]
    assert torch.isfinite(state["server"]["sigma"]).all()
    assert not (out / "model.narrowcast").exists()


def test_a_checkpoint_waits_until_the_next_round_went_well(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A step that ruins the model shows in the next round only: its state must not replace a good one."""
    monkeypatch.setattr(Training, "checkpoint_seconds", 0.0)
    out = tmp_path / "run"
    flags = ["--lr", "1e12", "--schedule", "0:0,0.6:1e-15,0.7:1", "--rounds", "30", "--dim", "64"]
    assert narrowcast("run", "digits", *flags, "--out", out).exit_code == 1
    state = checkpoints.read(out / "checkpoint.pt")["simulation"]
    assert state["round"] > 0
    assert state["server"]["sigma"].abs().max() < 1e3


def test_a_metric_that_is_not_finite_ends_the_run_before_its_model_is_written(tmp_path: Path) -> None:
    out = tmp_path / "run"
    flags = [
        "--method",
        "uncompressed",
        "--lr",
        "1e20",
        "--rounds",
        "1",
        "--schedule",
        "constant",
        "--width",
        "16",
    ]
    assert narrowcast("run", "digits", *flags, "--out", out).exit_code == 1
    assert not run_folder.finished(out)
    assert narrowcast("show", out).exit_code == 0


def test_force_replaces_a_run_and_nothing_else(tmp_path: Path) -> None:
    mine = tmp_path / "project"
    mine.mkdir()
    (mine / "config.toml").write_text('task = "digits"')
    (mine / "thesis.txt").write_text("years of work")
    for flags in ([], ["--force"]):
        refused = narrowcast("run", "digits", *SHORT, "--out", mine, *flags)
        assert refused.exit_code == 2
        assert "no run has written" in refused.output.replace("\n", " ")
    out = tmp_path / "run"
    narrowcast("run", "digits", *SHORT, "--out", out)
    (out / "notes.txt").write_text("kept")
    assert (
        narrowcast("run", "digits", *SHORT, "--lr", "1", "--seed", "3", "--out", out, "--force").exit_code
        == 0
    )
    assert run_folder.load_config(out).seed == 3
    assert (out / "notes.txt").read_text() == "kept"
    assert (mine / "thesis.txt").read_text() == "years of work"


def test_a_start_that_fails_leaves_the_folder_free(tmp_path: Path) -> None:
    out = tmp_path / "run"
    assert narrowcast("run", "digits", *SHORT, "--cohort", "1000", "--out", out).exit_code == 2
    assert narrowcast("run", "digits", *SHORT, "--out", out).exit_code == 0


def test_the_config_of_a_run_leaves_nothing_to_defaults(tmp_path: Path) -> None:
    narrowcast("run", "digits", "--rounds", "1", "--width", "16", "--dim", "8", "--out", tmp_path / "run")
    config = run_folder.load_config(tmp_path / "run")
    assert (config.cohort, config.clients, config.local_steps, config.evaluate_every) == (28, 287, 1, 11)
    assert config.threads == 1


def test_a_checkpoint_of_other_settings_is_refused(tmp_path: Path) -> None:
    out = tmp_path / "run"
    narrowcast("run", "digits", *SHORT, "--out", out)
    (out / "model.narrowcast").unlink()
    text = (out / "config.toml").read_text()
    (out / "config.toml").write_text(text.replace("lr = 20.0", "lr = 7.0"))
    refused = narrowcast("run", "--resume", out)
    assert refused.exit_code == 2
    assert "other settings" in refused.output
    (out / "config.toml").write_text(text)
    good = (out / "checkpoint.pt").read_bytes()
    flipped = bytearray(good)
    flipped[len(good) // 2] ^= 1
    for bad in (b"not a checkpoint", b"", bytes(flipped), good[:-1]):
        (out / "checkpoint.pt").write_bytes(bad)
        refused = narrowcast("run", "--resume", out)
        assert refused.exit_code == 2
        assert "is damaged" in refused.output


def test_a_damaged_folder_is_said(tmp_path: Path) -> None:
    out = tmp_path / "run"
    narrowcast("run", "digits", *SHORT, "--out", out)
    (out / "records.jsonl").write_bytes(b"{}\n")
    shown = narrowcast("show", out)
    assert shown.exit_code == 2
    assert "line 1 is not a round record" in shown.output.replace("\n", " ")
    (out / "facts.json").write_bytes(b"[")
    shown = narrowcast("show", out)
    assert shown.exit_code == 2
    assert "facts.json is damaged" in shown.output.replace("\n", " ")
    (out / "model.narrowcast").write_bytes(b"\x80")
    assert narrowcast("export", out, "--to", tmp_path / "w.pt").exit_code == 2


def test_a_label_is_text_and_not_markup(tmp_path: Path) -> None:
    done = narrowcast("run", "digits", *SHORT, "--name", "[/b] [rate 2]", "--out", tmp_path / "run")
    assert done.exit_code == 0, done.output
    assert "[rate 2]" in done.output


def test_compression_is_counted_against_the_same_task(tmp_path: Path) -> None:
    for name, flags in {
        "a": ["digits", *SHORT],
        "b": ["digits", *PLAIN, "--method", "uncompressed", "--lr", "0.1"],
        "c": ["quadratic", "--rounds", "2", "--method", "uncompressed", "--lr", "0.1"],
    }.items():
        assert narrowcast("run", *flags, "--out", tmp_path / name).exit_code == 0
    a, b, c = (summary.summarise(tmp_path / name) for name in "abc")
    assert summary.reference(a, [a, b, c]) is b
    assert summary.reference(c, [a, b, c]) is c
    assert summary.reference(a, [a, c]) is None


def test_a_run_that_tells_no_bytes_is_no_measure_for_others(tmp_path: Path) -> None:
    """One with differential privacy hides them; and one whose updates were all refused has no uploads."""
    assert narrowcast("run", "digits", *SHORT, "--out", tmp_path / "a").exit_code == 0
    assert (
        narrowcast(
            "run", "digits", *PLAIN, "--method", "uncompressed", "--lr", "0.1", "--out", tmp_path / "b"
        ).exit_code
        == 0
    )
    a, plain = (summary.summarise(tmp_path / name) for name in "ab")
    hidden = dataclasses.replace(plain, up=0, down=0)
    assert summary.reference(a, [a, hidden]) is None
    assert summary.compression(dataclasses.replace(a, uploads=0), None) is None
    found = summary.compression(a, summary.reference(a, [a, hidden, plain]))
    assert found
    assert found.total > 1


def test_the_threads_of_a_run_are_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[tuple[int, int]] = []
    step = Training.step

    def watched(training: Training) -> records.RoundRecord:
        seen.append((pool.threads(), torch.get_num_threads()))
        return step(training)

    monkeypatch.setattr(Training, "step", watched)
    pool.set_threads(3)
    torch.set_num_threads(2)
    narrowcast("run", "digits", *SHORT, "--out", tmp_path / "run")
    assert set(seen) == {(1, 1)}
    assert (pool.threads(), torch.get_num_threads()) == (3, 2)


def test_the_demo_tells_the_truth_in_short(tmp_path: Path) -> None:
    """make demo's own file, a quarter as long: every method learns, and the bytes are as promised."""
    demo = EXAMPLES / "demo.toml"
    comparison = compare.load(demo, {"epochs": 6, "evaluate_every": 0})
    for name, config in comparison.configs.items():  # a shorter schedule rises faster: half the rate
        comparison.configs[name] = config.model_copy(update={"lr": config.lr / 2})
    folders, _ = compare.run_all(comparison, tmp_path)
    runs = {r.facts.method: r for r in map(summary.summarise, folders)}
    assert len(runs) == 7
    assert all(r.metric is not None and r.metric > 0.7 for r in runs.values())
    plain, narrow, wide = runs["uncompressed"], runs["narrow"], runs["time-varying"]
    assert wide.up + wide.down > 8 * (narrow.up + narrow.down)
    assert plain.up > 500 * runs["static"].up
    assert plain.up + plain.down > 50 * (runs["k-subspace"].up + runs["k-subspace"].down)
    assert frontier.draw(list(runs.values()), tmp_path / "frontier.png").stat().st_size > 20_000


def test_bench_writes_the_ratios(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernels, "RESNET9", 100_000)
    done = narrowcast("bench", "--quick", "--json", tmp_path / "bench.json")
    assert done.exit_code == 0, done.output
    (row,) = json.loads((tmp_path / "bench.json").read_text())["subspaces"]
    assert row["project_over_copy"] == pytest.approx(row["project_s"] / row["copy_s"])
    assert row["add_expanded_over_copy"] == pytest.approx(row["add_expanded_s"] / row["copy_s"])
    slower = max(row["project_s"], row["add_expanded_s"])
    assert row["speedup_over_torch_fastfood"] == pytest.approx(row["torch_fastfood_s"] / slower)


def test_flower_new_writes_an_app(tmp_path: Path) -> None:
    done = narrowcast("flower", "new", tmp_path / "app")
    assert done.exit_code == 0, done.output
    written = {str(p.relative_to(tmp_path / "app")) for p in (tmp_path / "app").rglob("*") if p.is_file()}
    assert {"pyproject.toml", "README.md", "app/task.py", "app/client.py", "app/server.py"} <= written
    assert narrowcast("flower", "new", tmp_path / "app").exit_code == 2


def test_a_comparison_without_matplotlib_has_its_table_and_says_what_is_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in ("narrowcast.plotting", "narrowcast.runs.frontier"):
        monkeypatch.delitem(sys.modules, module, raising=False)
    monkeypatch.delattr("narrowcast.runs.frontier", raising=False)
    monkeypatch.setattr(extras, "find_spec", lambda name: None if name == "matplotlib" else name)
    (tmp_path / "c.toml").write_text(
        'task = "quadratic"\nrounds = 1\nwidth = 50\ndim = 4\n[[run]]\nname = "one"\n'
    )
    done = narrowcast("compare", tmp_path / "c.toml", "--out", tmp_path / "out")
    assert done.exit_code == 0, done.output
    assert "no picture: a picture needs matplotlib: pip install 'narrowcast[plots]'" in done.output
    asked = narrowcast("show", tmp_path / "out", "--plot", tmp_path / "p.png")
    assert asked.exit_code == 2
    assert "narrowcast[plots]" in asked.output
    measured = narrowcast("measure", "--quick", "--out", tmp_path / "m")
    assert measured.exit_code == 2
    assert "narrowcast[measure]" in measured.output
