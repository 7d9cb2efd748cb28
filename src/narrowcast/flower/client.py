"""The ClientApp: a user's model, loss and data behind the protocol of the core."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any

import msgspec
from flwr.app import Context, Message
from flwr.clientapp import ClientApp

from narrowcast.flower import shelf
from narrowcast.flower.messages import Ask, Exam, Order, pack, unpack
from narrowcast.flower.node import Hosted, Node
from narrowcast.flower.settings import allowed, run_settings
from narrowcast.numerics.devices.names import AUTO
from narrowcast.rounds.task import Task
from narrowcast.runs.config import RunConfig
from narrowcast.runs.reading import make_config
from narrowcast.tasks.table import build as build_task

Build = Callable[[Context], Task | Hosted]


def client_app(
    build: Build | None = None, *, config: RunConfig | None = None, mods: Sequence[Any] = ()
) -> ClientApp:
    """A ClientApp whose nodes train what `build(context)` returns; without one, the run's built-in task.

    Settings come from the app's config (`narrowcast.*`), or from `config`. Clients are numbered by the node's
    config: node p of P (`partition-id`, `num-partitions`) hosts clients p, p + P, p + 2P, ... , one for each
    that its task has. With `device` in it ("cuda"), the task goes there; else it is where it was built.

    The server names the method and the task, and sends no code: names of others' are looked up among what is
    installed here. With `narrowcast-allow` in the node's config, only those of them that it lists; and it may
    list a `package.module:name`, which nothing from outside can make a node import.
    """
    app = ClientApp(mods=list(mods))

    def node(context: Context, run: bytes) -> Node:
        fixed: dict[str, Any] = {} if build is None else {"task": "custom"}
        settings = config or run_settings(context.run_config, allowed=allowed(context), **fixed)
        settings = settings.model_copy(update={"device": str(context.node_config.get("device", AUTO))})
        made = build(context) if build else built_in(context, settings)
        hosted = made if isinstance(made, Hosted) else Hosted(made, _numbers(context, len(made.clients)))
        return Node(hosted, settings, shelf.of_node(context, run.hex(), f"from-{min(hosted.clients)}"))

    @app.query()
    def ask(message: Message, context: Context) -> Message:
        run = unpack(message.content, Ask).run
        return Message(pack(node(context, run).here()), reply_to=message)

    @app.train()
    def train(message: Message, context: Context) -> Message:
        order = unpack(message.content, Order)
        return Message(pack(node(context, order.run).answer(order)), reply_to=message)

    @app.evaluate()
    def examine(message: Message, context: Context) -> Message:
        exam = unpack(message.content, Exam)
        return Message(pack(node(context, exam.run).examine(exam)), reply_to=message)

    return app


def built_in(context: Context, config: RunConfig) -> Hosted:
    """The built-in task of the run; node p of P hosts every client whose number is p modulo P."""
    task = _task(config.model_dump_json())
    part, parts = _part(context)
    clients = range(part, len(task.clients), parts)
    if not clients:
        raise ValueError(f"node {part} of {parts} would host no client: the task has {len(task.clients)}")
    return Hosted(task, {c: c for c in clients}, len(task.clients))


@lru_cache(maxsize=1)
def _task(config: str) -> Task:
    """Built once a process: the simulation engine calls the same one again and again."""
    settings = make_config(msgspec.json.decode(config))
    return build_task(settings.task, settings.task_options())


def _numbers(context: Context, count: int) -> dict[int, int]:
    part, parts = _part(context)
    return {part + parts * i: i for i in range(count)}


def _part(context: Context) -> tuple[int, int]:
    try:
        part, parts = (int(context.node_config[name]) for name in ("partition-id", "num-partitions"))
    except KeyError as missing:
        raise ValueError(
            f"this node's config lacks {missing}: start it with "
            '--node-config "partition-id=0 num-partitions=2"'
        ) from None
    if not 0 <= part < parts:
        raise ValueError(f"partition-id must be 0 .. {parts - 1}, got {part}")
    return part, parts
