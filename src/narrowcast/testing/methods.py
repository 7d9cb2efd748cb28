"""The laws of a method: clients agree with the server bit for bit, bytes are those that are encoded, what is
declared is true, nothing hostile gets in, and what was stopped goes on as if nothing had happened."""

from __future__ import annotations

import io
from collections.abc import Iterator
from dataclasses import replace
from random import Random
from typing import Any

import msgspec
import numpy as np
import torch

from narrowcast.errors import Diverged
from narrowcast.methods.base import MAX_WEIGHT, Method
from narrowcast.rounds import exchange
from narrowcast.rounds.plan import Plan
from narrowcast.rounds.simulator import Simulation
from narrowcast.testing.contract import Contract, raises, raw
from narrowcast.testing.toys import toy_task
from narrowcast.testing.worlds import KEY, RUN, SIZES, World, events, wander
from narrowcast.wire import messages as wire
from narrowcast.wire.messages import Payload, WireError

PLAN = Plan(cohort=5, lr=0.1, epochs=3, key=1, run=b"contract")


class MethodContract(Contract):
    """Of the method that `make` returns, fit for a model of 61 parameters."""

    def make(self) -> Method[Any]:
        raise NotImplementedError("say which method: def make(self): return Mine(...)")

    def world(self, D: int = SIZES[0]) -> World:
        return World(self.make(), D)

    # What a client is sent, and what it makes of it.

    def test_every_visit_gives_the_servers_theta(self) -> None:
        """Whoever comes, however late, with whatever it claims to have; never for more than a newcomer's."""
        for seed in range(6):
            world = self.world(SIZES[seed % 2])

            def cheap(model: Any, have: int | None, down: Payload, world: World = world) -> None:
                most = len(wire.encode_payload(world.method.download(world.server, None)))
                size = len(wire.encode_payload(down))
                assert size <= most, f"one at version {have} is sent {size} bytes, a newcomer {most}"

            def only_a_false_claim(model: Any, have: int | None) -> None:
                assert have != model.version, f"one that is at version {have} is refused"

            wander(world, events(seed, 80), cheap, only_a_false_claim)

    def test_a_tampered_download_gives_the_servers_theta_or_a_wire_error(self) -> None:
        """Bytes cut out and put in; in a right envelope blocks that are too long, too short, too many."""
        world, chance = self.world().step(), Random(1)
        model = world.today()
        down = world.step().method.download(world.server, model.version)
        good = exchange.seal(world.round, down)
        wrong = [exchange.seal(world.round, bad) for bad in _misshapen(down)]
        for data in (*wrong, *(_spoilt(good, chance) for _ in range(60))):
            try:
                got, theta, _ = exchange.receive_down(world.method, model, data, RUN, KEY)
            except WireError:
                continue
            assert wire.digest(theta, got.side) == world.round.digest, "another theta than the server's"

    # What is declared.

    def test_the_payload_of_a_sum_is_the_sum_of_the_payloads_as_declared(self) -> None:
        """`linear` is a promise that is kept, and not kept back: no method is slower than it needs to be."""
        world = self.world().step().step()
        m: Any = world.method
        model, key = world.today(), world.round.client_key(0)
        a, b = world.update(), world.update()
        rows = []
        for v in (a, b, a + 2 * b):
            rows.append(m.add(m.zero(world.server), m.compress(None, v, model, key)[1], 1.0).total)
        if m.linear and not m.probes:
            assert rows[2].abs().max() > 0, "nothing is sent"
            torch.testing.assert_close(rows[0] + 2 * rows[1], rows[2], rtol=1e-5, atol=1e-5)
        elif not m.probes:
            same = m.route(key) == m.route(world.round.client_key(1))
            close = torch.allclose(rows[0] + 2 * rows[1], rows[2])
            assert not (same and close), "it is linear, and does not say so: return True"

    def test_uploads_that_can_be_compared_fill_a_row(self) -> None:
        """`incomparable` is "" only where a rule over clients may look at uploads number by number."""
        world = self.world().step()
        acc = world.method.zero(world.server)
        where, numbers = world.method.terms(acc, world.upload())
        if not world.method.incomparable:
            assert isinstance(where, int), "its numbers are at places of their own: say so by incomparable"
            assert numbers.shape == acc.total[where].shape, f"{numbers.shape} is no row of the sum"

    def test_clients_keep_what_is_declared_and_nothing_is_changed_in_place(self) -> None:
        """Stateful methods return private state, others never do: vectors of float32 of their own."""
        world = self.world()
        v = world.update()
        before, key = v.clone(), world.round.client_key(0)
        private, up = world.method.compress(None, v, world.today(), key)
        assert torch.equal(v, before), "compress has changed the update"
        assert bool(private) == world.method.stateful, f"stateful is {world.method.stateful}, kept: {private}"
        for name, vector in (private or {}).items():
            assert (vector.dtype, vector.ndim) == (torch.float32, 1), f"{name} is no vector of float32"
            assert vector.data_ptr() != v.data_ptr(), f"{name} is the update's own memory"
        first = raw(private)
        world.method.compress(private, world.update(), world.today(), key)
        assert raw(private) == first, "compress has changed the old private state"
        assert up.route == world.method.route(key), f"route {up.route}, not {world.method.route(key)}"

    def test_the_same_update_and_key_give_the_same_bytes_within_the_bound(self) -> None:
        for D in SIZES:
            world = self.world(D).step()
            v, model, key = world.update(), world.today(), world.round.client_key(0)
            ups = [world.method.compress(None, v.clone(), model, key)[1] for _ in range(2)]
            one, other = (exchange.seal(world.round, up, weight=1) for up in ups)
            assert one == other, "the same update gives other bytes: draw from the key alone"
            bound = world.method.upload_bound(D)
            assert len(one) <= bound, f"an upload of {len(one)} bytes, upload_bound says {bound}"

    # What a round leaves behind.

    def test_an_empty_round_leaves_the_state_as_it_was(self) -> None:
        world = self.world()
        for _ in range(7):  # in every place of an epoch
            before = raw(world.method.state(world.server)), world.round.digest
            world.step(clients=0)
            after = raw(world.method.state(world.server)), world.round.digest
            assert after == before, "a round without updates has changed the server"
            world.number -= 1
            world.step()

    def test_a_restored_state_goes_on_bit_for_bit(self) -> None:
        for pause in (0, 1, 3, 8):
            one, other = self.world(), self.world()
            for world in (one, other):
                world.steps(pause, rate=0.5)
            saved = _saved(other.method.state(other.server))
            other.server = other.method.restore(other.theta0, other.layout, saved)
            other.theta = other.method.theta(other.server)
            for _ in range(8):
                states = [raw(world.method.state(world.server)) for world in (one, other)]
                assert states[0] == states[1], f"restored after {pause} rounds it is not what it was"
                assert other.round == one.round
                downs = [world.method.download(world.server, None) for world in (one, other)]
                assert wire.encode_payload(downs[0]) == wire.encode_payload(downs[1])
                one.step()
                other.step()

    def test_a_simulation_counts_bytes_as_encoded_and_resumes_bit_for_bit(self) -> None:
        task, plan = toy_task(), replace(PLAN, participation=0.9, dropout=0.2, local_batch=2)
        counted: Any = _Counted(self.make())
        slow = sum(record.up for record in Simulation(task, counted, replace(plan, per_client=True)))
        assert slow == counted.bytes, f"{slow} bytes in the records, {counted.bytes} in the messages"
        whole = Simulation(task, self.make(), plan)
        records = list(whole)
        assert sum(record.up for record in records) == slow, "summed before it is sent it has other bytes"
        stopped = Simulation(task, self.make(), plan)
        for _ in range(4):
            stopped.step()
        state = _saved(stopped.state())
        stopped.step()  # what happens after the checkpoint does not matter
        resumed = Simulation(task, self.make(), plan)
        resumed.restore(state)
        for record, before in zip(resumed, records[4:], strict=True):
            assert record.same_as(before), f"round {record.round} is another after a resume"
        assert raw(resumed.theta) == raw(whole.theta), "theta is another after a resume"

    def test_a_step_that_overflows_is_diverged(self) -> None:
        world = self.world()
        with raises(Diverged, "twenty steps at a rate of 3e38"):
            world.steps(20, rate=3e38)

    # What a server lets in.

    def test_a_weight_is_capped_and_must_be_positive(self) -> None:
        world = self.world().step()
        up, m = world.upload(), world.method
        most = m.add(m.zero(world.server), up, MAX_WEIGHT)
        for weight in (MAX_WEIGHT + 1, 1e30):
            assert raw(vars(m.add(m.zero(world.server), up, weight))) == raw(vars(most)), f"weight {weight}"
        assert most.weight == MAX_WEIGHT
        for weight in (0.0, -1.0, float("nan"), float("inf"), -float("inf")):
            with raises(WireError, f"a weight of {weight}", "weight"):
                m.add(m.zero(world.server), up, weight)

    def test_numbers_too_many_too_few_or_beyond_all_bounds_are_wire_errors(self) -> None:
        """A refused upload leaves the sum as it was; each of its blocks is spoilt in turn."""
        world = self.world().step()
        up = world.upload()
        for i, block in enumerate(up.blocks):
            for data in (b"", block.data[:-1], block.data + b"\0"):
                self._refused(world, up, i, wire.Block(block.format, data), f"{len(data)} bytes")
            if block.format == 0:
                for value in (float("nan"), float("inf"), 3e38):
                    spoilt = block.numbers(len(block.data) // 4)
                    spoilt[0] = value
                    self._refused(world, up, i, wire.block(spoilt), f"{value} in block {i}")
        for blocks in ([], up.blocks * 2):
            bad = exchange.seal(world.round, msgspec.structs.replace(up, blocks=blocks), weight=1)
            with raises(WireError, f"{len(blocks)} blocks instead of {len(up.blocks)}"):
                self._receive(world, bad)

    def _refused(self, world: World, up: Payload, i: int, block: wire.Block, what: str) -> None:
        acc = world.method.add(world.method.zero(world.server), up, 1.0)
        before = raw(vars(acc))
        bad = msgspec.structs.replace(up, blocks=[*up.blocks[:i], block, *up.blocks[i + 1 :]])
        with raises(WireError, f"{what} instead of {len(up.blocks[i].data)}"):
            self._receive(world, exchange.seal(world.round, bad, weight=1), acc)
        assert raw(vars(acc)) == before, f"{what}: refused, and yet in the sum"

    def test_whatever_is_done_to_an_upload_only_wire_errors_come_of_it(self) -> None:
        """Cut, lengthened, with every bit flipped in turn: never a crash, never a sum that is not finite."""
        world, chance = self.world().step(), Random(2)
        good = world.sealed()
        flipped = [_flipped(good, bit) for bit in range(8 * len(good))]
        refused = 0
        for bad in (*flipped, *(_spoilt(good, chance) for _ in range(60))):
            acc = world.method.zero(world.server)
            before = raw(vars(acc))
            try:
                self._receive(world, bad, acc)
            except WireError:
                refused += 1
                assert raw(vars(acc)) == before, "refused, and yet in the sum"
            assert np.isfinite(acc.total.numpy()).all(), "a sum that is not finite"
        assert refused > 100, f"{refused} of {len(flipped) + 60} refused: the header alone has more bits"

    def _receive(self, world: World, data: bytes, acc: Any = None) -> Any:
        acc = world.method.zero(world.server) if acc is None else acc
        return exchange.receive_up(world.method, acc, data, world.round, 0, set())


class _Counted:
    """A method whose uploads are measured where they are made."""

    def __init__(self, method: Method[Any]) -> None:
        self.method, self.bytes = method, 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self.method, name)

    def compress(self, *arguments: Any) -> tuple[Any, Payload]:
        private, up = self.method.compress(*arguments)
        self._count(up)
        return private, up

    def compress_many(self, *arguments: Any) -> list[Payload]:
        ups = list(self.method.compress_many(*arguments))
        for up in ups:
            self._count(up)
        return ups

    def _count(self, up: Payload) -> None:
        self.bytes += len(wire.encode(wire.sealed(RUN, 0, 0, 1, bytes(8), up)))


def _saved(state: Any) -> Any:
    """Through a file of tensors and numbers, nothing else."""
    file = io.BytesIO()
    torch.save(state, file)
    return torch.load(io.BytesIO(file.getvalue()), weights_only=True)


def _misshapen(payload: Payload) -> Iterator[Payload]:
    """Each of its blocks cut, lengthened and doubled in turn; none of them, all of them twice."""
    replaced, blocks = msgspec.structs.replace, payload.blocks
    for i, block in enumerate(blocks):
        for data in (b"", block.data[:-4], block.data[:-1], block.data + b"\0", block.data * 2):
            yield replaced(payload, blocks=[*blocks[:i], wire.Block(block.format, data), *blocks[i + 1 :]])
    for number in (0, 2):
        yield replaced(payload, blocks=blocks * number)


def _flipped(data: bytes, bit: int) -> bytes:
    changed = bytearray(data)
    changed[bit // 8] ^= 1 << bit % 8
    return bytes(changed)


def _spoilt(data: bytes, chance: Random) -> bytes:
    """Some of it cut out, some bytes put in instead."""
    start, stop = sorted((chance.randint(0, len(data)), chance.randint(0, len(data))))
    return data[:start] + chance.randbytes(chance.randint(0, 40)) + data[stop:]
