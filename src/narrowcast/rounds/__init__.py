"""A round and a run of rounds: who comes, what goes each way, what a client computes, what is recorded."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
