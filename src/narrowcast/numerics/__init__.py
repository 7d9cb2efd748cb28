"""Numbers that are the same on every machine: keyed random bits, transforms, sketches, flat parameters."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
