"""The version is the library's, which stands beside it in the clone: it is said once."""

import re
from pathlib import Path

from setuptools import setup

LIBRARY = Path(__file__).resolve().parent.parent / "src" / "narrowcast" / "__init__.py"
(VERSION,) = re.findall(r'^__version__ = "(.+)"$', LIBRARY.read_text(), re.M)
setup(version=VERSION)
