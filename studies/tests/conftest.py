"""Runs of these tests are tiny: giving memory back after each, which walks all objects, is most of it."""

import pytest

from narrowcast_studies import study, untrained


@pytest.fixture(autouse=True)
def _nothing_to_give_back(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (study, untrained):
        monkeypatch.setattr(module, "give_back", lambda: None)
