"""The two consoles of the command, and how errors are said on them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import typer
from click import ClickException
from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment

from narrowcast.cli.blame import FULL, told
from narrowcast.errors import Diverged, Interrupted
from narrowcast.texts import encodable, printable


class Terminal(Console):
    """Shows escape sequences in a text and does not obey them: labels and errors may be strangers' words.

    As wide as COLUMNS says when something is printed, not when this module was imported.
    """

    def __init__(self, width: int | None = None, **options: Any) -> None:
        super().__init__(width=width, **options)
        if not self.is_jupyter:
            self._width = width  # rich has put the COLUMNS of now there, and else asks for it each time

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        for text, style, control in super().render(renderable, options):
            shown = text if control else encodable(printable(text), self.encoding)
            yield Segment(shown, style, control)


console = Terminal()
errors = Terminal(stderr=True)


@contextmanager
def plain_errors() -> Iterator[None]:
    """Turn an error into one sentence and an exit code; a traceback only on demand (see blame.py)."""
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
    except (typer.Exit, typer.Abort, ClickException):  # said already, or typer says it
        raise
    except Exception as error:
        errors.print(told(error), style="red", highlight=False, markup=False, soft_wrap=True)
        raise typer.Exit(1 if isinstance(error, Diverged) else 2) from None


@contextmanager
def going_on_with(command: Callable[[], str]) -> Iterator[None]:
    """Say how to go on after an interrupt or on a full disk: by the command that is asked for then."""
    try:
        yield
    except Interrupted as stop:
        raise Interrupted(f"{stop}. Go on with: {command()}") from None
    except OSError as error:
        if error.errno not in FULL:
            raise
        raise RuntimeError(f"{error}. Make room, then go on with: {command()}") from None
