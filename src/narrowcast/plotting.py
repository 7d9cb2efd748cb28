"""matplotlib, where it is installed, for files and not for a screen."""

from __future__ import annotations

from narrowcast.extras import require

require("matplotlib", "plots", "a picture")

import matplotlib  # noqa: E402

matplotlib.use("Agg")

import matplotlib.pyplot as plt  # noqa: E402
from matplotlib.axes import Axes  # noqa: E402
from matplotlib.figure import Figure  # noqa: E402
from matplotlib.ticker import FuncFormatter  # noqa: E402
from matplotlib.transforms import Bbox  # noqa: E402

__all__ = ["Axes", "Bbox", "Figure", "FuncFormatter", "plt"]
