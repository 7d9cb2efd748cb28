"""Runs as a page to look at: one file that needs no network, or served here while the runs go on."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
