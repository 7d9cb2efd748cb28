"""narrowcast on Flower: the same methods, messages and bytes, with real nodes.

`client_app` and `server_app` make the two halves of a Flower app; `NarrowcastStrategy` is for people who have
a ServerApp of their own. See docs/flower.md. Flower itself is imported with the first of these names.
"""

import os

import lazy_loader

os.environ.setdefault("FLWR_TELEMETRY_ENABLED", "0")  # before Flower is imported: nothing is reported

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
