"""What runs at the server."""

from flwr.app import Context

from app.task import evaluate, make_model
from narrowcast.flower import ModelTask, server_app


def build(context: Context) -> ModelTask:
    return ModelTask(make_model(), evaluate, clients=int(context.run_config["narrowcast.clients"]))


app = server_app(build)
