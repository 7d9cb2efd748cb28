"""The pictures of a study of attacks: what was found beside what was there, and curves over d and rounds."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes

from narrowcast.plotting import plt
from narrowcast_studies.attacks.results import Case, Picture, Result, Summary, Upload, case_file, read_result
from narrowcast_studies.attacks.table import NAMES, Line, lines

FULL = Upload("uncompressed")
SHOWN = 4  # images in a grid
SIDE = 32
LOOK = {("paper", "dlg"): ("#ff7f0e", "v:"), ("paper", "invert"): ("#d62728", "s--"),
        ("honest", "dlg"): ("#2ca02c", "^:"), ("honest", "invert"): ("#1f77b4", "o-")}  # fmt: skip
WHO = {"paper": "the paper's attacker", "honest": "honest attacker"}


def grid(summary: Summary, cases: Path, attack: str, path: Path) -> None:
    """Original | full gradient | each upload, for either attacker, of the first images."""
    seen = {r.case.upload: None for r in summary.results if _plain(r.case) and r.case.attack == attack}
    uploads = [u for u in seen if u != FULL]
    count = min(SHOWN, summary.images)
    columns = 2 + len(uploads) + 1
    figure, axes = plt.subplots(
        2 * count,
        columns,
        figsize=(1.12 * columns + 0.7, 2.3 * count + 0.9),
        layout="constrained",
        squeeze=False,
    )
    for image in range(count):
        for row, attacker in enumerate(("paper", "honest")):
            across: list[Axes] = list(axes[2 * image + row])
            whole = _picture(summary, cases, Case(FULL, "honest", attack, index=image))
            _show(across[0], (whole.true, None) if whole else None, "original")
            _show(across[1], (whole.found, whole.psnr) if whole else None, "full\ngradient")
            for place, upload in zip(across[2:], uploads, strict=False):
                found = _picture(summary, cases, Case(upload, attacker, attack, index=image))
                _show(place, (found.found, found.psnr) if found else None, upload.label.replace(", ", "\n"))
            nothing = _picture(summary, cases, Case(FULL, "blind", attack, index=image))
            _show(across[-1], (nothing.found, nothing.psnr) if nothing else None, "noise\n(no upload)")
            across[0].set_ylabel("paper's" if attacker == "paper" else "honest", fontsize=9)
            for place in across:
                if image or row:
                    place.set_title("")
    figure.suptitle(
        f"{NAMES[attack]}: what each attacker makes of one upload (PSNR in dB below)", fontsize=11
    )
    _save(figure, path)


def _plain(case: Case) -> bool:
    return case.batch == case.rounds == 1 and case.upload.method != "time-varying"


def _picture(summary: Summary, cases: Path, case: Case) -> Picture | None:
    found: Result | None = read_result(case_file(cases, case, summary.settings, summary.source))
    return found.pictures[0] if found else None


def _show(axes: Axes, picture: tuple[bytes, float | None] | None, title: str) -> None:
    axes.set_xticks([])
    axes.set_yticks([])
    axes.set_title(title, fontsize=8)
    if picture is None:
        return
    axes.imshow(np.frombuffer(picture[0], np.uint8).reshape(SIDE, SIDE, 3), interpolation="nearest")
    if picture[1] is not None:
        axes.set_xlabel(f"{picture[1]:.1f}", fontsize=8, labelpad=1)


def over_d(summary: Summary, path: Path) -> None:
    """PSNR and the identification rate against d, static, one image, with the baselines."""
    rows = lines(summary)
    figure, (left, right) = plt.subplots(1, 2, figsize=(11, 4.6), layout="constrained")
    for (attacker, attack), (colour, look) in LOOK.items():
        chosen = [
            r for r in rows
            if (r.case.attacker, r.case.attack) == (attacker, attack)
            and _plain(r.case) and r.case.upload.method == "static"
        ]  # fmt: skip
        full = [
            r for r in rows if r.case == Case(FULL, "honest", attack, index=r.case.index) and _plain(r.case)
        ]
        points = sorted(chosen, key=lambda r: r.case.upload.numbers)
        x = [r.case.upload.numbers for r in points]
        if attacker == "honest":
            points, x = [*points, *full], [*x, *([summary.parameters] * len(full))]
        _curves(left, right, x, points, colour, look, f"{WHO[attacker]}, {NAMES[attack]}")
    for axes in (left, right):
        axes.set_xscale("log", base=2)
        axes.axvline(
            3 * SIDE * SIDE, color="#999999", linewidth=1, linestyle="-.", label="numbers in an image"
        )
        axes.set_xlabel(f"d, numbers in the upload (rightmost: all {summary.parameters:,})")
    _finish(figure, left, right, rows, path)


def over_rounds(summary: Summary, path: Path) -> None:
    """The same image through R different A: PSNR and the identification rate."""
    rows = lines(summary)
    chosen = [r for r in rows if r.case.upload.method == "time-varying"]
    if not chosen:
        return
    figure, (left, right) = plt.subplots(1, 2, figsize=(11, 4.6), layout="constrained")
    for attacker in ("paper", "honest"):
        points = sorted((r for r in chosen if r.case.attacker == attacker), key=lambda r: r.case.rounds)
        attack = points[0].case.attack
        colour, look = LOOK[attacker, attack]
        x = [r.case.rounds for r in points]
        _curves(left, right, x, points, colour, look, f"{WHO[attacker]}, {NAMES[attack]}")
    ticks = sorted({r.case.rounds for r in chosen})
    for axes in (left, right):
        axes.set_xscale("log", base=2)
        axes.set_xticks(ticks, [str(tick) for tick in ticks])
        axes.set_xlabel(f"rounds seen, each with an A of its own, d = {chosen[0].case.upload.numbers}")
    _finish(figure, left, right, rows, path)


def _curves(
    left: Axes, right: Axes, x: list[int], points: list[Line], colour: str, look: str, name: str
) -> None:
    style: dict[str, Any] = {"color": colour, "fmt": look, "capsize": 3, "label": name, "markersize": 6}
    left.errorbar(x, [r.gain for r in points], yerr=[r.gain_error for r in points], **style)
    below, above = [r.rate - r.low for r in points], [r.high - r.rate for r in points]
    right.errorbar(x, [r.rate for r in points], yerr=np.clip([below, above], 0, None), **style)


def _finish(figure: Any, left: Axes, right: Axes, rows: list[Line], path: Path) -> None:
    nothing = rows[0]
    left.axhline(0.0, color="#333333", linewidth=1, linestyle="--", label="the mean picture")
    right.axhline(nothing.rate, color="#333333", linewidth=1, linestyle="--")
    left.set_ylabel("PSNR above the mean picture, dB (95 % interval)")
    right.set_ylabel("identified among 100 candidates (95 % interval)")
    right.set_ylim(-0.03, 1.03)
    for axes in (left, right):
        axes.grid(alpha=0.3)
    figure.legend(*left.get_legend_handles_labels(), loc="outside upper center", ncols=3, fontsize=9)
    _save(figure, path)


def _save(figure: Any, path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=130)
    plt.close(figure)
