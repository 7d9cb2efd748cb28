"""The laws of messages: what is sent arrives, sizes depend on shapes only, all else is a WireError.

The second half holds the checks of `exchange` to the same: whatever happens to a message on the way, it is
refused with a WireError, or it does what the honest one would have done.
"""

import os
import pickle
import subprocess
import sys
import time
import tracemalloc
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fitting import made as fit
from narrowcast.methods import METHODS, RoundInfo
from narrowcast.methods.base import DENSE, LOG
from narrowcast.numerics import pool
from narrowcast.numerics.flat import Layout
from narrowcast.rounds import exchange
from narrowcast.rounds.exchange import Round
from narrowcast.wire import messages as wire
from narrowcast.wire.formats import FORMATS, by_name
from narrowcast.wire.messages import MAX_BLOCKS, Block, Message, WireError, blocks_size, decode, encode

NAMES = list(FORMATS)
law = settings(deadline=None, max_examples=100)
SMALL, U32 = st.integers(0, 127), st.integers(0, 2**32 - 1)
BLOCKS = st.lists(st.builds(Block, SMALL, st.binary(max_size=300)), max_size=20)
PAYLOADS = st.builds(wire.Payload, SMALL, U32, BLOCKS)
FOUR, EIGHT = (st.binary(min_size=n, max_size=n) for n in (4, 8))
MESSAGES = st.builds(Message, FOUR, U32, U32, st.integers(0, 2**24 - 1), EIGHT, PAYLOADS)


def sample():
    """A message with one block of each format, three numbers each."""
    blocks = [wire.block(torch.tensor([1.0, -2.0, 0.5]), name, 7) for name in NAMES]
    return Message(b"run-", 4, 5, 6, b"check-it", wire.payload(blocks, kind=1, stage=2))


def head(count=0):
    """A header that says so many blocks follow."""
    bare = encode(msgspec.structs.replace(sample(), payload=wire.payload([])))
    return bare[:2] + count.to_bytes(3, "little") + bare[5:]


def is_valid(message):
    """Every field as the schema has it."""
    assert isinstance(message, Message)
    assert [len(f) for f in (message.run, message.check)] == [4, 8]
    p = message.payload
    assert all(0 <= n < 1 << 32 for n in (message.round, message.version, message.weight, p.stage))
    assert 0 <= p.kind <= 127
    assert all(0 <= b.format <= 127 and isinstance(b.data, bytes) for b in p.blocks)
    assert decode(encode(message)) == message


def decodes_or_refuses(data):
    """A valid message whose blocks are numbers or refused, or None for a WireError; all else escapes."""
    try:
        message = decode(data)
    except WireError:
        return None
    is_valid(message)
    for b in message.payload.blocks:
        for count in (0, 1, 3):
            try:
                numbers = b.numbers(count)
            except WireError:
                continue
            assert numbers.shape == (count,)
            assert torch.isfinite(numbers).all()
    return message


# What is sent arrives.


@law
@given(MESSAGES)
def test_decode_undoes_encode(message):
    assert decode(encode(message)) == message


@pytest.mark.parametrize("name", NAMES)
def test_a_block_gives_back_its_numbers(name):
    values = torch.linspace(-1, 1, 300).view(20, 15)
    expected = by_name(name).unpack(by_name(name).pack(values.numpy().reshape(-1), 3), 300)
    assert wire.block(values, name, 3).numbers(300).tolist() == expected.tolist()


def test_the_bytes_of_a_message_never_change():
    """Golden bytes: a run of today must be readable by the version of tomorrow."""
    assert encode(sample()).hex() == (
        "02"  # format
        "01"  # kind
        "040000"  # blocks
        "72756e2d"  # run
        "04000000"  # round
        "05000000"  # version
        "060000"  # weight
        "02000000"  # stage
        "636865636b2d6974"  # check
        "000c00" "0000803f000000c00000003f"  # f32
        "010a00" "00000040003800bc0034"  # f16
        "020700" "00000040408120"  # int8
        "030600" "000000409402"  # int4
    )  # fmt: skip


def test_the_check_of_a_message_never_changes():
    payload = msgspec.structs.replace(sample().payload, route=7)
    sealed = wire.sealed(b"run-name", 4, 5, 6, b"digest-8", payload)
    assert sealed.check.hex() == "2cd7a9716723162a"


def test_the_check_covers_the_header_the_run_the_digest_and_the_route():
    payload = sample().payload
    fields = {"run": b"run-name", "round": 4, "version": 5, "weight": 6, "digest": b"digest-8"}
    others = {"run": b"run-nam2", "round": 5, "version": 4, "weight": 7, "digest": b"digest-9"}
    checks = {wire.sealed(**fields, payload=payload).check}
    for name, value in others.items():
        checks.add(wire.sealed(**{**fields, name: value}, payload=payload).check)
    for change in ({"kind": 2}, {"stage": 3}, {"route": 1}, {"blocks": payload.blocks[1:]}):
        changed = msgspec.structs.replace(payload, **change)
        checks.add(wire.sealed(**fields, payload=changed).check)
    assert len(checks) == 10


def test_the_digest_of_a_vector_never_changes():
    assert wire.digest(torch.tensor([1.0, -2.0, 0.5])).hex() == "eb4a82269009243d"
    assert wire.digest(torch.tensor([0.0])) != wire.digest(torch.tensor([-0.0]))


def plain_digest(*vectors):
    """As its description reads."""
    mask, total, place = (1 << 64) - 1, 0, 0

    def mix(w, i):
        x = (w ^ (i * 0x9E3779B97F4A7C15 + 5) & mask) * 0xD6E8FEB86659FD93 & mask
        x = (x ^ x >> 32) * 0x9E3779B97F4A7C15 & mask
        return x ^ x >> 29

    for vector in vectors:
        data = vector.numpy().tobytes()
        data += bytes(-len(data) % 8)
        words = [int.from_bytes(data[i : i + 8], "little") for i in range(0, len(data), 8)]
        total += sum(mix(w, place + i) for i, w in enumerate(words)) + mix(vector.numel(), -1 - place)
        place += len(words)
    return (total & mask).to_bytes(8, "little")


@pytest.mark.parametrize("sizes", [[0], [1], [2], [7], [100_001], [3, 4], [1, 1, 1]])
def test_the_digest_is_the_plain_one_on_any_number_of_threads(sizes):
    generator = torch.Generator().manual_seed(3)
    vectors = [torch.randn(n, generator=generator) for n in sizes]
    for threads in (1, 3):
        with pool.using(threads):
            assert wire.digest(*vectors) == plain_digest(*vectors)
    whole = torch.randn(sizes[0] + 1, generator=generator)
    assert wire.digest(whole[1:]) == plain_digest(whole[1:])  # on any address


def test_any_change_of_a_vector_shows_in_its_digest():
    x = torch.randn(64, generator=torch.Generator().manual_seed(5))
    seen = {wire.digest(x)}
    for bit in range(64 * 32):
        data = bytearray(x.numpy().tobytes())
        data[bit // 8] ^= 1 << bit % 8
        seen.add(wire.digest(torch.from_numpy(np.frombuffer(data, np.float32).copy())))
    for i in range(63):
        order = torch.arange(64)
        order[[i, i + 1]] = order[[i + 1, i]]
        seen.add(wire.digest(x[order]))
    others = [x[:63], torch.cat([x, torch.zeros(1)]), torch.cat([x, torch.zeros(2)])]
    seen |= {wire.digest(other) for other in others}
    seen |= {wire.digest(x[:32], x[32:]), wire.digest(x[:30], x[30:])}
    assert len(seen) == 1 + 64 * 32 + 63 + 3 + 2


# Sizes.


@law
@given(MESSAGES, MESSAGES)
def test_equal_shapes_have_equal_sizes(a, b):
    """Whatever run, round, version, weight, check, kind and stage say."""
    blocks = a.payload.blocks
    b = msgspec.structs.replace(b, payload=msgspec.structs.replace(b.payload, blocks=blocks))
    assert len(encode(a)) == len(encode(b))


@law
@given(MESSAGES)
def test_a_message_adds_32_bytes_and_a_block_3(message):
    data = [len(b.data) for b in message.payload.blocks]
    assert len(encode(message)) == 32 + sum(3 + n for n in data) == 32 + blocks_size(data)


@pytest.mark.parametrize("size", [65_535, 65_536, 1 << 20])
@pytest.mark.parametrize("count", [0, 1, 17])
def test_a_block_adds_5_bytes_from_64_kilobytes_on(count, size):
    message = msgspec.structs.replace(sample(), payload=wire.payload([Block(5, bytes(size))] * count))
    assert len(encode(message)) == 32 + count * (size + (5 if size >= 1 << 16 else 3))
    assert len(encode(message)) == 32 + blocks_size([size] * count)
    assert decode(encode(message)) == message


def test_a_long_list_of_blocks():
    blocks = [Block(0, bytes(n % 300)) for n in range(70_000)]
    message = msgspec.structs.replace(sample(), payload=wire.payload(blocks))
    assert len(encode(message)) == 32 + blocks_size([len(b.data) for b in blocks])
    assert decode(encode(message)) == message


@law
@given(PAYLOADS)
def test_a_payload_by_itself_comes_back(payload):
    data = wire.encode_payload(payload)
    assert wire.decode_payload(data) == payload
    for n in range(len(data)):
        with pytest.raises(WireError):
            wire.decode_payload(data[:n])


# Hostile bytes.


def test_every_truncation_is_refused():
    data = encode(sample())
    for n in range(len(data)):
        with pytest.raises(WireError, match="not a narrowcast message"):
            decode(data[:n])


@law
@given(MESSAGES, st.binary(min_size=1, max_size=40))
def test_every_extension_is_refused(message, more):
    with pytest.raises(WireError, match="not a narrowcast message"):
        decode(encode(message) + more)


def test_every_byte_may_be_any_other():
    """All 255 replacements of every byte; what the numbers then are is looked at for one bit flipped."""
    data = encode(sample())
    kept = 0
    for i in range(len(data)):
        for value in range(256):
            changed = data[:i] + bytes([value]) + data[i + 1 :]
            if (value ^ data[i]).bit_count() == 1:
                kept += decodes_or_refuses(changed) is not None
                continue
            try:
                decode(changed)
            except WireError:
                continue
    assert 0 < kept < 8 * len(data)  # fields and numbers may be anything, the structure may not


@law
@given(MESSAGES, st.data())
def test_bit_flips(message, data):
    bits = bytearray(encode(message))
    for _ in range(data.draw(st.integers(1, 4))):
        place = data.draw(st.integers(0, 8 * len(bits) - 1))
        bits[place // 8] ^= 1 << place % 8
    decodes_or_refuses(bytes(bits))


@law
@given(st.binary(max_size=200), st.binary(max_size=200))
def test_random_bytes(data, tail):
    decodes_or_refuses(data)
    decodes_or_refuses(head() + tail)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**63) | st.floats() | st.text() | st.binary(),
    lambda inner: st.lists(inner, max_size=8) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=12,
)


@settings(law, max_examples=60)
@given(JSON)
def test_foreign_messages_are_refused(value):
    with pytest.raises(WireError, match=r"not a narrowcast message|message format"):
        decode(msgspec.msgpack.encode(value))
    with pytest.raises(WireError, match=r"not a narrowcast message|message format"):
        decode(msgspec.json.encode({"narrowcast": repr(value)}))


@pytest.mark.parametrize("version", [0, 1, 3, 127, 255])
def test_another_version_of_the_format_is_refused(version):
    with pytest.raises(WireError, match=f"message format {version}, this version speaks 2"):
        decode(bytes([version]) + encode(sample())[1:])


def test_a_message_over_the_limit_is_refused_unread():
    data = encode(sample())
    assert decode(data, limit=len(data)) == sample()
    with pytest.raises(WireError, match=f"{len(data)} bytes is over the limit"):
        decode(data, limit=len(data) - 1)


EMPTY = b"\0\0\0"  # a block without data
LONG = b"\x80\xff\xff\xff\xff"  # of one with 4 GB
HOSTILE = {
    "2^24 blocks": lambda: head((1 << 24) - 1),
    "2^24 blocks, some of them there": lambda: head((1 << 24) - 1) + EMPTY * 1000,
    "one block too many": lambda: head(MAX_BLOCKS + 1) + EMPTY * (MAX_BLOCKS + 1),
    "blocks of a terabyte": lambda: head(256) + LONG * 256,
    "a block of 4 GB": lambda: head(1) + LONG,
    "a block that ends after the message": lambda: head(1) + b"\0\xff\xff" + bytes(65_534),
    "a short block in the long form": lambda: head(1) + b"\x80\xff\xff\0\0" + bytes(65_535),
    "more blocks than it says": lambda: head(3) + EMPTY * 4,
    "fewer blocks than it says": lambda: head(3) + EMPTY * 2,
    "a kind over 127": lambda: b"\x02\xff" + head()[2:],
    "zeros": lambda: bytes(1_000_000),
    "msgpack, deep": lambda: b"\x91" * 1_000_000,
}


def peak_and_seconds(work):
    tracemalloc.start()
    started = time.process_time()
    try:
        work()
    finally:
        seconds, peak = time.process_time() - started, tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
    return peak, seconds


@pytest.mark.parametrize("name", HOSTILE)
def test_what_a_message_claims_is_not_allocated(name):
    data = HOSTILE[name]()

    def refuse():
        with pytest.raises(WireError):
            decode(data)

    peak, seconds = peak_and_seconds(refuse)
    assert peak < 1 << 18
    assert seconds < 2


def test_numbers_beyond_the_data_are_not_allocated():
    """A receiver that expects a terabyte and gets three numbers."""

    def refuse():
        for b in sample().payload.blocks:
            with pytest.raises(WireError, match="expected 274877906944 numbers"):
                b.numbers(1 << 38)

    assert peak_and_seconds(refuse)[0] < 1 << 18


def test_the_most_blocks_take_at_most_64_megabytes_beside_the_data():
    data = head(MAX_BLOCKS) + EMPTY * MAX_BLOCKS
    assert peak_and_seconds(lambda: decode(data))[0] <= len(data) + (64 << 20)


@pytest.mark.parametrize(
    "write", [lambda p: encode(wire.sealed(bytes(8), 0, 0, 1, bytes(8), p)), wire.encode_payload]
)
def test_a_block_of_4_gib_is_refused_with_a_sentence(write) -> None:
    """None of its zeros is ever written to memory, nor is pytest to print them."""
    try:
        write(wire.payload([wire.raw(bytes(1 << 32))]))
        said = "nothing"
    except Exception as error:
        said = f"{type(error).__name__}: {error}"
    assert said.startswith(
        "ConfigError: a block of 4294967296 bytes cannot be sent: a message's have at most 4"
    )


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc and sets RLIMIT_AS")
def test_hostile_messages_do_not_crash_a_process_that_may_not_grow():
    """In a process of its own, whose address space may grow by 64 MB only: a crash would show as its end."""
    script = (
        "import pickle, resource, sys; from narrowcast.wire import WireError, decode\n"
        "refused, messages = 0, pickle.load(sys.stdin.buffer)\n"
        "pages = int(open('/proc/self/statm').read().split()[0])\n"
        "limit = pages * resource.getpagesize() + (64 << 20)\n"
        "resource.setrlimit(resource.RLIMIT_AS, (limit, limit))\n"
        "for message in messages:\n"
        "    try: decode(message)\n"
        "    except WireError: refused += 1\n"
        "print(refused)"
    )
    messages = pickle.dumps([make() for make in HOSTILE.values()])
    path = os.pathsep.join([str(Path(wire.__file__).parents[1]), os.environ.get("PYTHONPATH", "")])
    done = subprocess.run(
        [sys.executable, "-c", script],
        input=messages,
        capture_output=True,
        timeout=600,
        check=False,
        env={**os.environ, "PYTHONPATH": path},
    )
    assert done.stdout == b"%d\n" % len(HOSTILE), done.stderr.decode()


# Numbers that must not be used.


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_f32_carries_nan_and_infinity_and_the_receiver_refuses_them(bad):
    b = wire.block(torch.tensor([1.0, bad, 2.0]))
    with pytest.raises(WireError, match="NaN or an infinity"):
        b.numbers(3)


@pytest.mark.parametrize("bits", [0x7C00, 0xFC00, 0x7C01, 0x7E00])
def test_f16_nan_and_infinity_are_refused(bits):
    data = np.array([1.0], "<f4").tobytes() + np.array([bits, 0], "<u2").tobytes()
    with pytest.raises(WireError, match="NaN or an infinity"):
        Block(NAMES.index("f16"), data).numbers(2)


@pytest.mark.parametrize(("name", "top"), [("f16", b"\xff\x7b"), ("int8", b"\x80"), ("int4", b"\x08")])
def test_finite_parts_whose_product_overflows_are_refused(name, top):
    """The largest scale times the largest number: as silent as any other refusal, no RuntimeWarning."""
    data = np.array([np.finfo(np.float32).max], "<f4").tobytes() + top
    with pytest.raises(WireError, match="NaN or an infinity"):
        Block(NAMES.index(name), data).numbers(1)


@pytest.mark.parametrize("scale", [0.0, -0.0, -1.0, np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("name", ["f16", "int8", "int4"])
def test_scales_that_are_not_positive_are_refused(name, scale):
    data = wire.block(torch.ones(3), name).data
    with pytest.raises(WireError, match="scale is not a positive number"):
        Block(NAMES.index(name), np.array([scale], "<f4").tobytes() + data[4:]).numbers(3)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("count", [0, 1, 2, 5, 6, 300])
def test_wrong_counts_are_refused(name, count):
    b = wire.block(torch.ones(3), name)
    if len(b.data) == by_name(name).size(count):
        pytest.skip("as many bytes")
    with pytest.raises(WireError, match=f"expected {count} numbers as {name}"):
        b.numbers(count)


def test_unknown_formats_are_refused_on_both_sides():
    with pytest.raises(WireError, match="unknown number format 4: this version knows 0 to 3"):
        Block(4, bytes(12)).numbers(3)
    with pytest.raises(ValueError, match="unknown number format 'f8'"):
        wire.block(torch.ones(3), "f8")


# The checks of an exchange.

D, DIM, K = 21, 4, 3
RUN, KEY = exchange.run_id(b"a test"), 11


@dataclass
class World:
    """A server after some rounds, a client that came in all of them, and the round that now begins."""

    method: Any
    server: Any
    model: Any  # the client's
    round: Round
    last_upload: bytes  # accepted in the round before
    v: torch.Tensor

    def download(self):
        return exchange.send_down(self.method, self.server, self.round, self.model.version)

    def receive(self, data):
        return exchange.receive_down(self.method, self.model, data, RUN, KEY)

    def upload(self, model=None, round=None, client=0, weight=3):
        round = self.round if round is None else round
        if model is None:
            model = self.receive(self.download())[0]
        return exchange.send_up(self.method, None, self.v, model, round, client, weight)[1]

    def add(self, data, client=0, weight=3):
        """The sum with this upload in it; when it is refused, the sum must be as it was."""
        acc = self.method.zero(self.server)
        before = acc.total.clone()
        try:
            return exchange.receive_up(self.method, acc, data, self.round, client, set(), weight)
        except WireError:
            assert torch.equal(acc.total, before)
            assert acc.weight == 0
            raise

    def rewritten(self, data, *, sealed=True, route=0, **fields):
        """An encoded message with some fields of it or of its payload exchanged, its check to suit or not."""
        message = decode(data)
        own = {f: v for f, v in fields.items() if f in Message.__struct_fields__}
        inner = {f: v for f, v in fields.items() if f not in own}
        payload = msgspec.structs.replace(message.payload, route=route, **inner)
        message = msgspec.structs.replace(message, payload=payload, **own)
        if sealed:
            check = wire.check(message, RUN, self.round.digest, route)
            message = msgspec.structs.replace(message, check=check)
        return encode(message)

    def route(self, client=0):
        return self.method.route(self.round.client_key(client))


@cache
def world(name, rounds=3, **options):
    """An epoch is two rounds long. Nothing that a test does changes a world: states are values."""
    made = fit(name, dim=DIM, subspaces=K, key=KEY, directions=DIM, **options)
    theta0, v, upload = torch.linspace(-1, 1, D), torch.linspace(2, -1, D), b""
    server, model = made.server(theta0, Layout(("w",), ((D,),))), made.newcomer(theta0)
    for number in range(rounds):
        digest = exchange.digest_of(made, server, made.theta(server))
        round = Round(RUN, KEY, number, server.version, digest)
        down = exchange.send_down(made, server, round, model.version)
        model, _, _ = exchange.receive_down(made, model, down, RUN, KEY)
        upload = exchange.send_up(made, None, v, model, round, 0, 3)[1]
        acc = exchange.receive_up(made, made.zero(server), upload, round, 0, set(), 3)
        server = made.step(server, acc, RoundInfo(number, number // 2, number % 2 == 1, 0.1))
    digest = exchange.digest_of(made, server, made.theta(server))
    now = Round(RUN, KEY, rounds, server.version, digest)
    return World(made, server, model, now, upload, v)


every_method = pytest.mark.parametrize("name", METHODS)
k_subspace = pytest.mark.parametrize("name", ["k-subspace", "k-subspace-time-varying"])


@every_method
def test_an_honest_exchange_is_accepted(name):
    w = world(name)
    model, theta, round = w.receive(w.download())
    assert torch.equal(theta, w.method.theta(w.server))
    assert (model.version, round) == (w.server.version, w.round)
    acc = w.add(w.upload())
    assert acc.weight == 3
    assert acc.total.any()


@every_method
@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"run": b"another!"}, "another run"),
        ({"run": RUN[:4] + b"half"}, "theta that is not the server's"),
        ({"number": 2}, "round 3, version 3, this is round 4, version 3"),
        ({"number": 4}, "round 5"),
        ({"version": 2}, "round 4, version 2, this is round 4, version 3"),
        ({"version": 2**32 - 1}, "version 4294967295"),
        ({"digest": bytes(8)}, "theta that is not the server's"),
    ],
)
def test_uploads_of_another_exchange_are_refused(name, change, says):
    """The route is that of the right round, so that it is the envelope that is refused."""
    w = world(name)
    route = w.method.route(w.round.client_key(0))
    payload = msgspec.structs.replace(decode(w.upload()).payload, route=route)
    w.add(exchange.seal(w.round, payload, 3))
    with pytest.raises(WireError, match=says):
        w.add(exchange.seal(replace(w.round, **change), payload, 3))


@every_method
def test_a_replayed_upload_of_an_older_round_is_refused(name):
    w = world(name)
    with pytest.raises(WireError, match="an update of round 3, version 2, this is round 4, version 3"):
        w.add(w.last_upload)


@every_method
def test_a_download_is_not_an_upload(name):
    w = world(name)
    with pytest.raises(WireError):
        w.add(w.download())


@k_subspace
def test_another_route_than_the_clients_own_is_refused(name):
    w = world(name)
    route = w.method.route(w.round.client_key(0))
    for other in (*(set(range(K)) - {route}), K, 2**32 - 1):
        w.add(w.rewritten(w.upload(), route=route))
        with pytest.raises(WireError, match="by another route than its own"):
            w.add(w.rewritten(w.upload(), route=other))


@k_subspace
def test_the_upload_of_a_client_on_another_route_is_refused(name):
    w = world(name)
    routes = {w.method.route(w.round.client_key(c)): c for c in range(20)}
    a, b = list(routes.values())[:2]
    w.add(w.upload(client=a), client=a)
    with pytest.raises(WireError, match=f"client {b} .* by another route"):
        w.add(w.upload(client=a), client=b)


@pytest.mark.parametrize("name", ["time-varying", "k-subspace-time-varying"])
def test_an_upload_for_another_stage_is_refused(name):
    w = world(name)
    with pytest.raises(WireError, match="an update for stage 0"):
        w.add(w.rewritten(w.upload(), route=w.route(), stage=0))
    with pytest.raises(WireError, match="not the server's"):
        w.add(w.rewritten(w.upload(), sealed=False, stage=0))


@every_method
@pytest.mark.parametrize("uplink", NAMES)
def test_uploads_that_are_not_the_right_numbers_are_refused(name, uplink):
    w = world(name, uplink=uplink)
    honest = w.upload()
    w.add(honest)
    good = decode(honest).payload.blocks
    wrong = [[], [*good, good[0]]]
    for i, block in enumerate(good):
        for bad in (
            Block(block.format, block.data + b"\0"),
            Block(block.format, block.data[:-1]),
            Block(4, block.data),
            wire.block(torch.full((len(block.data) // 4,), np.nan)),
        ):
            wrong.append([*good[:i], bad, *good[i + 1 :]])
    for blocks in wrong:
        with pytest.raises(WireError):
            w.add(w.rewritten(honest, route=w.route(), blocks=blocks))


@every_method
def test_a_weight_of_nothing_is_refused_and_a_huge_one_is_capped(name):
    w = world(name)
    with pytest.raises(WireError, match="weight must be a positive number"):
        w.add(w.upload(weight=0), weight=0)
    assert w.add(w.upload(weight=2**32 - 1), weight=2**32 - 1).weight == 10_000


@every_method
def test_a_weight_that_is_not_what_the_server_knows_is_refused(name):
    w = world(name)
    with pytest.raises(WireError, match="claims a weight of 4, not 3"):
        w.add(w.upload(weight=4))


@every_method
def test_a_download_of_another_run_is_refused(name):
    w = world(name)
    with pytest.raises(WireError, match="another run"):
        w.receive(w.rewritten(w.download(), run=b"anot"))


@every_method
def test_a_wrong_digest_is_refused_by_the_client(name):
    w = world(name)
    with pytest.raises(WireError, match="must ask again as a newcomer"):
        w.receive(w.rewritten(w.download(), sealed=False, check=bytes(8)))


@every_method
def test_numbers_tampered_with_are_refused_by_the_client(name):
    """The exponent's top bit of each number in turn: a change that theta cannot absorb."""
    w = world(name)
    honest = w.download()
    blocks = decode(honest).payload.blocks
    for i, b in enumerate(blocks):
        for place in range(3, len(b.data), 4):
            data = bytearray(b.data)
            data[place] ^= 0x40
            changed = [*blocks[:i], Block(b.format, bytes(data)), *blocks[i + 1 :]]
            with pytest.raises(WireError):
                w.receive(w.rewritten(honest, blocks=changed))


@every_method
def test_a_tampered_download_never_changes_an_upload_that_is_accepted(name):
    """Every bit of a download, flipped. The client refuses it, or has the server's theta all the same and
    then sends what it would have sent, or sends what the server refuses (another round, version or stage)."""
    w = world(name)
    honest, expected = w.download(), w.upload()
    theta = w.method.theta(w.server)
    refused = harmless = 0
    for place in range(8 * len(honest)):
        data = bytearray(honest)
        data[place // 8] ^= 1 << place % 8
        try:
            model, seen, round = w.receive(bytes(data))
            assert torch.equal(seen, theta)
            upload = w.upload(model, round)
            w.add(upload)
        except WireError:
            refused += 1
        else:
            assert upload == expected
            harmless += 1
    assert refused > harmless  # what is left are numbers that theta absorbs


@every_method
def test_a_replayed_download_of_an_older_round_costs_the_upload(name):
    """Its theta is good but old, so the client takes it; the server refuses what comes of it."""
    w, older = world(name), world(name, rounds=2)
    model, _, round = older.receive(older.download())
    with pytest.raises(WireError, match="an update of round 3, version 2, this is round 4, version 3"):
        w.add(w.upload(model, round))


def test_a_download_for_an_earlier_stage_without_blocks_is_refused():
    """It once met an unpacking of nothing instead of a check."""
    w = world("time-varying")
    assert w.model.stage == 1
    with pytest.raises(WireError, match="cannot use 0 blocks"):
        w.receive(w.rewritten(w.download(), kind=LOG, stage=0, blocks=[]))


SIZES = st.sampled_from([0, 4, 4 * DIM, 4 * DIM * K, 4 * D, 4 * D + 1])
NUMBERS = st.builds(
    lambda n, x: np.full(-(-n // 4), x, "<f4").tobytes()[:n],
    SIZES,
    st.floats(width=32) | st.sampled_from([0.0, 3e38]),
)
ANY_PAYLOAD = st.builds(
    wire.Payload,
    st.sampled_from([LOG, DENSE]) | SMALL,
    st.integers(0, 3) | U32,
    st.lists(st.builds(Block, st.just(0) | SMALL, NUMBERS), max_size=4),
    st.integers(0, K) | U32,
)


@every_method
@law
@given(ANY_PAYLOAD, U32)
def test_any_payload_is_used_properly_or_refused_on_both_sides(name, payload, weight):
    w = world(name)
    data = exchange.seal(w.round, payload, weight)
    with suppress(WireError):
        model, theta, _ = w.receive(data)
        assert wire.digest(theta, model.side) == w.round.digest
    with suppress(WireError):
        acc = w.add(data, weight=weight)
        assert torch.isfinite(acc.total).all()
        assert 0 < acc.weight <= 10_000


@pytest.mark.parametrize("name", METHODS)
def test_a_client_is_heard_once_a_round(name):
    w = world(name)
    acc, seen = w.method.zero(w.server), set()
    data = w.upload()
    acc = exchange.receive_up(w.method, acc, data, w.round, 0, seen, 3)
    weight = acc.weight
    with pytest.raises(WireError, match="already"):
        exchange.receive_up(w.method, acc, data, w.round, 0, seen, 3)
    assert acc.weight == weight
