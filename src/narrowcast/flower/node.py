"""What a node does with a message: reconcile, train its clients, compress. One node may host many clients.

They share the node's model; private state is each client's own. The server's log is the truth: an order says
which version its download starts from, and a node that has another one answers so and is sent what it lacks.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import msgspec
from torch import Tensor

from narrowcast.flower.messages import Answer, Exam, Have, Here, Order, Sums, Upload
from narrowcast.flower.shelf import Shelf
from narrowcast.methods.base import Model, Private
from narrowcast.numerics import flat
from narrowcast.numerics.devices import names
from narrowcast.rounds import devices, exchange, store
from narrowcast.rounds.exchange import Round
from narrowcast.rounds.local import client_updates
from narrowcast.rounds.task import Task
from narrowcast.rounds.training import MAX_U32, augment_key, claim, local_work
from narrowcast.runs.config import RunConfig
from narrowcast.wire import messages as wire
from narrowcast.wire.formats import FormatError
from narrowcast.wire.messages import WireError

UNREADABLE = (msgspec.MsgspecError, ValueError)  # what another version has written, maybe


@dataclass(frozen=True)
class Hosted:
    """A node's task, and which of its clients has which number in the federation."""

    task: Task
    clients: Mapping[int, int]  # number in the federation -> index in task.clients
    total: int | None = None  # clients in the federation, where the task knows


class _Kept(msgspec.Struct, array_like=True):
    """A model on the shelf. A base of no bytes is theta0."""

    version: int | None
    stage: int
    base: bytes
    side: bytes | None


class _Lacking(Exception):
    """The download does not lead from what the node has to the server's model."""

    def __init__(self, version: int | None, why: str) -> None:
        self.version, self.why = version, why[:200]


def held_out(task: Task) -> int:
    """Examples that the task keeps apart to evaluate on, where it is one that does (see `LoaderTask`)."""
    return int(getattr(task, "held", 0))


class Node:
    """One message's worth of a node: made anew each time from its task, its settings and its shelf."""

    def __init__(self, hosted: Hosted, config: RunConfig, shelf: Shelf) -> None:
        self.hosted, self.shelf = hosted, shelf
        self.task: Any = hosted.task
        clients = hosted.total or config.clients or max(config.cohort or 1, len(hosted.clients))
        self.method: Any = config.build_method(clients)
        self.plan = config.plan(clients, b"\0" * 8)
        if config.device != names.AUTO:
            devices.placed(self.task, self.method, config.device)
        self.theta0 = self._theta0()
        devices.ready(self.method, self.theta0.device)
        self.digest = wire.digest(self.theta0)

    def here(self) -> Here:
        """Who is hosted, and what there is to start from."""
        clients = sorted(self.hosted.clients)
        examples = [min(len(self.task.clients[self.hosted.clients[c]]), MAX_U32) for c in clients]
        return Here(clients, examples, Have(self.digest, self._model().version), held_out(self.task))

    def answer(self, order: Order) -> Answer:
        """The uploads of the clients that the order names."""
        if strangers := set(order.clients) - set(self.hosted.clients):
            raise WireError(f"an order for clients {sorted(strangers)[:5]}, who are not here")
        if not len(order.clients) == len(order.counted) == len(order.kept):
            raise WireError(f"an order for {len(order.clients)} clients says of others what was counted")
        try:
            model, theta, round = self._received(order)
        except _Lacking as lacking:
            return Answer(Have(self.digest, lacking.version), lacks=lacking.why)
        return Answer(Have(self.digest, model.version), list(self._train(order, round, model, theta)))

    def examine(self, exam: Exam) -> Sums:
        """What the model is worth on the node's held-out examples, as sums."""
        try:
            model, theta, _ = self._received(exam)
        except _Lacking as lacking:
            return Sums(Have(self.digest, lacking.version), lacks=lacking.why)
        held = held_out(self.task)
        return Sums(Have(self.digest, model.version), held, self.task.examine(theta) if held else {})

    def _received(self, order: Order | Exam) -> tuple[Model, Tensor, Round]:
        """The server's model, from what the node has and what it was sent; it is kept."""
        if order.theta0:
            self._adopt(order.theta0)
        model = self._model() if order.have is not None else self._newcomer()
        if model.version != order.have:
            raise _Lacking(model.version, f"has version {model.version}, not {order.have}")
        try:
            model, theta, round = exchange.receive_down(
                self.method, model, order.down, order.run, self.plan.key
            )
        except WireError as error:
            self.shelf.remove("model")  # whatever it was, it does not lead to the server's theta
            raise _Lacking(self._model().version, str(error)) from None
        self._keep(model)
        return model, theta, round

    def _train(self, order: Order, round: Round, model: Model, theta: Tensor) -> Any:
        """Each client by itself: in company torch may round otherwise, by the processor, and what a client
        sends is not to depend on who else is at its node."""
        group = [(self.hosted.clients[c], round.client_key(c)) for c in order.clients]
        local = local_work(self.plan, self.method, order.rate)
        pictures = augment_key(self.plan, round.number)
        for client, counted, kept, one in zip(order.clients, order.counted, order.kept, group, strict=True):
            loss, v = next(client_updates(self.task, theta, [one], local, pictures))
            private = self._private(client, counted)
            lost = self.method.stateful and counted is not None and private is None
            weight = claim(self.plan, len(self.task.clients[one[0]]))
            try:
                private, data = exchange.send_up(self.method, private, v, model, round, client, weight)
            except (WireError, FormatError) as error:
                yield Upload(client, b"", loss, lost, str(error)[:200])
                continue
            if private is not None:
                self._put_private(client, private, round.number, {counted, kept})
            yield Upload(client, data, loss, lost)

    def _theta0(self) -> Tensor:
        """What the server sent as theta0, where it had to; else what the task starts from."""
        own, sent = self.task.theta0(), self.shelf.get("theta0")
        fits = sent is not None and len(sent) == 4 * own.numel()
        return flat.from_bytes(sent).to(own.device) if sent is not None and fits else own

    def _adopt(self, theta0: bytes) -> None:
        """Start from the server's theta0 from now on."""
        if len(theta0) != 4 * self.task.layout.size:
            raise WireError(
                f"the server's model has {len(theta0) // 4} parameters, this node's {self.task.layout.size}"
            )
        self.shelf.put("theta0", theta0)
        self.shelf.remove("model")
        self.theta0 = flat.from_bytes(theta0).to(self.theta0.device)
        self.digest = wire.digest(self.theta0)

    def _model(self) -> Model:
        """The model on the shelf; theta0 if there is none, not a whole one, or one of another version's."""
        data = self.shelf.get("model")
        if data is None:
            return self._newcomer()
        try:
            kept = msgspec.msgpack.decode(data, type=_Kept)
            base = flat.from_bytes(kept.base).to(self.theta0.device) if kept.base else self.theta0
            side = flat.from_bytes(kept.side) if kept.side is not None else None
            if base.numel() != self.theta0.numel():
                raise ValueError(
                    f"a model of {base.numel()} parameters, where this has {self.theta0.numel()}"
                )
        except UNREADABLE:
            self.shelf.remove("model")
            return self._newcomer()
        return Model(kept.version, kept.stage, base, self.task.layout, side)

    def _newcomer(self) -> Model:
        model: Model = self.method.newcomer(self.theta0, self.task.layout)
        return model

    def _keep(self, model: Model) -> None:
        # Where every download is the whole model, what the node had is of no use: it need not be kept.
        same = self.method.whole_model or flat.same_bits(model.base, self.theta0)
        side = None if model.side is None else flat.to_bytes(model.side)
        kept = _Kept(model.version, model.stage, b"" if same else flat.to_bytes(model.base), side)
        self.shelf.put("model", msgspec.msgpack.encode(kept))

    def _private(self, client: int, counted: int | None) -> Private | None:
        """The client's private state after the round whose update the server counted last."""
        if counted is None or not self.method.stateful:
            return None
        data = self.shelf.get(_name(client, counted))
        try:
            return None if data is None else store.from_bytes(data)
        except UNREADABLE:
            self.shelf.remove(_name(client, counted))
            return None

    def _put_private(self, client: int, private: Private, round: int, counted: set[int | None]) -> None:
        """The state after this round; of the others, those are kept that the server may go on from.

        That is the one it has counted, the one its checkpoint has, and the one before what it has counted, to
        which it goes back if that led to ruin; a checkpoint that it writes from now on has one of these or
        this round's.
        """
        self.shelf.put(_name(client, round), store.to_bytes(private))
        mine = f"client-{client}-"
        rounds = {int(n.removeprefix(mine)) for n in self.shelf.names() if n.startswith(mine) and n != mine}
        last = max((old for old in rounds if old in counted), default=0)
        before = max((old for old in rounds if old < last), default=last)
        for old in rounds - counted - {before, round}:
            self.shelf.remove(_name(client, old))


def _name(client: int, round: int) -> str:
    return f"client-{client}-{round}"
