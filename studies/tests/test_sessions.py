"""What stands in committed lines is not run again; the page takes the largest scale; rows share seeds."""

import json
from pathlib import Path

import pytest

from narrowcast.runs import RunConfig
from narrowcast_studies.reproduce import committed, experiment, running, table
from places import ROOT
from sessions import FILE, RESULTS, STUDY, call, timeless

COMMITTED = ROOT / "studies/experiments/results"


def test_from_committed_lines_alone_nothing_is_repeated(
    committed_alone: Path, begun: list[RunConfig]
) -> None:
    before = {p.name: p.read_bytes() for p in RESULTS.iterdir()}
    call("tiny")
    assert not begun
    assert not list(Path().glob("runs/*/*/config.toml"))
    assert {p.name: p.read_bytes() for p in RESULTS.iterdir()} == before


def test_of_an_unfinished_row_what_has_a_line_is_not_repeated(
    committed_alone: Path, begun: list[RunConfig]
) -> None:
    whole = timeless(RESULTS)
    (RESULTS / "results.csv").unlink()
    (RESULTS / "README.md").unlink()
    lines = (RESULTS / "runs.jsonl").read_text().splitlines()
    last = next(i for i, line in enumerate(lines) if '"row":"uncompressed","seed":1,' in line)
    rate = next(i for i, line in enumerate(lines) if '"row":"static d=16","seed":100' in line)
    lost = [json.loads(lines[i])["config"] for i in (rate, last)]
    kept = [line for i, line in enumerate(lines) if i not in (rate, last)]
    (RESULTS / "runs.jsonl").write_text("\n".join(kept) + "\n")
    call("tiny")
    assert [(c.method, c.seed, c.lr) for c in begun] == [(c["method"], c["seed"], c["lr"]) for c in lost]
    assert timeless(RESULTS) == whole


def test_a_line_with_other_settings_is_another_run(committed_alone: Path, begun: list[RunConfig]) -> None:
    file = Path("studies/experiments/tiny.toml")
    file.write_text(FILE.replace("dim = 16", "dim = 17"))
    call("tiny", "--only", "static")
    assert [c.dim for c in begun] == [17] * 5


def test_pictures_wait_for_the_rows_that_they_need(clone: Path) -> None:
    """Nobody lies, or nothing is in float32 yet: the page and the table are written without them."""
    kinds = ("liars", "bits", "narrow", "frontier")
    figures = "".join(f'[[figure]]\nkind = "{kind}"\n' for kind in kinds)
    text = FILE.replace("[[claim]]", figures + "[[claim]]").replace("dim = 16", "dim = 16\nup_bits = 2.0")
    Path("studies/experiments/tiny.toml").write_text(text)
    call("tiny", "--only", "static")
    assert "static d=16" in (RESULTS / "results.csv").read_text()
    drawn = {path.stem for path in RESULTS.glob("*.png")}
    assert drawn == {"narrow", "frontier"}
    page = (RESULTS / "README.md").read_text()
    assert {kind for kind in kinds if f"![{kind}]" in page} == drawn
    call("tiny", "--only", "uncompressed")
    assert "![bits](bits.png)" in (RESULTS / "README.md").read_text()


def old_form(folder: Path) -> None:
    """As results were written before tuning runs had lines."""
    new = ("clients", "rounds_per_epoch", "narrowcast", "torch", "diverged", "untrained")
    runs = [json.loads(line) for line in (folder / "runs.jsonl").read_text().splitlines()]
    kept = [{k: v for k, v in run.items() if k not in new} for run in runs if not run["config"]["validation"]]
    (folder / "runs.jsonl").write_text("".join(json.dumps(run) + "\n" for run in kept))


def test_results_from_before_tuning_had_lines_stand(committed_alone: Path, begun: list[RunConfig]) -> None:
    sweep = (RESULTS / "README.md").read_text().partition("| lr: result |")[2].splitlines()
    old_form(RESULTS)
    before = {p.name: p.read_bytes() for p in RESULTS.iterdir()}
    assert "3 of 3 rows are done" in call("tiny")
    assert not begun
    assert {p.name: p.read_bytes() for p in RESULTS.iterdir()} == before  # not touched
    file = Path("studies/experiments/tiny.toml")
    file.write_text(FILE.replace("dim = 16", "dim = 17"))
    call("tiny")  # one row is new: so is the page, with the old rows and their sweep
    assert {c.dim for c in begun} == {17}
    page = (RESULTS / "README.md").read_text()
    assert all(line in page for line in sweep if line.startswith(("| uncompressed", "| half")))
    assert len((RESULTS / "runs.jsonl").read_text().splitlines()) == 4 + 3 + 2


def shown(trials: dict[str, dict[float, float]]) -> dict[str, dict[float, str]]:
    """As the page says them; a row whose rate was given has no line there."""
    return {
        row: {lr: f"{value:.4f}" for lr, value in found.items()} for row, found in trials.items() if found
    }


# Of an experiment that has begun there are lines and no page.
FINISHED = [
    path.parent.name for path in COMMITTED.glob("*/runs.jsonl") if path.with_name("README.md").exists()
]


@pytest.mark.parametrize("name", FINISHED)
def test_the_committed_small_results_stand_on_a_new_machine(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(ROOT)
    chosen = experiment.load(name, "small")
    work = running.Work(chosen, tmp_path / "no-runs", chosen.results)
    rows = work.known()
    assert [row.row.name for row in rows if row.next] == []
    page = (chosen.results / "README.md").read_text()
    swept = table.swept(page)
    trials = {row.row.name: row.outcome.trials for row in rows if row.outcome and row.outcome.runs}
    assert shown(trials) == shown(swept)
    lines = table.lines([row.outcome for row in rows if row.outcome])
    found = committed.read(chosen.results)
    assert found
    for line in lines:  # seconds are those of the lines, in tenths
        stands = found.lines[line.name]
        assert (line.values, line.rate, line.given_up) == (stands.values, stands.rate, stands.given_up)
        assert line.settings == stands.settings
        both = pytest.approx((stands.up, stands.down), rel=0, abs=0, nan_ok=True)  # private rows tell none
        assert (line.up, line.down) == both


BOTH = FILE.replace("[[claim]]", '[[figure]]\nkind = "frontier"\nx = "compression"\n[[claim]]')
BOTH += "[medium]" + STUDY.replace("SCALE", "medium").replace("epochs = 2\n", "epochs = 3\n", 1)
PAIR = "| static d=16 |"


def judged() -> tuple[str, str]:
    """(the verdict of the claim with its reason, the line of its pair)."""
    call("results")
    text = Path("docs/results.md").read_text().partition("### Static sends fewer bytes")[2]
    return text.split("\n\n")[1], next(line for line in text.splitlines() if line.startswith(PAIR))


def test_a_pair_is_judged_at_the_largest_scale_that_has_both(committed_alone: Path) -> None:
    Path("studies/experiments/tiny.toml").write_text(BOTH)
    before = {p.name: p.read_bytes() for p in RESULTS.iterdir() if p.is_file()}
    assert judged()[1].endswith("| yes |")  # one scale alone goes without saying
    call("tiny", "--scale", "medium", "--only", "static")
    verdict, pair = judged()
    assert verdict == "**holds**. It was short."
    assert pair.endswith("| yes | small |")
    call("tiny", "--scale", "medium", "--only", "uncompressed")
    verdict, pair = judged()
    assert verdict == "**holds**. It was long."
    assert pair.endswith("| yes | medium |")
    assert {p.name: p.read_bytes() for p in RESULTS.iterdir() if p.is_file()} == before
    text = Path("docs/results.md").read_text()
    assert "Scale medium: `narrowcast reproduce tiny --scale medium`" in " ".join(text.split())
    assert "(../studies/experiments/results/tiny/medium/frontier.png)" in text


def test_rows_with_other_seeds_are_not_compared(committed_alone: Path) -> None:
    Path("studies/experiments/tiny.toml").write_text(BOTH)
    call("tiny", "--scale", "medium")
    assert judged()[1].endswith("| medium |")
    other = BOTH.rpartition("seeds = [0, 1]")
    Path("studies/experiments/tiny.toml").write_text(other[0] + "seeds = [0, 1, 2]" + other[2])
    call("tiny", "--scale", "medium", "--only", "static")  # one row has the third seed, the other has not
    assert judged()[1].endswith("| small |")
    call("tiny", "--scale", "medium", "--only", "uncompressed")
    assert judged()[1].endswith("| medium |")
    path = RESULTS / "medium/runs.jsonl"
    text = path.read_text()
    path.write_text(text.replace('"row":"uncompressed","seed":2', '"row":"uncompressed","seed":3'))
    assert judged()[1].endswith("| small |")
