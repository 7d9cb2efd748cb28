"""Write the generated parts of docs/methods.md and docs/theory.md: `python docs/make.py`."""

from pathlib import Path

from narrowcast.report.methods_table import fill
from narrowcast.theory import study, tables

DOCS = Path(__file__).parent
PAGE = DOCS / "methods.md"
THEORY = DOCS / "theory.md"
THEORY_RESULTS = DOCS.parent / "experiments" / "results" / "theory"


if __name__ == "__main__":
    PAGE.write_text(fill(PAGE.read_text()))
    results = study.load(study.FULL, THEORY_RESULTS)
    THEORY.write_text(tables.fill(THEORY.read_text(), results, "../experiments/results/theory/"))
