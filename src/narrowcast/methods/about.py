"""What a method is, in words: `narrowcast methods` and docs/methods.md are made from these."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class About:
    up: str  # what a client sends
    down: str  # what it is sent
    client: str  # what it keeps between visits beside the model
    server: str  # what the server keeps
    formula: str  # one line of mathematics
    source: str  # who proposed it
    text: str  # a paragraph with the equations, in Markdown
