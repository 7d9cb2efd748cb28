"""The first hour of a careless user: slips, no rate, one far too high, a narrow window; no traceback."""

from __future__ import annotations

from pathlib import Path

from typer.testing import CliRunner, Result

from narrowcast.cli.app import app

SHORT = ("--width", 8, "--rounds", 8, "--cohort", 40)


def narrowcast(*words: object, columns: int = 45) -> Result:
    return CliRunner().invoke(app, [str(word) for word in words], env={"COLUMNS": f"{columns}"})


def test_the_hour(tmp_path: Path) -> None:
    out = tmp_path / "run"
    assert "narrowcast" in narrowcast("--version").output
    slip = narrowcast("run", "digits", "--method", "statc", *SHORT)
    assert (slip.exit_code, "did you mean 'static'?" in " ".join(slip.output.split())) == (2, True)
    assert narrowcast("run", "digits").exit_code == 2  # how long?
    # A rate far too high: said, and nobody is sent to --resume.
    fast = narrowcast(
        "run", "quadratic", "--method", "uncompressed", "--lr", "1e12", "--rounds", 9, "--out", out
    )
    assert fast.exit_code == 1
    assert "lower --lr" in fast.output
    for words in (["run", "--resume", out], ["export", out, "--to", tmp_path / "w.pt"]):
        again = narrowcast(*words)
        assert again.exit_code == 1
        assert "diverged" in again.output
        assert f"--resume {out}" not in again.output
    # No rate at all is fine, and every number of the table is whole at 45 columns.
    good = narrowcast("run", "digits", "--method", "static", "--dim", "0.1k", *SHORT, "--out", out, "--force")
    assert good.exit_code == 0, good.output
    shown = narrowcast("show", out).output
    assert "rounds: 8" in shown
    assert "lr " in shown
    for result in (slip, fast, good):
        assert "Traceback" not in result.output
