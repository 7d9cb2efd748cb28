"""What runs on every node."""

from flwr.app import Context

from app.task import loss, make_loader, make_model, measure
from narrowcast.flower import LoaderTask, client_app


def build(context: Context) -> LoaderTask:
    part, parts = int(context.node_config["partition-id"]), int(context.node_config["num-partitions"])
    return LoaderTask(make_model(), loss, make_loader(part, parts), held_out=0.1, measure=measure)


app = client_app(build)
