"""What is exchanged does not depend on the user's process: autocast, products, threads, denormals."""

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import pytest
import torch
from torch import Tensor

from fitting import made
from narrowcast.methods import METHODS
from narrowcast.numerics import pool, process
from narrowcast.numerics.flat import Layout
from narrowcast.numerics.process import flushes_denormals, own_settings
from narrowcast.rounds import exchange
from narrowcast.rounds.plan import Plan
from narrowcast.rounds.simulator import Simulation
from narrowcast.rounds.task import Batch, Task
from narrowcast.wire.messages import WireError

LAYOUT = Layout(("a", "b", "c"), ((150, 100), (500,), (350, 100)))
D, CLIENTS = LAYOUT.size, 3
products = pytest.mark.skipif(
    not hasattr(getattr(torch.backends.mkldnn, "matmul", None), "fp32_precision"), reason="of torch 2.9"
)


class Given(Task):
    """Gradients that were written down before, some numbers of them denormal, as some of theta0's are."""

    name, metric, higher_is_better, layout = "given", "loss", False, LAYOUT

    def __init__(self) -> None:
        self.clients = [np.array([c]) for c in range(CLIENTS)]
        generator = torch.Generator().manual_seed(1)
        self.start = 0.1 * torch.randn(D, generator=generator)
        self.start[::7] = 1e-41
        self.given = torch.randn(CLIENTS, D, generator=generator)
        self.given[:, ::5] *= 1e-41

    def theta0(self) -> Tensor:
        return self.start.clone()

    def buffer(self) -> Tensor:
        return torch.empty(D)

    def loss(self, theta: Tensor, batch: Batch) -> float:
        return float(theta[1])

    def gradient(self, theta: Tensor, batch: Batch) -> tuple[float, Tensor]:
        return 1.0, self.given[batch.index[0]].clone()

    def evaluate(self, theta: Tensor) -> dict[str, float]:
        return {"loss": 1.0}


GIVEN = Given()  # made before anything is set


@contextmanager
def autocast() -> Iterator[None]:
    with torch.autocast("cpu", torch.bfloat16):
        yield


@contextmanager
def medium() -> Iterator[None]:
    torch.set_float32_matmul_precision("medium")
    try:
        yield
        assert torch.get_float32_matmul_precision() == "medium"
    finally:
        torch.set_float32_matmul_precision("highest")


@contextmanager
def bf16() -> Iterator[None]:
    before = torch.backends.mkldnn.matmul.fp32_precision
    torch.backends.mkldnn.matmul.fp32_precision = "bf16"
    try:
        yield
        assert torch.backends.mkldnn.matmul.fp32_precision == "bf16"
    finally:
        torch.backends.mkldnn.matmul.fp32_precision = before


@contextmanager
def threads(count: int) -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
        assert torch.get_num_threads() == count
    finally:
        torch.set_num_threads(before)


@contextmanager
def flushing() -> Iterator[None]:
    assert torch.set_flush_denormal(True)
    pool.set_threads(2)  # threads that begin now inherit it
    try:
        yield
        assert flushes_denormals()
    finally:
        torch.set_flush_denormal(False)
        pool.set_threads(None)


SETTINGS = {
    "autocast": autocast,
    "medium": medium,
    "threads": lambda: threads(1 if torch.get_num_threads() > 1 else 2),
    "flushing": flushing,
}


def run(method: str) -> tuple[bytes, list[bytes]]:
    """(the model, the uploads) of two rounds."""
    sent: list[bytes] = []
    plan = Plan(cohort=2, lr=0.1, rounds=2, key=5, local_steps=1, per_client=True)
    simulation = Simulation(GIVEN, made(method, clients=CLIENTS, dim=64, k=400, directions=4), plan)
    add = simulation.method.add

    def noted(acc, up, weight):
        sent.extend(block.data for block in up.blocks)
        return add(acc, up, weight)

    object.__setattr__(simulation.method, "add", noted)
    assert all(record.clients and not record.dropped for record in simulation)
    return simulation.theta.numpy().tobytes(), sent


@pytest.mark.parametrize("method", METHODS)
def test_uploads_and_model_do_not_depend_on_the_process(method: str) -> None:
    theta, sent = run(method)
    assert sent
    for name, setting in SETTINGS.items():
        with setting():
            assert run(method) == (theta, sent), name


@products
def test_products_of_the_newer_setting_are_whole_too() -> None:
    for method in ("powersgd", "random-low-rank"):
        plain = run(method)
        with bf16():
            assert run(method) == plain


def test_the_users_settings_are_back_afterwards_and_after_an_error() -> None:
    def fail() -> None:
        with own_settings(threads=1):
            assert torch.get_num_threads() == 1
            assert process._precision() in process.WHOLE
            assert not torch.is_autocast_enabled("cpu")
            assert not flushes_denormals()
            raise KeyError

    with threads(3), medium(), autocast(), flushing():
        with pytest.raises(KeyError):
            fail()
        assert torch.is_autocast_enabled("cpu")
    assert torch.get_float32_matmul_precision() == "highest"


PATIENCE = 300.0  # seconds, for a machine that is busy


def test_products_stay_whole_until_the_last_thread_has_left() -> None:
    """The second enters while the first is inside, and goes on when that has left."""
    second_in, first_out = threading.Event(), threading.Event()
    found: list[bool] = []

    def second() -> None:
        with own_settings(threads=1):
            second_in.set()
            found.append(first_out.wait(PATIENCE))
            found.append(process._precision() in process.WHOLE)

    other = threading.Thread(target=second, daemon=True)
    with medium():
        before = process._precision()
        assert before not in process.WHOLE
        with own_settings(threads=1):
            other.start()
            assert second_in.wait(PATIENCE)
        first_out.set()
        other.join(PATIENCE)
        assert found == [True, True]
        assert process._precision() == before


def test_what_the_user_sets_while_somebody_is_inside_is_back_when_all_have_left() -> None:
    try:
        with own_settings():
            torch.set_float32_matmul_precision("medium")
            theirs = process._precision()
            with own_settings():
                assert process._precision() in process.WHOLE
            assert process._precision() in process.WHOLE  # the outer one goes on
        assert process._precision() == theirs
    finally:
        torch.set_float32_matmul_precision("highest")


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_a_forked_child_has_none_of_the_threads_that_were_inside() -> None:
    inside, done = threading.Event(), threading.Event()

    def other() -> None:
        with own_settings():
            inside.set()
            done.wait(PATIENCE)

    thread = threading.Thread(target=other, daemon=True)
    with medium():
        before = process._precision()
        thread.start()
        assert inside.wait(PATIENCE)
        if not (child := os.fork()):
            os._exit(int(process._precision() != before))
        done.set()
        thread.join(PATIENCE)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def test_denormals_are_flushed_where_they_were_and_nowhere_else() -> None:
    found: list[bool] = []
    with flushing():
        pool.run(lambda start, stop: found.append(flushes_denormals()), 8)
        assert found[-1] or found[0]  # the caller works too
        assert not all(found)  # threads of the pool do not
    assert not flushes_denormals()


def test_a_client_whose_theta_still_differs_is_told_that_it_flushes() -> None:
    """Where a thread is out of reach: what it answers says what to turn off."""
    method = made("uncompressed")
    server = method.server(GIVEN.theta0(), LAYOUT)
    round = exchange.Round(bytes(8), 5, 0, 0, bytes(8))
    down = exchange.send_down(method, server, round, None)
    with flushing(), pytest.raises(WireError, match=r"differs from .*torch\.set_flush_denormal\(False\)$"):
        exchange.receive_down(method, method.newcomer(GIVEN.theta0(), LAYOUT), down, bytes(8), 5)
    with pytest.raises(WireError, match=r"as a newcomer$"):
        exchange.receive_down(method, method.newcomer(GIVEN.theta0(), LAYOUT), down, bytes(8), 5)
