"""Write the generated parts of docs/methods.md, theory.md and measure.md: `python docs/make.py`."""

from pathlib import Path

from narrowcast.cli.methods_page import fill
from narrowcast.measure import docs as measure_docs
from narrowcast_studies.theory import programme, tables

DOCS = Path(__file__).parent
PAGE = DOCS / "methods.md"
THEORY = DOCS / "theory.md"
MEASURE = DOCS / "measure.md"
RESULTS = DOCS.parent / "studies" / "experiments" / "results"


if __name__ == "__main__":
    PAGE.write_text(fill(PAGE.read_text()))
    results = programme.load(programme.FULL, RESULTS / "theory")
    THEORY.write_text(tables.fill(THEORY.read_text(), results, "../studies/experiments/results/theory/"))
    seen = "../studies/experiments/results/measure/"
    MEASURE.write_text(measure_docs.fill(MEASURE.read_text(), RESULTS / "measure", seen))
