"""Where fcntl, resource, os.sysconf and fork are missing, the library trains and runs resume."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

PROGRAM = """
import os, sys
import torch, numba, numpy, pydantic, rich, typer, multiprocessing.util  # not ours: they find their own way
for name in ("fcntl", "resource", "pwd", "grp", "termios"):
    sys.modules[name] = None
for name in ("sysconf", "fork", "forkpty", "register_at_fork", "getuid", "sched_getaffinity", "killpg"):
    if hasattr(os, name):
        delattr(os, name)
import builtins, pathlib
read = pathlib.Path.read_text
def no_proc(self, *more, **also):
    if str(self).startswith("/proc"):
        raise FileNotFoundError(str(self))
    return read(self, *more, **also)
pathlib.Path.read_text = no_proc

import narrowcast as nc
from narrowcast.testing import toy_task
plan = nc.Plan(cohort=6, lr=4.0, epochs=6)
for name, options in (("static", {"dim": 64}), ("topk", {"k": 20})):
    records = list(nc.simulate(toy_task(), nc.method(name, **options), plan))
    assert records[-1].loss < records[0].loss, records
assert records[-1].peak_memory == 0, records[-1]

from pathlib import Path
from narrowcast.runs import make_config, runner
from narrowcast.cli.app import app
folder, left = Path(sys.argv[1]), iter(range(2))
config = make_config({"task": "quadratic", "width": 30, "clients": 12, "cohort": 4, "dim": 8, "rounds": 5})
runner.start(config, folder, until=lambda: next(left, None) is None)
runner.resume(folder)
assert (folder / "model.narrowcast").is_file()
from narrowcast.bench import kernels
assert kernels.machine()["cores"]
app(["show", str(folder)])
"""


def test_the_library_trains_and_resumes_without_what_only_unix_has(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(tmp_path / "run")], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert "static" in done.stdout
