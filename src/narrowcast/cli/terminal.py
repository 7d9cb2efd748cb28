"""The two consoles of the command, and how errors are said on them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import typer
from rich.console import Console

from narrowcast.errors import Diverged, Interrupted

console = Console()
errors = Console(stderr=True)


@contextmanager
def plain_errors() -> Iterator[None]:
    """Turn the errors a user can cause into one sentence and an exit code: never a traceback."""
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
    except (Diverged, ValueError, OSError, RuntimeError, ImportError) as error:
        errors.print(f"error: {error}", style="red", highlight=False, markup=False, soft_wrap=True)
        raise typer.Exit(1 if isinstance(error, Diverged) else 2) from None
