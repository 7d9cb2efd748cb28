"""Where things are, for tests in any folder."""

import os
from pathlib import Path

ROOT = Path(__file__).parents[1]
DOCS, EXAMPLES, EXPERIMENTS = ROOT / "docs", ROOT / "examples", ROOT / "studies" / "experiments"
SHARED = Path(os.environ.get("NARROWCAST_DATA", ROOT.parent / "shared" / "data"))
