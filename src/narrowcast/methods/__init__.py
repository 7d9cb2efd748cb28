"""How the server's model reaches a client and a client's update the server: `table` has all methods."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
