"""Memory that is kept: a long vector comes back without page faults in any thread, until it is given back."""

import subprocess
import sys

import pytest

PROGRAM = """
import resource, sys, threading
import torch
from narrowcast.cli.memory import give_back, keep_memory

if not keep_memory():
    sys.exit(3)

def pages():
    with open("/proc/self/statm") as f:
        return int(f.read().split()[1])

def faults():
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt

def work():
    torch.ones(25_000_000)  # 100 MB, or 24 thousand pages
    before = faults()
    for _ in range(40):
        torch.ones(25_000_000)
    print(faults() - before)

thread = threading.Thread(target=work)
thread.start()
thread.join()
work()
before = pages()
give_back()
print(before - pages())
"""


def test_long_vectors_are_kept_in_every_thread_and_given_back_when_told() -> None:
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True)
    if done.returncode == 3:
        pytest.skip("another allocator than glibc's")
    assert done.returncode == 0, done.stderr
    thread, main, given = map(int, done.stdout.split())
    assert thread < 40 * 24_000 / 4  # a few places at most, in turn
    assert main < 40 * 24_000 / 4
    assert given > 20_000
