"""What a byte on the link is: messages, number formats and codes, and the digest of theta."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
