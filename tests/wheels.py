"""Both wheels, built; the library's installed with none of the extras, imported, and run for a round.

`make test` calls it. What the wheel requires, and what that requires, is linked into its environment from
`.venv`: seconds, where installing torch again would take a minute. What is not declared is not there.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import sysconfig
import venv
from importlib.metadata import Distribution, distribution
from pathlib import Path

from packaging.requirements import Requirement

from places import ROOT

HERE = ROOT / ".wheels"
ROUND = """
import sys
from pathlib import Path
import torch
import narrowcast as nc
x = torch.randn(60, 20)
y = (x @ torch.randn(20, 3)).argmax(1)
task = nc.TorchTask(torch.nn.Linear(20, 3), train=(x, y), test=(x, y), clients=nc.by_class(y, clients=6))
(record,) = nc.simulate(task, nc.method("static", dim=8, key=7), nc.Plan(cohort=3, lr=1.0, rounds=1))
assert record.clients == 3 and record.metrics, record
absent = {"sklearn", "matplotlib", "PIL", "scipy", "flwr", "transformers", "peft"}
assert not absent & sys.modules.keys()
print("one round:", record.up, "bytes up,", record.down, "down")
from narrowcast.extras import Missing
from narrowcast.runs import make_config, runner
try:
    runner.start(make_config({"task": "digits", "rounds": 1}), Path("run"))
except Missing as missing:
    assert "narrowcast[demo]" in str(missing), missing
else:
    raise AssertionError("the task digits has scikit-learn's data without its extra")
"""


def build(project: Path, name: str) -> Path:
    """The wheel of a project, newly built: what an earlier build left would get into it."""
    shutil.rmtree(project / "build", ignore_errors=True)
    subprocess.run(
        [sys.executable, "-m", "pip", "wheel", "--quiet", "--disable-pip-version-check", "--no-deps",
         "--no-build-isolation", "--wheel-dir", str(HERE / "dist"), str(project)],
        check=True,
    )  # fmt: skip
    shutil.rmtree(project / "build", ignore_errors=True)
    (made,) = (HERE / "dist").glob(f"{name}-*.whl")
    return made


def needed(names: list[Requirement], found: dict[str, Distribution]) -> dict[str, Distribution]:
    """The installed distributions that requirements ask for, and those that these ask for."""
    for requirement in names:
        if requirement.marker is not None and not requirement.marker.evaluate({"extra": ""}):
            continue
        name = requirement.name.lower().replace("_", "-")
        if name not in found:
            found[name] = distribution(requirement.name)
            needed([Requirement(line) for line in found[name].requires or []], found)
    return found


def environment(wheel: Path) -> Path:
    """The python of an environment that has this wheel and what it requires, no more."""
    folder = HERE / "venv"
    venv.create(folder, clear=True, with_pip=False, symlinks=True)
    site = Path(sysconfig.get_path("purelib", vars={"base": str(folder), "platbase": str(folder)}))
    subprocess.run(
        [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-deps",
         "--prefix", str(folder), "--ignore-installed", str(wheel)],
        check=True,
    )  # fmt: skip
    (meta,) = site.glob("narrowcast-*.dist-info")
    requires = [Requirement(line) for line in Distribution.at(meta).requires or []]
    for found in needed(requires, {}).values():
        for top in {Path(str(file)).parts[0] for file in found.files or []} - {"..", "__pycache__"}:
            target = Path(str(found.locate_file(top)))
            if target.exists() and not (site / top).exists():
                (site / top).symlink_to(target)
    return folder / "bin" / "python"


def run(program: Path, *words: str) -> str:
    clean = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    done = subprocess.run([str(program), *words], cwd=HERE, env=clean, capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(f"{' '.join(words)[:60]} in {program}: {done.stdout}{done.stderr}")
    return done.stdout


def main() -> None:
    shutil.rmtree(HERE, ignore_errors=True)
    library, studies = build(ROOT, "narrowcast"), build(ROOT / "studies", "narrowcast_studies")
    python = environment(library)
    print(library.name, "and", studies.name, "are built;", run(python, "-c", ROUND).strip())
    shown = run(python, "-m", "narrowcast", "--help")
    assert "reproduce" not in shown.split("Commands:")[1].split("The experiments")[0], shown
    assert "narrowcast-studies" in shown, shown
    print("narrowcast --help names how to get the studies; what is missing is said with its extra")


if __name__ == "__main__":
    main()
