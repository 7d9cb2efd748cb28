from .client import client_app as client_app
from .mods import sizes_mod as sizes_mod
from .node import Hosted as Hosted
from .server import server_app as server_app
from .settings import FleetSettings as FleetSettings
from .strategy import NarrowcastStrategy as NarrowcastStrategy
from .tasks import LoaderTask as LoaderTask
from .tasks import ModelTask as ModelTask
