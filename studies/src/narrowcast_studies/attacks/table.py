"""A study of attacks in numbers: means over the images with 95 % intervals, in tables."""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Iterable
from dataclasses import dataclass

from scipy.stats import binomtest

from narrowcast.intervals import student
from narrowcast.tables import PlainTable, markdown_table, plain_table
from narrowcast.units import format_bytes
from narrowcast_studies.attacks.results import Case, Picture, Result, Summary, Upload

NAMES = {"dlg": "DLG", "invert": "inverting gradients"}


@dataclass(frozen=True)
class Line:
    """One kind of attack over all its images. PSNR in dB; the errors are half widths of 95 % intervals."""

    case: Case  # its index means nothing here
    bytes: float
    psnr: float
    psnr_error: float
    gain: float  # of PSNR over the mean picture, image by image: free of how hard each image is
    gain_error: float
    ssim: float
    ssim_error: float
    identified: int
    images: int
    low: float  # of the interval of the identification rate
    high: float

    @property
    def rate(self) -> float:
        return self.identified / self.images


def line(case: Case, pictures: list[Picture], size: float, nothing: dict[int, float]) -> Line:
    """`nothing`: the PSNR of the mean picture, by image."""
    found = sum(p.identified for p in pictures)
    psnr, ssim = (student([getattr(p, name) for p in pictures]) for name in ("psnr", "ssim"))
    gain = student([p.psnr - nothing[p.image] for p in pictures])
    return Line(case, size, *psnr, *gain, *ssim, found, len(pictures), *_rate(found, len(pictures)))


def _rate(right: int, of: int) -> tuple[float, float]:
    """Wilson's 95 % interval of a rate: it keeps a width at 0 and at 1."""
    found = binomtest(right, of).proportion_ci(0.95, method="wilson")
    return float(found.low), float(found.high)


def lines(summary: Summary) -> list[Line]:
    """A line for every kind of case, in the order in which they were run; the mean picture first."""
    groups: dict[tuple[object, ...], list[Picture]] = {}
    first: dict[tuple[object, ...], Result] = {}
    for result in summary.results:
        c = result.case
        key = (c.upload, c.attacker, c.attack, c.batch, c.rounds)
        groups.setdefault(key, []).extend(result.pictures)
        first.setdefault(key, result)
    nothing = {p.image: p.psnr for p in summary.baseline}
    alone = [p for p in summary.baseline if p.image < summary.images]
    return [
        line(Case(Upload("mean picture"), "none", "none"), alone, 0, nothing),
        *(line(first[key].case, group, first[key].bytes, nothing) for key, group in groups.items()),
    ]


def single(rows: Iterable[Line]) -> list[Line]:
    """One image, one round: by attack, then from the most numbers to the fewest."""
    chosen = [r for r in rows if r.case.batch == 1 and r.case.upload.method != "time-varying"]
    return sorted(chosen, key=lambda r: (r.case.attack != "none", r.case.attack, r.case.attacker == "blind"))


def plus_minus(value: float, error: float, digits: int) -> str:
    return f"{value:.{digits}f}" + (f" +- {error:.{digits}f}" if math.isfinite(error) else "")


def label(case: Case) -> str:
    """What is seen, for a table."""
    if case.attacker == "none":
        return "nothing: the mean picture"
    return "nothing: noise" if case.attacker == "blind" else case.upload.label


def cells(r: Line) -> list[str]:
    shown = {"none": "-", "blind": "-", "paper": "the paper's", "honest": "honest"}[r.case.attacker]
    if r.case.upload.method == "uncompressed" and r.case.attacker == "honest":
        shown = "either"
    return [
        label(r.case),
        NAMES.get(r.case.attack, "-"),
        shown,
        plus_minus(r.psnr, r.psnr_error, 1),
        plus_minus(r.gain, r.gain_error, 1),
        plus_minus(r.ssim, r.ssim_error, 2),
        f"{r.identified} of {r.images} ({r.low:.0%} to {r.high:.0%})",
    ]


HEAD = ["upload", "attack", "attacker", "PSNR, dB", "gain, dB", "SSIM", "identified among 100"]


def main_table(summary: Summary) -> str:
    """One image a client."""
    rows = [[*cells(r)[:1], format_bytes(r.bytes), *cells(r)[1:]] for r in single(lines(summary))]
    return markdown_table([HEAD[0], "message", *HEAD[1:]], rows, 4)


def batch_table(summary: Summary) -> str:
    """Several images in one gradient."""
    rows = [r for r in lines(summary) if r.case.batch > 1]
    return markdown_table(["batch", *HEAD], [[str(r.case.batch), *cells(r)] for r in rows], 4)


def rounds_table(summary: Summary) -> str:
    """The same image, seen through several A."""
    rows = [r for r in lines(summary) if r.case.upload.method == "time-varying"]
    rows.sort(key=lambda r: (r.case.attacker, r.case.rounds))
    numbers = [[str(r.case.rounds), str(r.case.rounds * r.case.upload.numbers), *cells(r)[1:]] for r in rows]
    return markdown_table(["rounds", "numbers seen", *HEAD[1:]], numbers, 4)


def label_table(summary: Summary) -> str:
    """Labels inferred, by upload and batch."""
    batches = sorted({g.batch for g in summary.guesses})
    found: dict[tuple[str, str], dict[int, float]] = {}
    for g in summary.guesses:
        who = (
            "either"
            if g.upload.method == "uncompressed"
            else {"paper": "the paper's"}.get(g.attacker, g.attacker)
        )
        found.setdefault((g.upload.label, who), {})[g.batch] = g.right / g.images
    rows = [[*key, *(f"{by[b]:.0%}" if b in by else "-" for b in batches)] for key, by in found.items()]
    return markdown_table(["upload", "attacker", *(f"batch {b}" for b in batches)], rows, 2)


def terminal(summary: Summary) -> PlainTable:
    """As much as fits 80 columns: rates without their intervals."""
    rows = []
    for r in lines(summary):
        upload, _, attacker, _, gain, ssim, _ = cells(r)
        found = f"{r.identified}/{r.images}"
        rows.append(
            [upload + _extra(r.case), r.case.attack.replace("none", "-"), attacker, gain, ssim, found]
        )
    caption = (
        f"{summary.source}; {summary.settings.model}, {summary.parameters:,} parameters; labels "
        f"{summary.settings.labels}; gain: PSNR above the mean picture; "
        "intervals of 95 %; id.: identified among 100"
    )
    return plain_table([*HEAD[:3], *HEAD[4:6], "id."], rows, caption)


def _extra(case: Case) -> str:
    parts = [f"batch {case.batch}"] * (case.batch > 1) + [f"{case.rounds} rounds"] * (case.rounds > 1)
    return "".join(f", {part}" for part in parts)


def as_csv(summary: Summary) -> str:
    """A row a line, numbers in full."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    names = "method numbers attack attacker batch rounds bytes images"
    scores = "psnr psnr_error gain gain_error ssim ssim_error identified identified_low identified_high"
    writer.writerow([*names.split(), *scores.split()])
    for r in lines(summary):
        c = r.case
        what = [c.upload.method, c.upload.numbers, c.attack, c.attacker, c.batch, c.rounds, r.bytes, r.images]
        measured = [r.psnr, r.psnr_error, r.gain, r.gain_error, r.ssim, r.ssim_error, r.rate, r.low, r.high]
        writer.writerow([*what, *(f"{value:.6g}" for value in measured)])
    return text.getvalue()
