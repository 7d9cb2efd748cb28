"""The page of results follows the committed results and nothing else, and cannot go stale."""

import json
import math
import re
from pathlib import Path

import pytest
from typer.testing import CliRunner

from narrowcast.cli.app import app
from narrowcast.errors import ConfigError
from narrowcast_studies.reproduce import claims, committed, experiment, figures, page, sections
from narrowcast_studies.reproduce.table import COLUMNS
from places import ROOT

NOT_RUN = "Not run yet: table1 (`narrowcast reproduce table1`), later (`narrowcast reproduce later`)."
FILE = """
title = "words: perplexity against compression"
about = "Every client has a voice."
[[figure]]
kind = "frontier"
x = "compression"

[small]
task = "digits"
epochs = 2
seeds = [0, 1]
[[small.run]]
name = "static d=16"
method = "static"
dim = 16
lr = 5.0
[[small.run]]
name = "Top-K"
method = "topk"
lr = 0.3
[[small.run]]
name = "uncompressed"
method = "uncompressed"
lr = 0.3

[[claim]]
says = "Static is ahead of Top-K, for fewer bytes"
where = "the paper, Experiments"
kind = ["ahead", "cheaper"]
pairs = [["static d=16", "Top-K"]]
why = "It is small both ways."
[[claim]]
says = "Static loses little"
kind = "within"
by = 0.5
pairs = [["static d=16", "uncompressed"]]
why = "Few dimensions are enough."

# As the paper's table of PersonaChat prints them.
[[published]]
name = "static d=16"
method = "static"
metric = 27.7
up = 7595.0
down = 7595.0
total = 7595.0
dim = 16384
[[published]]
name = "Top-K, k = 50 000"
method = "topk"
metric = 19.3
up = 30.3
down = 2490.0
total = 60.0
note = "up and down are exchanged in print."
"""


@pytest.fixture
def clone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with an experiment whose committed results are made by hand, and one that was not run."""
    monkeypatch.chdir(tmp_path)
    results = tmp_path / "studies/experiments/results/words"
    results.mkdir(parents=True)
    (tmp_path / "studies/experiments/words.toml").write_text(FILE)
    (tmp_path / "studies/experiments/later.toml").write_text(FILE)
    rows = [
        "static d=16,static,dim=16,5.0,,15.1,0.1,0,100,100,10,10,10,1.0,15.0 15.2",
        "Top-K,topk,,0.1,0.3:1,17.1,0.0,0,100,900,10,1.1,2.0,1.0,17.1 17.1",
        "uncompressed,uncompressed,,0.3,,14.9,0.1,0,1000,1000,1,1,1,1.0,14.8 15.0",
    ]
    (results / "results.csv").write_text("\n".join([",".join(COLUMNS.split()), *rows]) + "\n")
    shared = {"parameters": 330, "metric": "perplexity", "higher_is_better": False}
    asked = {
        "static d=16": {"method": "static", "dim": 16, "lr": 5.0},
        "Top-K": {"method": "topk", "lr": 0.1},  # a lower rate than that of the file: tuned
        "uncompressed": {"method": "uncompressed", "lr": 0.3},
    }
    runs = [
        shared
        | {"row": row, "seed": seed}
        | {"config": {"task": "digits", "epochs": 2.0, "clients": 287, "seed": seed, "threads": 1} | config}
        for row, config in asked.items()
        for seed in (0, 1)
    ]
    (results / "runs.jsonl").write_text("".join(json.dumps(run) + "\n" for run in runs))
    (results / "frontier.png").write_bytes(b"")
    return tmp_path


def write_page() -> str:
    result = CliRunner().invoke(app, ["reproduce", "results"])
    assert result.exit_code == 0, result.output
    return Path("docs/results.md").read_text()


def test_the_page_has_verdicts_figures_and_the_papers_rows(clone: Path) -> None:
    text = write_page()
    assert "table1 (`narrowcast reproduce table1`), later (`narrowcast reproduce later`)" in text
    own = (
        "| Static is ahead of Top-K, for fewer bytes | the paper, Experiments | **holds**: [words](#words) |"
    )
    assert own in text
    assert "| Static loses little | - | **holds**: [words](#words) |" in text
    prose = " ".join(text.split())
    assert "digits, D = 330, 287 clients, 2 epochs, seeds 0, 1, every row's rate" in prose
    assert "the same budget. Every client has a voice." in prose
    picture = "../studies/experiments/results/words/frontier.png"
    assert f"![words: perplexity against compression, frontier]({picture})" in text
    assert (
        "| static d=16 | 15.1000 +- 0.1000 | 100 B / 100 B | Top-K | 17.1000 +- 0.0000 | 100 B / 900 B | "
        "+2.0000 +- 1.2706 | 5 times fewer | yes |"
    ) in text
    assert "| static d=16 | 15.1000 +- 0.1000 | 10/10/10 | 27.7 | 7595/7595/7595 |" in text
    assert "| Top-K, k = 50 000 | - | - | 19.3 | 30.3/2490/60 |" in text
    assert "Top-K, k = 50 000: up and down are exchanged in print." in text


def test_a_verdict_follows_the_results_and_nothing_else(clone: Path) -> None:
    path = clone / "studies/experiments/results/words/results.csv"
    claim = "| Static is ahead of Top-K, for fewer bytes | the paper, Experiments |"
    path.write_text(path.read_text().replace("17.1 17.1", "15.3 15.1"))
    assert f"{claim} **open**" in write_page()
    path.write_text(path.read_text().replace("15.3 15.1", "13.0 13.2"))
    assert f"{claim} **does not" in write_page()
    path.write_text("\n".join(line for line in path.read_text().splitlines() if "topk" not in line))
    assert "**not run yet**: [words](#words)" in write_page()


def test_results_of_other_settings_than_the_file_has_are_not_run_yet(clone: Path) -> None:
    """Whoever changes a row and does not run it again must not read the old results under its name."""
    file = clone / "studies/experiments/words.toml"
    file.write_text(FILE.replace('method = "topk"', 'method = "topk"\nk = 77', 1))
    text = write_page()
    assert "| Static is ahead of Top-K, for fewer bytes | the paper, Experiments | **not run yet**" in text
    assert "| Static loses little | - | **holds**" in text
    file.write_text(FILE.replace("epochs = 2", "epochs = 3"))
    assert "words (`narrowcast reproduce words`)" in write_page()  # nothing of it was run


def test_what_it_is_about_is_a_text(clone: Path) -> None:
    (clone / "studies/experiments/words.toml").write_text(FILE.replace('"Every client has a voice."', "7"))
    with pytest.raises(ConfigError, match="about is a text, got 7"):
        experiment.load("words", "small")


def test_a_claim_about_rows_that_are_none_is_refused(clone: Path) -> None:
    (clone / "studies/experiments/words.toml").write_text(FILE.replace('"Top-K"]]', '"Top-L"]]'))
    with pytest.raises(ConfigError, match="a claim names rows that are none: Top-L"):
        experiment.load("words", "small")


@pytest.mark.parametrize("name", ["results.csv", "runs.jsonl"])
def test_damaged_results_name_their_folder(clone: Path, name: str) -> None:
    path = clone / "studies/experiments/results/words" / name
    path.write_bytes(path.read_bytes()[:-20] + b"\nx")
    with pytest.raises(ConfigError, match="words is damaged"):
        committed.read(path.parent)


def test_results_from_before_the_metric_was_written_are_accuracy(clone: Path) -> None:
    path = clone / "studies/experiments/results/words/runs.jsonl"
    path.write_text(
        path.read_text().replace('"metric": "perplexity", "higher_is_better": false', '"rounds": 3')
    )
    results = committed.read(path.parent)
    assert results
    assert (results.metric, results.higher_is_better) == ("accuracy", True)


def test_the_papers_rows_are_a_panel_where_they_have_what_the_figure_shows() -> None:
    printed = {"name": "a", "method": "static", "metric": 27.7, "total": 7595}
    _, published = claims.parse({"published": [printed | {"dim": 16}, printed | {"name": "b"}]}, "x")
    over = experiment.Figure(kind="lines", x="dim")
    assert [(m.x, m.y) for m in figures._theirs(over, published)] == [(16, 27.7)]
    over = experiment.Figure(kind="frontier", x="compression")
    assert [(m.x, m.name) for m in figures._theirs(over, published)] == [(7595, "a"), (7595, "b")]
    assert not figures._theirs(experiment.Figure(kind="frontier"), published)
    assert not figures._theirs(experiment.Figure(kind="curves"), published)


def test_a_method_without_d_is_a_level_across_lines_over_d() -> None:
    marks = [
        figures.Mark(16.0, 0.7, 0.1, "static d=16", "static", "static"),
        figures.Mark(math.nan, 0.9, 0.1, "all of it", "uncompressed", "uncompressed"),
        figures.Mark(math.nan, 0.6, 0.1, "half of it", "uncompressed", "uncompressed"),
        figures.Mark(64.0, 0.8, 0.1, "static d=64", "static", "static"),
    ]
    canvas, axes = figures.plt.subplots()
    figures._lines(axes, experiment.Figure(kind="lines", x="dim"), marks)
    assert axes.get_xticks().tolist() == [16, 64]
    assert sorted(axes.get_legend_handles_labels()[1]) == ["all of it", "half of it", "static"]
    one, other = [line for line in axes.lines if str(line.get_label()).endswith("of it")]
    assert [list(line.get_ydata()) for line in (one, other)] == [[0.9, 0.9], [0.6, 0.6]]
    assert one.get_linestyle() != other.get_linestyle()
    figures.plt.close(canvas)


@pytest.mark.parametrize("before", range(90, 130))
def test_no_line_of_prose_begins_a_list(before: int) -> None:
    text = sections.filled("x" * before + " where m - e > 0")
    assert " ".join(text.split()) == "x" * before + " where m - e > 0"
    assert not any(line.startswith("- ") for line in text.splitlines())


def test_outside_a_clone_the_error_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    result = CliRunner().invoke(app, ["reproduce", "results"])
    assert result.exit_code == 2
    assert "run this in a clone" in result.output
    assert not (tmp_path / "docs").exists()


def test_the_committed_page_is_that_of_the_committed_results(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    same = page.text() == page.PAGE.read_text()
    assert same, "docs/results.md is stale: write it with `narrowcast reproduce results`, and commit it"


def test_the_order_of_the_page(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(experiment, "names", lambda: ["zoo", "matrix", "baselines-mlp", "sst2", "trend-x"])
    assert page.names() == ["table1", "sst2", "trend-x", "baselines-mlp", "matrix", "zoo"]


def test_what_other_programs_wrote_is_on_the_page_with_its_verdict(clone):
    results = clone / "studies/experiments/results"
    (results / "tides.md").write_text(
        "# Tides: high and low\n\n`python tides.py`\n\n| a |\n\nVerdict: high\nis ahead.\n"
    )
    (results / "winds.md").write_text("# Winds\n\nThey blow.\n")
    text = page.text()
    _, _, last = text.partition("## Measured by programs of their own")
    assert "- [Tides: high and low](../studies/experiments/results/tides.md): high is ahead.\n" in last
    assert "- [Winds](../studies/experiments/results/winds.md)\n" in last


SHORT = """
[[paragraph]]
says = "Static: {words/small: static d=16}, for {words/small: static d=16 / Top-K} times fewer bytes."
rests_on = [["words", "Static is ahead of Top-K, for fewer bytes", "holds"]]
"""


def test_the_page_opens_with_plain_words_and_the_numbers_of_the_results(clone: Path) -> None:
    (clone / "studies/experiments/results/in-short.toml").write_text(SHORT)
    opening, _, _ = page.text().partition("## The paper's claims")
    assert opening.endswith("\n\nStatic: 15.1, for 5 times fewer bytes.\n\n" + NOT_RUN + "\n\n")


@pytest.mark.parametrize(
    ("was", "now", "said"),
    [
        ('"holds"', '"open"', "which is now 'holds': rewrite the paragraph that begins 'Static"),
        ("ahead of Top-K", "ahead of all", "which is now None"),
        (": static d=16}", ": static d=17}", "speaks of 'static d=17' of words, scale small"),
        ("words/small: static d=16}", "words/medium: static d=16}", "scale medium, which has no results"),
        ("says", "sais", "sais"),
    ],
)
def test_plain_words_that_the_results_do_not_bear_out_are_refused(
    clone: Path, was: str, now: str, said: str
) -> None:
    assert was in SHORT
    (clone / "studies/experiments/results/in-short.toml").write_text(SHORT.replace(was, now))
    with pytest.raises(ConfigError, match=re.escape(said)):
        page.text()
