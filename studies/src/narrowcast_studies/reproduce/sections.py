"""An experiment on the page of results: settings, pictures, the paper's rows, claims and their figures."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Sequence
from dataclasses import dataclass

from narrowcast.tables import markdown_table, times
from narrowcast.units import digits
from narrowcast_studies.reproduce import committed, experiment
from narrowcast_studies.reproduce.claims import Claim, Judged, Pair, Published, judge, verdict
from narrowcast_studies.reproduce.committed import Committed
from narrowcast_studies.reproduce.experiment import Experiment
from narrowcast_studies.reproduce.table import Line, size
from narrowcast_studies.study import Study

WIDTH = 118  # of a line of prose
Scale = tuple[Experiment, Committed]


@dataclass(frozen=True)
class Section:
    name: str
    text: str
    judged: list[Judged]
    lines: dict[str, dict[str, Line]]  # by scale and row


def section(name: str) -> Section | None:
    """An experiment's part of the page; None: there are no results yet."""
    found: list[Scale] = []
    for scale in experiment.scales(name):
        known = experiment.load(name, scale)
        read = committed.read(known.results)
        if results := read.of(known.study) if read else None:
            found.append((known, results))
    if not found:
        return None
    known, results = found[0]
    lines = {known.scale: results.lines for known, results in found}
    judged = [judge(claim, lines, results.higher_is_better) for claim in known.claims]
    several = len(found) > 1
    parts = [
        _heading(name, known.study.title),
        *(part for one in found for part in _scale(*one, several)),
        *_timed(name),
        *(_beside(known.published, found) if known.published else []),
        *(_claim(one, results.metric, several) for one in judged),
    ]
    return Section(name, "\n\n".join(parts), judged, lines)


def _scale(known: Experiment, results: Committed, several: bool) -> list[str]:
    """What was run at a scale, and its pictures."""
    title = f"{known.study.title}, scale {known.scale}" if several else known.study.title
    pictures = [
        f"![{figure.title or f'{title}, {figure.kind}'}](../{known.results.as_posix()}/{figure.file})"
        for figure in known.figures
        if (known.results / figure.file).is_file()
    ]
    return [_settings(known, results, several), *pictures]


def _timed(name: str) -> list[str]:
    """Rows that were given some minutes at a scale that is too large to finish."""
    pages = sorted((experiment.FOLDER / "results" / name).glob("**/timed/*/README.md"))
    found = [f"[{page.parent.name}](../{page.as_posix()})" for page in pages]
    return [filled(f"At the paper's own size, as far as it got: {', '.join(found)}.")] if found else []


def table1() -> Section | None:
    """Table 1 is counted, not trained: its rows have formulas to agree with, and no intervals."""
    from narrowcast_studies.reproduce import table1

    folder = experiment.FOLDER / "results" / "table1"
    rows = table1.read(folder)
    if rows is None:
        return None
    result = verdict(["yes" if table1.agrees(row) else "no" for row in rows])
    one = Judged(table1.CLAIM, [], result)
    parts = [
        _heading("table1", "Table 1: bandwidth a client over training, and dimensions explored"),
        filled(
            f"`narrowcast reproduce table1` ([table](../{folder.as_posix()}/README.md)): "
            f"{table1.settings(rows[0].parameters)}"
        ),
        table1.table(rows),
        _claim(one, "", several=False),
    ]
    return Section("table1", "\n\n".join(parts), [one], {})


def _heading(name: str, title: str) -> str:
    return f'<a id="{name}"></a>\n\n## {title}'


def filled(text: str) -> str:
    """Prose of one paragraph in lines of WIDTH, none of which begins with a minus: that would be a list."""
    held = " ".join(text.split()).replace(" - ", "\u00a0- ")
    lines = textwrap.fill(held, WIDTH, break_long_words=False, break_on_hyphens=False)
    return lines.replace("\u00a0", " ")


def _settings(known: Experiment, results: Committed, several: bool) -> str:
    configs = [run.config for run in results.runs]
    seeds = sorted({run.seed for run in results.runs})
    tasks = ", ".join(dict.fromkeys(config["task"] for config in configs))
    epochs = sorted({config["epochs"] for config in configs if config.get("epochs")})
    facts = [
        tasks,
        f"D = {max(run.parameters for run in results.runs):,}",
        f"{max(config.get('clients') or 0 for config in configs):,} clients",
        *(
            [f"{' to '.join(f'{e:g}' for e in dict.fromkeys((epochs[0], epochs[-1])))} epochs"]
            if epochs
            else []
        ),
        f"seeds {', '.join(map(str, seeds))}",
        *_budget(known.study),
    ]
    asked = "" if known.scale == "small" else f" --scale {known.scale}"
    command = f"`narrowcast reproduce {known.name}{asked}` ([table](../{known.results.as_posix()}/README.md))"
    missing = [row.name for row in known.study.rows if row.name not in results.lines]
    left = f" Not run yet: {'; '.join(missing)}." if missing else ""
    scale = f"Scale {known.scale}: " if several else ""
    return filled(f"{scale}{command}: {', '.join(facts)}. {known.about}{left}")


def _budget(study: Study) -> list[str]:
    """By what the rates were found, where any was."""
    if not study.tunes:
        return []
    elsewhere = [row.name for row in study.rows if row.tuned]
    if not elsewhere:
        return ["every row's rate tuned by the same budget"]
    return [f"rates tuned by the same budget, but for {'; '.join(elsewhere)}, tuned in another study"]


def _beside(published: list[Published], found: list[Scale]) -> list[str]:
    """Our rows, each at the largest scale that has it, and the paper's, those of one name in one line."""
    ours: dict[str, tuple[str, Line]] = {}
    for known, results in reversed(found):
        ours |= {name: (known.scale, line) for name, line in results.lines.items()}
    theirs = {row.name: row for row in published}
    names = list(dict.fromkeys([*ours, *theirs]))
    several = len(found) > 1
    metric = found[0][1].metric
    head = ["row", f"{metric} here", "compression here", "in the paper", "compression there"]
    rows = [[name, *_ours(ours.get(name, ("", None))[1]), *_theirs(theirs.get(name))] for name in names]
    if several:
        head.insert(1, "scale")
        for name, row in zip(names, rows, strict=True):
            row.insert(1, ours[name][0] if name in ours else "-")
    said = "Compression is up/down/total, the paper's as printed. " + " ".join(notes(published))
    return [markdown_table(head, rows, left=1 + several), filled(said)]


def notes(published: Sequence[Published]) -> list[str]:
    """What is to be said of the paper's rows, once for those of which the same is."""
    rows: dict[str, list[str]] = {}
    for row in published:
        if row.note:
            rows.setdefault(row.note, []).append(row.name)
    return [f"Of {', '.join(names)}: {note}." for note, names in rows.items()]


def _ours(line: Line | None) -> list[str]:
    if line is None:
        return ["-", "-"]
    return [_mean(line), times(line.ratio.up, line.ratio.down, line.ratio.total) if line.ratio else "-"]


def _theirs(row: Published | None) -> list[str]:
    if row is None:
        return ["-", "-"]
    ratios = [f"{x:g}" for x in (row.up, row.down, row.total) if x is not None]
    return [f"{row.metric:g}" + (f" +- {row.error:g}" if row.error else ""), "/".join(ratios) or "-"]


def _claim(one: Judged, metric: str, several: bool) -> str:
    claim = one.claim
    said = f"**{one.verdict}**{one.share}" + (f" ({claim.where})" if claim.where else "")
    parts = [f"### {claim.says}", filled(f"{said}. {one.why}")]
    if one.pairs:
        head = ["row", metric, "up/down", "against", metric, "up/down", "difference", "bytes", _asked(claim)]
        rows = [_figures(pair) for pair in one.pairs]
        if several:
            head.append("scale")
            for row, pair in zip(rows, one.pairs, strict=True):
                row.append(pair.scale or "-")
        parts.append(markdown_table(head, rows))
    return "\n\n".join(parts)


def _asked(claim: Claim) -> str:
    """The head of the column of answers: what is asked of every pair."""
    words = {
        "ahead": "ahead?",
        "within": f"within {claim.by or 0:g}?",
        "cheaper": "cheaper?" if claim.times is None else f"{claim.times:g} times cheaper?",
    }
    return " ".join(words[kind] for kind in claim.kinds)


def _figures(pair: Pair) -> list[str]:
    one, other = pair.lines
    error = ", no interval" if math.isinf(pair.error) else f" +- {pair.error:.4f}"
    difference = "-" if math.isnan(pair.difference) else f"{pair.difference:+.4f}{error}"
    return [pair.names[0], *_both(one), pair.names[1], *_both(other), difference, _fewer(pair), _answer(pair)]


def _answer(pair: Pair) -> str:
    if pair.takes is None:
        return pair.answer
    return f"{pair.answer} ({'over 100' if math.isinf(pair.takes) else pair.takes} seeds)"


def _fewer(pair: Pair) -> str:
    if math.isnan(pair.fewer):
        return "-"
    ratio = max(pair.fewer, 1 / pair.fewer)
    how = "fewer" if pair.fewer > 1 else "more"
    return "as many" if ratio < 1.005 else f"{digits(ratio)} times {how}"


def _both(line: Line | None) -> list[str]:
    if line is None or not line.values:
        return ["not run yet" if line is None else "diverged", "-"]
    return [_mean(line), f"{size(line.up)} / {size(line.down)}"]


def _mean(line: Line) -> str:
    lost = f" ({line.diverged} diverged)" if line.diverged else ""
    return f"{line.mean:.4f} +- {line.error:.4f}{lost}" if line.values else "diverged"
