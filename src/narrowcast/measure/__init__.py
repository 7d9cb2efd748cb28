"""How small can d be? The smallest d whose training reaches a share of the uncompressed metric."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
