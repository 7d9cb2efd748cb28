"""Runs of these tests are tiny: giving memory back after each, which walks all objects, is most of it."""

import pytest

from narrowcast_studies import conducting, untrained


@pytest.fixture(autouse=True)
def _nothing_to_give_back(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (conducting, untrained):
        monkeypatch.setattr(module, "give_back", lambda: None)
