"""The command `narrowcast`: a table of commands, each imported when it is asked for.

Other packages add theirs by the entry-point group `narrowcast.commands`: a function for typer, or an app. One
that has no entry point is called by its place: `narrowcast package.module:function`.
"""

from __future__ import annotations

from typing import Annotated, Any

import typer
from click import Command, Context, UsageError
from typer.core import TyperGroup
from typer.main import get_command

from narrowcast import __version__
from narrowcast.choices import meant
from narrowcast.cli.memory import keep_memory
from narrowcast.registry import Registry

COMMANDS: Registry[Any] = Registry(
    "command",
    {
        "run": "narrowcast.cli.run:run",
        "compare": "narrowcast.cli.compare:compare",
        "show": "narrowcast.cli.show:show",
        "page": "narrowcast.cli.page:page",
        "methods": "narrowcast.cli.methods:methods",
        "export": "narrowcast.cli.export:export",
        "push": "narrowcast.cli.hub:push",
        "pull": "narrowcast.cli.hub:pull",
        "plan": "narrowcast.cli.plan:plan",
        "measure": "narrowcast.cli.measure:measure",
        "data": "narrowcast.cli.data:data",
        "bench": "narrowcast.cli.bench:bench",
        "flower": "narrowcast.cli.flower:app",
    },
    group="narrowcast.commands",
)
STUDIES = ("reproduce", "theory", "attack")  # of the distribution narrowcast-studies
GET_STUDIES = (
    "The experiments (reproduce, theory, attack) are a package of their own, narrowcast-studies: "
    "pip install ./studies, in a clone."
)


class Commands(TyperGroup):
    """Ours, and those of installed packages; ours cannot be replaced."""

    def list_commands(self, ctx: Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: Context, name: str) -> Command | None:
        if name not in COMMANDS:
            return None
        try:
            return _as_command(name, COMMANDS[name])
        except Exception as error:  # another package's, that cannot be imported: the others work
            if name in COMMANDS.own:
                raise
            return _broken(name, str(error))

    def resolve_command(self, ctx: Context, args: list[str]) -> Any:
        if args[0] in STUDIES and args[0] not in COMMANDS:
            raise UsageError(GET_STUDIES)
        COMMANDS.admit(args[0])
        if not args[0].startswith("-") and args[0] not in (known := self.list_commands(ctx)):
            raise UsageError(
                f"there is no command {args[0]!r}{meant(args[0], known)}: narrowcast --help lists them"
            )
        return super().resolve_command(ctx, args)

    def format_epilog(self, ctx: Context, formatter: Any) -> None:
        if not set(COMMANDS) >= set(STUDIES):
            formatter.write_paragraph()
            formatter.write_text(GET_STUDIES)


def _broken(name: str, why: str) -> Command:
    def broken() -> None:
        raise UsageError(why)

    broken.__doc__ = why
    return _as_command(name, broken)


def _as_command(name: str, made: Any) -> Command:
    if isinstance(made, typer.Typer):
        command: Command = get_command(made)
    else:
        single = typer.Typer(add_completion=False, rich_markup_mode=None)
        single.command(name, cls=getattr(made, "command_class", None))(made)
        command = get_command(single)
    command.name = name
    return command


app = typer.Typer(
    cls=Commands,
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
    help="Federated training of large models through a narrow channel: messages of d numbers, not D.",
)


def _version(asked: bool) -> None:
    if asked:
        print(f"narrowcast {__version__}")
        raise typer.Exit


@app.callback()
def main(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="print the version")
    ] = False,
) -> None:
    keep_memory()  # before there are threads


main.__doc__ = app.info.help
