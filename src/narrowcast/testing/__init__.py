"""The laws that methods, tasks, kinds of A and number formats obey, for everybody to inherit.

Give a constructor and inherit the suite; pytest or `check` runs it, and neither is imported:

    class TestMine(MethodContract):
        def make(self) -> Method:
            return Mine(k=7)
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
