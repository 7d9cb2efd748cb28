"""What can be trained: any torch module (`TorchTask`), and the built-in tasks by name."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
