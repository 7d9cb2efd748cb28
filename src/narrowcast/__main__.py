"""The command's way in: whoever interrupts it while it is still being imported is told so in a word."""

from __future__ import annotations

import sys


def main() -> None:
    try:
        from narrowcast.cli.app import app

        app()
    except KeyboardInterrupt:
        sys.stderr.write("\ninterrupted\n")
        sys.exit(130)


if __name__ == "__main__":
    main()
