"""Labels beside points, none over another: greedy, in pixels, the nearest free place first."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from itertools import pairwise

from narrowcast.plotting import Axes, Bbox, Figure

GAP = 11.0  # pixels of 100 dpi between a point and its label
MARK = 9.0  # half the width of a point
BAR = 3.0  # half the width of an error bar's caps
RINGS = 14  # distances to try
FAR = 2.5  # gaps beyond which a thin line leads from the label to its point


def place_labels(
    axes: Axes,
    points: list[tuple[float, float, str, str]],
    bars: Sequence[tuple[float, float, float]] = (),
    size: float = 8.0,
    ways: Sequence[Sequence[tuple[float, float]]] = (),
) -> None:
    """Write (x, y, text, colour) beside every point, clear of all points and of the other labels.

    `bars` are error bars (x, low, high) to keep clear of too, `ways` lines through points. The limits and
    scales of the axes must be final: places are found in pixels.
    """
    figure = axes.get_figure()
    assert isinstance(figure, Figure), "labels are placed in a figure of their own"
    scale = figure.dpi / 100
    figure.canvas.draw()
    figure.set_layout_engine("none")  # from here on nothing moves
    points_a_pixel = 72 / figure.dpi  # offsets in points stay right at any resolution
    pixels = [_pixel(axes, x, y) for x, y, _, _ in points]
    inside = axes.get_window_extent().padded(-BAR * scale)
    taken = [_around(px, py, MARK * scale) for px, py in pixels]
    taken += [_along(_pixel(axes, x, low), _pixel(axes, x, high), BAR * scale) for x, low, high in bars]
    for way in ways:
        taken += _beside([_pixel(axes, x, y) for x, y in way], BAR * scale)
    order = sorted(range(len(points)), key=lambda i: -pixels[i][1])
    for i in order:
        x, y, text, colour = points[i]
        label = axes.annotate(
            text, (x, y), xytext=(0, 0), textcoords="offset points", fontsize=size, color=colour, zorder=5
        )
        box = label.get_window_extent()
        dx, dy = _free(box, pixels[i], taken, inside, GAP * scale)
        label.set_position((dx * points_a_pixel, dy * points_a_pixel))
        taken.append(_moved(box, pixels[i], dx, dy))
        if math.hypot(*_nearest(taken[-1], pixels[i])) > FAR * GAP * scale:
            end = axes.transData.inverted().transform(_closest(taken[-1], pixels[i]))
            axes.plot([x, end[0]], [y, end[1]], color=colour, linewidth=0.5, alpha=0.7, zorder=1)


def _pixel(axes: Axes, x: float, y: float) -> tuple[float, float]:
    px, py = axes.transData.transform((x, y))
    return float(px), float(py)


def _around(px: float, py: float, r: float) -> Bbox:
    return Bbox.from_extents(px - r, py - r, px + r, py + r)


def _along(low: tuple[float, float], high: tuple[float, float], r: float) -> Bbox:
    return Bbox.from_extents(low[0] - r, low[1], high[0] + r, high[1])


def _beside(way: list[tuple[float, float]], r: float) -> list[Bbox]:
    """Boxes along a line, as close as they are wide."""
    found = []
    for (x, y), (u, v) in pairwise(way):
        steps = max(1, math.ceil(math.hypot(u - x, v - y) / (2 * r)))
        found += [_around(x + (u - x) * i / steps, y + (v - y) * i / steps, r) for i in range(steps)]
    return found


def _moved(box: Bbox, point: tuple[float, float], dx: float, dy: float) -> Bbox:
    """The box of a label whose lower left corner is (dx, dy) from its point."""
    x, y = point[0] + dx, point[1] + dy
    return Bbox.from_extents(x, y, x + box.width, y + box.height)


def _closest(box: Bbox, point: tuple[float, float]) -> tuple[float, float]:
    """The point of the box that is nearest to a point."""
    return min(max(point[0], box.x0), box.x1), min(max(point[1], box.y0), box.y1)


def _nearest(box: Bbox, point: tuple[float, float]) -> tuple[float, float]:
    x, y = _closest(box, point)
    return x - point[0], y - point[1]


def _candidates(box: Bbox, gap: float) -> Iterator[tuple[float, float]]:
    """Offsets of the lower left corner: right, left, above, below, the corners; then further out."""
    w, h = box.width, box.height
    for ring in range(1, RINGS + 1):
        r = gap * ring
        for angle in (0, 180, 90, 270, 45, 135, 315, 225, 22, 158, 338, 202, 67, 113, 293, 247):
            c, s = math.cos(math.radians(angle)), math.sin(math.radians(angle))
            yield r * c + (c - 1) * w / 2, r * s + (s - 1) * h / 2


def _free(
    box: Bbox, point: tuple[float, float], taken: list[Bbox], inside: Bbox, gap: float
) -> tuple[float, float]:
    for dx, dy in _candidates(box, gap):
        spot = _moved(box, point, dx, dy)
        within = (
            inside.x0 <= spot.x0 and spot.x1 <= inside.x1 and inside.y0 <= spot.y0 and spot.y1 <= inside.y1
        )
        if within and not any(spot.overlaps(other) for other in taken):
            return dx, dy
    return gap, 0.0  # nowhere is free: better over another than lost
