"""The threads of kernels: nobody waits for ever."""

import threading

from narrowcast.numerics import pool


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
