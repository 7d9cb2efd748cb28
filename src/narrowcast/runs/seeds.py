"""Runs that differ by their seed alone are one: their mean, with Student's 95 % interval."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import replace

import msgspec

from narrowcast.intervals import half_width
from narrowcast.runs.summary import Summary


def pooled(runs: list[Summary]) -> list[Summary]:
    """A summary for each setting, in their order: of one seed as it is, of several the mean."""
    groups: dict[object, list[Summary]] = {}
    for run in runs:
        same = (run.settings, run.facts.label) if run.settings else run.folder
        groups.setdefault(same, []).append(run)
    return [mean(group) for group in groups.values()]


def mean(group: list[Summary]) -> Summary:
    """The mean of runs with several seeds; those that did not come to their end have no say in the metric."""
    group = list({run.facts.seed: run for run in group}.values())  # a folder that is named twice counts once
    if len(group) == 1:
        return group[0]
    ended = [run for run in group if run.complete and (run.metric is not None or run.at_nodes is not None)]
    metrics = [run.metric for run in ended if run.metric is not None]
    counted = f"{len(ended)} of {len(group)} seeds" if len(ended) < len(group) else f"{len(group)} seeds"
    label = f"{group[0].facts.label} ({counted})"
    several = ended or group
    curve, band = _curves(ended)
    return replace(
        several[0],
        facts=msgspec.structs.replace(several[0].facts, label=label, search=None),
        rounds=min(run.rounds for run in several),
        metric=math.fsum(metrics) / len(metrics) if metrics else None,
        up=round(_average([run.up for run in several])),
        down=round(_average([run.down for run in several])),
        down_first=round(_average([run.down_first for run in several])),
        down_dense=round(_average([run.down_dense for run in several])),
        uploads=round(_average([run.uploads for run in several])),
        downloads=round(_average([run.downloads for run in several])),
        seconds=_average([run.seconds for run in several]),
        network_seconds=_mean_or_none([run.network_seconds for run in several]),
        at_nodes=_mean_or_none([run.at_nodes for run in several]),
        evaluation=round(_average([run.evaluation for run in several])),
        epsilon=max((run.epsilon for run in several if run.epsilon is not None), default=None),
        dropped=dict(sum((Counter(run.dropped) for run in several), Counter())),
        last={},
        timed=[],
        curve=curve,
        seeds=tuple(run.facts.seed for run in group),
        interval=half_width(metrics),
        band=band,
        diverged=None if ended else next((run.diverged for run in group if run.diverged), None),
    )


def _curves(runs: list[Summary]) -> tuple[list[tuple[int, float]], tuple[tuple[float, float], ...]]:
    """(mean bytes, mean metric) at every evaluation that all of them have, and the interval there."""
    curve, band = list[tuple[int, float]](), list[tuple[float, float]]()
    for points in zip(*(run.curve for run in runs), strict=False):
        values = [value for _, value in points]
        middle, half = _average(values), half_width(values) or 0.0
        curve.append((round(_average([spent for spent, _ in points])), middle))
        band.append((middle - half, middle + half))
    return curve, tuple(band)


def _mean_or_none(values: list[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return _average(known) if known else None


def _average(values: list[int] | list[float]) -> float:
    return math.fsum(values) / len(values)
