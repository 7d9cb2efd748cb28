"""What a client is guaranteed: noise, clipping, what both come to, and the ledger of what was released."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
