"""All that is generated: parts of pages, and the API reference. `make docs`, or `python docs/make.py`.

methods.md, theory.md and measure.md have parts that are made from tables and committed results. The reference
of all public names, by pdoc, goes to `site/`, which is not committed: open site/narrowcast.html.
"""

import warnings
from importlib import import_module
from pathlib import Path
from types import ModuleType

from narrowcast.cli.methods_page import fill
from narrowcast.measure import docs as measure_docs
from narrowcast.registry import Registry
from narrowcast_studies.theory import programme, tables

DOCS = Path(__file__).parent
PAGE = DOCS / "methods.md"
THEORY = DOCS / "theory.md"
MEASURE = DOCS / "measure.md"
RESULTS = DOCS.parent / "studies" / "experiments" / "results"
SITE = DOCS.parent / "site"
PUBLIC = [
    "methods",
    "aggregates",
    "subspaces",
    "wire",
    "rounds",
    "tasks",
    "runs",
    "measure",
    "testing",
    "numerics",
]


def pages() -> dict[Path, str]:
    """Each page that has a generated part, as it should be."""
    results = programme.load(programme.FULL, RESULTS / "theory")
    seen = "../studies/experiments/results/"
    return {
        PAGE: fill(PAGE.read_text()),
        THEORY: tables.fill(THEORY.read_text(), results, f"{seen}theory/"),
        MEASURE: measure_docs.fill(MEASURE.read_text(), RESULTS / "measure", f"{seen}measure/"),
    }


def public() -> list[ModuleType]:
    """narrowcast and its rooms, with all their public names imported: they would wait to be asked for."""
    modules = [import_module("narrowcast"), *(import_module(f"narrowcast.{room}") for room in PUBLIC)]
    for module in modules:
        for name in module.__all__:
            setattr(module, name, getattr(module, name))
    return modules


def reference(site: Path) -> None:
    """The API reference: a page a room, of the names that it lists."""
    import pdoc

    names = [module.__name__ for module in public()]
    pdoc.render.configure(docformat="markdown", footer_text="narrowcast", search=False)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # of names that only type checkers import
        pages = {name: pdoc.doc.Module(import_module(name)) for name in names}
        for page in pages.values():
            for member in page.members.values():
                if isinstance(member.obj, Registry):  # a table says itself what it is
                    vars(member)["docstring"] = member.obj.__doc__
        site.mkdir(parents=True, exist_ok=True)
        for name, page in pages.items():
            (site / f"{name}.html").write_text(pdoc.render.html_module(page, pages))


if __name__ == "__main__":
    for path, text in pages().items():
        path.write_text(text)
    reference(SITE)
    print(f"pages are up to date; the reference: {SITE / 'narrowcast.html'}")
