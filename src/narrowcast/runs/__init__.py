"""A run with settings and a folder of its own: begun, killed, gone on with, summed up, compared."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
