"""narrowcast: federated training of large models through a narrow channel.

A model of D parameters is trained while each message carries d numbers: theta = theta0 + A Sigma, with A
regenerated from a seed on both sides. The names below are imported when they are first used.
"""

import lazy_loader

__version__ = "0.1.0"
__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
