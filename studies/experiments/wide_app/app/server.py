"""What runs at the server."""

from app.task import of_server
from narrowcast.flower import server_app

app = server_app(of_server)
