"""Write the generated part of docs/methods.md from the table of methods: `python docs/make.py`."""

from pathlib import Path

from narrowcast.report.methods_table import fill

PAGE = Path(__file__).parent / "methods.md"


if __name__ == "__main__":
    PAGE.write_text(fill(PAGE.read_text()))
