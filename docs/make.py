"""Write the generated parts of docs/methods.md, theory.md and measure.md: `python docs/make.py`."""

from pathlib import Path

from narrowcast_studies.theory import programme, tables

from narrowcast.cli.methods_page import fill
from narrowcast.measure import docs as measure_docs

DOCS = Path(__file__).parent
PAGE = DOCS / "methods.md"
THEORY = DOCS / "theory.md"
MEASURE = DOCS / "measure.md"
RESULTS = DOCS.parent / "experiments" / "results"


if __name__ == "__main__":
    PAGE.write_text(fill(PAGE.read_text()))
    results = programme.load(programme.FULL, RESULTS / "theory")
    THEORY.write_text(tables.fill(THEORY.read_text(), results, "../experiments/results/theory/"))
    seen = "../experiments/results/measure/"
    MEASURE.write_text(measure_docs.fill(MEASURE.read_text(), RESULTS / "measure", seen))
