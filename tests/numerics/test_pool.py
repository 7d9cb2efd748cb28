"""The threads of kernels: nobody waits for ever, and their number is put back."""

import threading

import pytest
import torch

from narrowcast.numerics import pool
from narrowcast.runs import using_threads


def test_a_kernel_may_run_others_whoever_else_does():
    """Two threads fill a pool of two with kernels that ask it for more."""
    pool.set_threads(2)
    full, found = threading.Barrier(4), list[int]()

    def kernel(start: int, stop: int) -> None:
        full.wait(20)
        pool.run(lambda a, b: found.append(b - a), 6)

    callers = [threading.Thread(target=pool.run, args=(kernel, 2), daemon=True) for _ in range(2)]
    for caller in callers:
        caller.start()
    for caller in callers:
        caller.join(20)
    assert not any(caller.is_alive() for caller in callers)
    assert sum(found) == 4 * 6


def threads() -> tuple[int, int]:
    return pool.threads(), torch.get_num_threads()


def test_contexts_within_each_other_put_back_what_each_found():
    before = threads()
    with using_threads(3):
        with using_threads(2):
            assert threads() == (2, 2)
        assert threads() == (3, 3)
        with pytest.raises(ValueError, match="at least 1"), using_threads(0):
            pass
        assert threads() == (3, 3)
    assert threads() == before


def test_contexts_that_overlap_leave_the_number_there_was():
    """As the rounds of two runs do in two threads, or in turn."""
    pool.set_threads(4)
    before = threads()
    one, other = using_threads(1), using_threads(2)
    one.__enter__(), other.__enter__()
    one.__exit__(None, None, None)
    assert threads() == (2, 2)
    other.__exit__(None, None, None)
    assert threads() == before


@pytest.mark.parametrize("first", [False, True])
def test_a_thread_whose_context_outlives_ours_leaves_the_number_there_was(first):
    pool.set_threads(4)
    torch.set_num_threads(3)
    begun, end, found = threading.Event(), threading.Event(), list[tuple[int, int]]()

    def other() -> None:
        with using_threads(1):
            begun.set()
            end.wait()
        found.append(threads())

    thread = threading.Thread(target=other)
    if first:
        thread.start()
        begun.wait()
    with using_threads(2):
        if not first:
            thread.start()
            begun.wait()
    found.append(threads())
    end.set()
    thread.join()
    assert [*found, threads()] == [(4, 3)] * 3
