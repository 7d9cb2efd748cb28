"""The command `narrowcast`: thin over the library. What is named here is for commands of other packages."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
