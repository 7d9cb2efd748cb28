"""Clients' work in forked processes: the same bits, errors where they belong, and nobody left behind."""

from __future__ import annotations

import copy
import gc
import itertools
import multiprocessing
import os
import pickle
import signal
import subprocess
import sys
import threading
import time
from functools import partial

import pytest
import torch
from torch import nn

import narrowcast as nc
from narrowcast.files import locked
from narrowcast.numerics import pool
from narrowcast.runs import using_threads
from narrowcast.runs.prepared import default_threads
from narrowcast.tasks import forks
from narrowcast.tasks.forks import Forks
from narrowcast.testing import toy_task

pytestmark = pytest.mark.skipif(not forks.possible(), reason="processes are forked on Linux")
D = 1000


def work(theta, job):
    """`job` rows: theta, theta + 1, ... with a loss each; 13 is not to be had, and -1 takes its time."""
    if job == 13:
        raise ArithmeticError("thirteen")
    if job < 0:
        time.sleep(-job)
        job = 1
    return [float(i + job) for i in range(job)], torch.stack([theta + i for i in range(job)])


def taken(made: Forks, theta, jobs):
    return [
        (losses, rows.clone()) for losses, rows in made.results(theta, jobs, lambda job: work(theta, job))
    ]


def assert_right(found, theta, jobs):
    for (losses, rows), job in zip(found, jobs, strict=True):
        true, expected = work(theta, job)
        assert losses == true
        assert torch.equal(rows, expected)


def ended(pid: int, seconds: float = 20.0) -> bool:
    """Whether there is no such process any more, or it is one that waits to be buried."""
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        try:
            with open(f"/proc/{pid}/stat") as f:
                if f.read().rsplit(") ", 1)[1][0] == "Z":
                    return True
        except OSError:
            return True
        time.sleep(0.02)
    return False


def pids(made: Forks) -> list[int]:
    return [process.pid for process, _ in made._ends]


@pytest.mark.parametrize("count", [1, 2, 3])
@pytest.mark.parametrize("jobs", [[], [1], [3, 1, 2, 3, 3, 1, 2]])
def test_jobs_come_in_their_order(count, jobs):
    made, theta = Forks(work, D, 3, count), torch.randn(D)
    for _ in range(3):
        theta = theta + 1
        assert_right(taken(made, theta, jobs), theta, jobs)
    made.close()


def test_an_error_is_raised_here_and_the_rest_goes_on():
    made, theta = Forks(work, D, 3, 2), torch.randn(D)
    with pytest.raises(ArithmeticError, match="thirteen"):
        taken(made, theta, [1, 2, 13, 3])
    assert_right(taken(made, theta, [2, 2, 1]), theta, [2, 2, 1])


def test_a_round_that_nobody_read_to_its_end_leaves_nothing_behind():
    made, theta = Forks(work, D, 3, 2), torch.randn(D)
    begun = made.results(theta, [1, 2, 3, 3, 2, 1], partial(work, theta))
    next(begun)
    begun.close()
    assert_right(taken(made, theta + 5, [3, 2, 1, 1]), theta + 5, [3, 2, 1, 1])


def test_where_one_is_killed_this_process_goes_on_alone():
    made, theta, jobs = Forks(work, D, 3, 2), torch.randn(D), [2, -0.2, 1, 3, 2, 1]
    begun = made.results(theta, jobs, partial(work, theta))
    found = [(losses, rows.clone()) for losses, rows in [next(begun)]]
    killed, other = pids(made)
    os.kill(other, signal.SIGKILL)
    found += [(losses, rows.clone()) for losses, rows in begun]
    assert_right(found, theta, [2, 1, 1, 3, 2, 1])
    assert not made.there
    assert ended(killed)


def test_what_fails_there_and_not_here_is_done_here_from_then_on():
    parent = os.getpid()

    def here_alone(theta, job):
        if os.getpid() != parent:
            raise RuntimeError("autograd does not go with fork")
        return work(theta, job)

    made, theta = Forks(here_alone, D, 3, 2), torch.randn(D)
    assert_right(taken(made, theta, [1, 2, 3]), theta, [1, 2, 3])
    assert made.useless
    assert not made.there


def test_one_that_waits_for_a_lock_of_the_parents_is_given_up(monkeypatch):
    """A thread holds it while the process is forked: in there nobody will ever let go of it."""
    monkeypatch.setattr(forks, "STUCK", 0.3)
    lock, theta, jobs = threading.Lock(), torch.randn(D), [2, 1, 2, 1]

    def careful(theta, job):
        with lock:
            return work(theta, job)

    with lock:
        made = Forks(careful, D, 2, 2)
    there = pids(made)
    assert_right(taken(made, theta, jobs), theta, jobs)
    assert made.useless
    assert all(map(ended, there))


LARGE = 1 << 19  # bytes: no pipe holds as many


def test_jobs_larger_than_a_pipe_come_whole():
    def count(theta, job):
        return [float(sum(job))], theta[None]

    made, theta = Forks(count, D, 1, 2), torch.randn(D)
    jobs = [bytes([j]) * (LARGE + j) for j in range(7)]
    found = [losses for losses, _ in made.results(theta, jobs, lambda job: pytest.fail("done here"))]
    assert found == [[float(j * (LARGE + j))] for j in range(7)]
    made.close()


def test_one_that_does_not_read_a_large_job_is_given_up(monkeypatch):
    monkeypatch.setattr(forks, "STUCK", 0.3)

    def size(theta, job):
        return [float(len(job))], theta[None]

    made, theta = Forks(size, D, 1, 1), torch.randn(D)
    (there,) = pids(made)
    os.kill(there, signal.SIGSTOP)
    jobs = [b"a" * LARGE, b"b", b"c" * LARGE]
    assert [losses for losses, _ in made.results(theta, jobs, partial(size, theta))] == [
        [float(len(job))] for job in jobs
    ]
    assert made.useless
    assert ended(there)


def test_one_that_computes_for_long_is_waited_for(monkeypatch):
    monkeypatch.setattr(forks, "STUCK", 0.05)
    monkeypatch.setattr(forks, "_ticks", lambda _, count=itertools.count(): (str(next(count)),))
    made, theta = Forks(work, D, 1, 1), torch.randn(D)
    found = [losses for losses, _ in made.results(theta, [-0.5], lambda job: pytest.fail("done here"))]
    assert found == [[1.0]]
    assert not made.useless
    made.close()


def test_time_on_a_core_is_counted():
    this, until = multiprocessing.current_process(), time.monotonic() + 60
    before = forks._ticks(this)
    while forks._ticks(this) == before:
        assert time.monotonic() < until


def test_a_round_begun_within_another_is_right_and_so_is_the_first():
    made, theta = Forks(work, D, 3, 2), torch.randn(D)
    first = made.results(theta, [1, 2, 3, 1, 2, 3], partial(work, theta))
    found = [(losses, rows.clone()) for losses, rows in [next(first)]]
    assert_right(taken(made, theta + 7, [3, 2, 1, 1]), theta + 7, [3, 2, 1, 1])
    found += [(losses, rows.clone()) for losses, rows in first]
    assert_right(found, theta, [1, 2, 3, 1, 2, 3])


def test_rows_that_do_not_fit_are_not_taken_for_others():
    made, theta = Forks(work, D, 2, 1), torch.randn(D)
    assert_right(taken(made, theta, [2, 3, 1]), theta, [2, 3, 1])


def test_a_handler_of_the_parents_does_not_keep_them():
    """`narrowcast run` finishes its round when it is asked to end; they do not."""
    before = signal.signal(signal.SIGTERM, lambda *_: None)
    try:
        made = Forks(work, D, 1, 3)
        mine, clock = pids(made), time.monotonic()
        made.close()
        assert time.monotonic() - clock < 4
        assert all(map(ended, mine))
    finally:
        signal.signal(signal.SIGTERM, before)


def test_they_do_not_hold_the_folder_of_a_run(tmp_path):
    with locked(tmp_path):
        made = Forks(work, D, 1, 2)
    with locked(tmp_path):
        pass
    assert made.there


def test_no_process_to_be_had_leaves_threads(monkeypatch):
    def refuse(*_):
        raise BlockingIOError("no more processes")

    monkeypatch.setattr(forks, "_begin", refuse)
    task = convolutions()
    with pool.using(2):
        run = nc.Simulation(task, nc.method("fedavg"), nc.Plan(cohort=7, lr=0.1, rounds=1))
        assert len(list(run)) == 1
    assert task._forks is None
    assert len(task.copies()) >= 1


def test_they_end_with_who_has_them():
    made = Forks(work, D, 1, 2)
    mine = pids(made)
    del made
    gc.collect()
    assert all(map(ended, mine))


PARENT = """
import sys, time, torch
sys.path.insert(0, {here!r})
from test_forks import Forks, pids, work
made = Forks(work, 10, 1, 2)
print(*pids(made), flush=True)
list(made.results(torch.zeros(10), [-0.1] * 2, None))
{end}
"""


@pytest.mark.parametrize("end", ["time.sleep(600)", "sys.exit(0)", "raise SystemError"])
def test_they_end_when_the_parent_is_killed_or_ends(end):
    here = os.path.dirname(__file__)
    with subprocess.Popen(
        [sys.executable, "-c", PARENT.format(here=here, end=end)],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    ) as parent:
        children = [int(pid) for pid in parent.stdout.readline().split()]
        if "sleep" in end:
            parent.kill()
        assert parent.wait(60) != (0 if "exit" not in end else 1)
    assert len(children) == 2
    assert all(map(ended, children))


def test_a_fork_of_this_process_neither_uses_nor_ends_them():
    made, theta = Forks(work, D, 1, 2), torch.randn(D)
    pid = os.fork()
    if not pid:
        assert_right(taken(made, theta, [1, 1, 1]), theta, [1, 1, 1])
        made.close()
        os._exit(7 if made.there else 0)
    assert os.waitpid(pid, 0)[1] == 0
    assert_right(taken(made, theta, [1, 1]), theta, [1, 1])
    assert made.there


def test_a_copy_has_none():
    made = Forks(work, D, 1, 1)
    assert copy.deepcopy(made) is None
    task = convolutions()
    task._forks = made
    assert copy.copy(task)._forks is None
    assert pickle.loads(pickle.dumps(made)) is None


def test_memory_bounds_their_number(monkeypatch):
    monkeypatch.setattr(forks, "MEMORY", 4 * D * 2 * forks.SLOTS * 3)
    made = Forks(work, D, 2, 8)
    assert made.count == 3
    assert made.fit(1, 8)
    assert not made.fit(3, 8)
    assert not made.fit(2, 4)


def test_tensors_travel_as_arrays_and_share_what_they_shared():
    weight = torch.rand(5)
    one, two = pickle.loads(forks._packed((weight, [weight, 3])))
    assert torch.equal(one, weight)
    assert two[0] is one


def convolutions() -> nc.TorchTask:
    torch.manual_seed(0)
    layers = nn.Unflatten(1, (1, 6)), nn.Conv1d(1, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(16, 3)
    x = torch.randn(60, 6)
    y = x.argmax(1) % 3
    return nc.TorchTask(nn.Sequential(*layers), train=(x, y), test=(x, y), clients=nc.by_class(y, clients=12))


@pytest.mark.parametrize(
    "more", [{"local_steps": 3, "local_lr": 0.1}, {"per_client": True}, {"local_steps": 1}]
)
def test_a_run_is_the_same_bit_for_bit_with_any_number_of_processes(more):
    found = []
    for count in (1, 2, 3):
        task = convolutions()
        with using_threads(count):
            run = nc.Simulation(task, nc.method("fedavg"), nc.Plan(cohort=7, lr=0.1, rounds=3, **more))
            records = list(run)
        found.append((records[-1].loss, run.theta))
        forked = task._forks
        assert (forked.count if forked else 0) == (count if count > 1 and more != {"local_steps": 1} else 0)
    for loss, theta in found[1:]:
        assert loss == found[0][0]
        assert torch.equal(theta, found[0][1])


def test_who_has_clients_to_spread_gets_all_cores_unless_it_says_otherwise():
    assert convolutions().spreads
    assert not toy_task().spreads  # a plain stack of layers has a way of its own
    with_dropout = convolutions()
    with_dropout.module.append(nn.Dropout(0.5))
    assert not with_dropout.spreads
    assert default_threads(toy_task()) == 1
    assert default_threads(convolutions()) == pool.default_threads()
