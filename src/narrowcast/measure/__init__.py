"""How small can d be? The smallest d whose training reaches a share of the uncompressed metric."""

from narrowcast.measure.library import intrinsic_dimension
from narrowcast.measure.results import Measured
from narrowcast.measure.search import Found, Interval, interval, search

__all__ = ["Found", "Interval", "Measured", "interval", "intrinsic_dimension", "search"]
