"""The command `narrowcast`: thin over the library. Errors of the user's are said, never traced."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from narrowcast.config import ConfigError, RunConfig, make_config, read_toml
from narrowcast.data.command import data
from narrowcast.flags import with_run_flags
from narrowcast.flower.command import app as flower
from narrowcast.measure.command import measure
from narrowcast.privacy.command import attack
from narrowcast.reproduce.command import reproduce
from narrowcast.theory.command import theory

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    help="Federated training of large models through a narrow channel: messages of d numbers, not D.",
)
console = Console()
errors = Console(stderr=True)

Force = Annotated[bool, typer.Option("--force", help="replace what is there")]


@contextmanager
def said() -> Iterator[None]:
    """Turn the errors a user can cause into one sentence and an exit code."""
    from narrowcast.methods import Diverged
    from narrowcast.runner import Interrupted
    from narrowcast.wire import WireError

    try:
        yield
    except Interrupted as stop:
        errors.print(f"\n{stop}", style="yellow", highlight=False, markup=False, soft_wrap=True)
        raise typer.Exit(130) from None
    except KeyboardInterrupt:
        errors.print("\ninterrupted", style="yellow")
        raise typer.Exit(130) from None
    except MemoryError:
        errors.print("error: not enough memory for this model or data", style="red")
        raise typer.Exit(2) from None
    except (ConfigError, Diverged, WireError, ValueError, OSError, RuntimeError) as error:
        errors.print(f"error: {error}", style="red", highlight=False, markup=False, soft_wrap=True)
        raise typer.Exit(1 if isinstance(error, Diverged) else 2) from None


@app.command()
@with_run_flags
def run(
    task: Annotated[str | None, typer.Argument(help="a task, or a TOML file of settings")] = None,
    out: Annotated[
        Path | None, typer.Option(help="folder of the run [default: runs/TASK-METHOD-...]")
    ] = None,
    resume: Annotated[Path | None, typer.Option(help="go on with the run in this folder")] = None,
    force: Force = False,
    *,
    flags: dict[str, Any],
) -> None:
    """Train: a task by name or a TOML file, with flags over it. Each run has a folder of its own."""
    from narrowcast.progress import RunProgress, prepare_kernels
    from narrowcast.runner import Interrupted

    with said():
        if resume is not None and (task or flags or out or force):
            raise ConfigError("--resume takes its settings from the run's folder: give it alone")
        config = None if resume else _config(task, flags)
        folder = resume or out or Path("runs") / _folder_name(config)
        prepare_kernels(console)
        try:
            with RunProgress(console) as progress:
                _drive(config, folder, progress, force)
        except Interrupted as stop:
            raise Interrupted(f"{stop}. Go on with: narrowcast run --resume {folder}") from None
        _show([folder])


def _drive(config: RunConfig | None, folder: Path, progress: Any, force: bool) -> None:
    """Begin the run, or go on with it, on the engine it asks for."""
    from narrowcast import runner

    if (config or runner.load_config(folder)).engine == "flower-sim":
        from narrowcast.flower.command import require

        require("flower-sim")
        from narrowcast.flower import sim

        sim.run(config or runner.load_config(folder), folder, progress, force=force, resume=config is None)
    elif config is None:
        runner.resume(folder, progress)
    else:
        runner.start(config, folder, progress, force)


def _config(task: str | None, flags: dict[str, Any]) -> RunConfig:
    if task is None:
        raise ConfigError("say what to train: a task such as digits, or a TOML file")
    table = read_toml(Path(task)) if task.endswith(".toml") else {"task": task}
    if "run" in table:
        raise ConfigError(f"{task} has several runs: use narrowcast compare {task}")
    return make_config({**table, **flags})


def _folder_name(config: RunConfig | None) -> str:
    assert config is not None
    trained = "" if config.trainable == "all" else config.trainable
    setting = config.build_method().setting.replace("=", "")
    parts = [config.task, config.method, setting, trained, f"s{config.seed}"]
    return "-".join(filter(None, parts))


@app.command()
def compare(
    file: Annotated[Path, typer.Argument(help="a TOML file with a [[run]] table for each run")],
    out: Annotated[Path | None, typer.Option(help="folder of the comparison [default: runs/NAME]")] = None,
    seed: Annotated[int | None, typer.Option(help="of every run, over what the file says")] = None,
    force: Force = False,
) -> None:
    """Run several configurations; print the table and draw the picture."""
    from narrowcast import compare as comparing
    from narrowcast.progress import RunProgress, prepare_kernels
    from narrowcast.runner import Interrupted

    with said():
        comparison = comparing.load(file, {} if seed is None else {"seed": seed})
        folder = out or Path("runs") / file.stem
        again = "" if seed is None else f" --seed {seed}"
        prepare_kernels(console)
        try:
            with RunProgress(console) as progress:
                runs = comparing.run_all(comparison, folder, progress, force)
        except Interrupted as stop:
            raise Interrupted(
                f"{stop}. Go on with: narrowcast compare {file} --out {folder}{again}"
            ) from None
        _show(runs, folder / "frontier.png", comparison.title)


@app.command()
def show(
    runs: Annotated[list[Path], typer.Argument(help="run folders, or folders of run folders")],
    plot: Annotated[Path | None, typer.Option(help="also draw the picture, to this file")] = None,
    markdown: Annotated[bool, typer.Option("--markdown", help="print the table as Markdown")] = False,
) -> None:
    """Print the table again from the folders alone."""
    with said():
        folders = []
        for path in runs:
            below = sorted(p.parent for p in path.glob("*/facts.json"))
            folders += [path] if (path / "facts.json").is_file() or not below else below
        _show(folders, plot, markdown=markdown)


def _show(
    folders: list[Path], plot: Path | None = None, title: str | None = None, markdown: bool = False
) -> None:
    from narrowcast.report import frontier, table
    from narrowcast.report.summary import summarise

    summaries = [summarise(folder) for folder in folders]
    if markdown:
        print(table.markdown(summaries))
    else:
        console.print(table.terminal(summaries, console.width))
        for s in summaries:
            if s.dropped:
                what = ", ".join(f"{count} {why}" for why, count in s.dropped.items())
                console.print(f"{s.facts.label}: clients dropped: {what}", highlight=False, markup=False)
    if plot:
        frontier.draw(summaries, plot, title)
        console.print(f"picture: {plot}", highlight=False, soft_wrap=True)


@app.command()
def methods(
    name: Annotated[str | None, typer.Argument(help="show this one in full, with its options")] = None,
    markdown: Annotated[bool, typer.Option("--markdown", help="print as Markdown, with equations")] = False,
) -> None:
    """What each method sends and keeps, its mathematics in a line, and who proposed it."""
    from narrowcast.report import methods_table

    with said():
        rows = methods_table.rows(name)
        if markdown:
            print(methods_table.markdown(rows))
        else:
            console.print(methods_table.terminal(rows) if name is None else methods_table.detail(rows[0]))


@app.command()
def export(
    run: Annotated[Path, typer.Argument(help="folder of a finished run")],
    to: Annotated[
        Path,
        typer.Option(help="FILE.pt, or for a model of transformers a folder that from_pretrained reads"),
    ] = Path("state_dict.pt"),
    force: Force = False,
) -> None:
    """Rebuild the full weights of a run, bit for bit the server's: a torch state_dict, or a folder."""
    import torch

    from narrowcast import runner

    with said():
        if to.exists() and not force:
            raise ConfigError(f"{to} exists: choose another --to, or use --force")
        task, theta = runner.rebuild(run)
        to.parent.mkdir(parents=True, exist_ok=True)
        if to.suffix:
            torch.save(task.state_dict(theta), to)
        elif hasattr(task, "save_pretrained"):
            task.save_pretrained(theta, to)
        else:
            raise ConfigError(f"{to} is no file name with a suffix: choose --to {to}.pt")
        made = sum(file.stat().st_size for file in ([to] if to.is_file() else to.iterdir()))
        size = (run / "model.narrowcast").stat().st_size
        console.print(f"{size:,} bytes of model became {made:,} bytes of weights: {to}", highlight=False)


@app.command()
def plan(
    params: Annotated[str, typer.Option(help="D: parameters of the model, e.g. 124M")],
    dim: Annotated[str, typer.Option(help="d: numbers in an upload, e.g. 65536")],
    epochs: Annotated[int, typer.Option(help="epochs of training")],
    subspaces: Annotated[int, typer.Option(help="K of the K-subspace methods")] = 8,
    participation: Annotated[
        float, typer.Option(help="chance that a client comes in an epoch; above 1: visits an epoch")
    ] = 1.0,
    clients: Annotated[str, typer.Option(help="number of clients, for the totals")] = "1",
    local_steps: Annotated[int, typer.Option(help="local steps of fedavg")] = 5,
    up: Annotated[str, typer.Option(help="a client's upload speed")] = "1Mbps",
    down: Annotated[str, typer.Option(help="a client's download speed")] = "10Mbps",
    uplink: Annotated[str, typer.Option(help="number format of uploads")] = "f32",
    downlink: Annotated[str, typer.Option(help="number format of downloads")] = "f32",
) -> None:
    """The paper's Table 1 for your numbers: bytes and time a client, and in total, for each method."""
    from narrowcast import planner
    from narrowcast.report import plan_table

    with said():
        count, D, d = (planner.parse_count(text) for text in (clients, params, dim))
        rows = planner.plan(
            params=D,
            dim=d,
            epochs=epochs,
            subspaces=subspaces,
            participation=participation,
            clients=count,
            local_steps=local_steps,
            up_bps=planner.parse_rate(up),
            down_bps=planner.parse_rate(down),
            uplink=uplink,
            downlink=downlink,
        )
        console.print(plan_table.terminal(rows, D, d, epochs, count))


@app.command()
def bench(
    json: Annotated[Path | None, typer.Option(help="also write the numbers to this file")] = None,
    quick: Annotated[bool, typer.Option("--quick", help="the smaller model only: a few seconds")] = False,
) -> None:
    """The kernels on this machine, against a copy and against Fastfood as commonly written in torch."""
    import msgspec

    from narrowcast import bench as benching
    from narrowcast.progress import prepare_kernels
    from narrowcast.report import bench_table

    with said():
        prepare_kernels(console)
        sizes = [(benching.RESNET9, 16_384)] + ([] if quick else [(benching.GPT2, 16_384)])
        result: dict[str, Any] = {"machine": benching.machine(), "subspaces": [], "fwht": []}
        with console.status("timing the subspaces: the common Fastfood takes most of it"):
            result["subspaces"] = list(benching.subspaces(sizes))
        console.print(bench_table.subspaces(result["subspaces"], result["machine"]))
        with console.status("timing the Hadamard transform"):
            result["fwht"] = list(benching.transforms([12, 14, 16, 20]))
        console.print(bench_table.transforms(result["fwht"]))
        if json:
            json.write_bytes(msgspec.json.format(msgspec.json.encode(result)) + b"\n")
            console.print(f"written: {json}", highlight=False, soft_wrap=True)


app.command()(data)
app.command()(theory)
app.command()(attack)
app.command()(measure)
app.command()(reproduce)
app.add_typer(flower, name="flower")
