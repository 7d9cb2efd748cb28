"""What runs on every node."""

from app.task import of_node
from narrowcast.flower import client_app, sizes_mod

app = client_app(of_node, mods=[sizes_mod])
