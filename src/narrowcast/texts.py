"""Words of strangers, safe to show: of files that were fetched, of nodes, of whoever named a run."""

from __future__ import annotations

import logging
import re
from typing import TYPE_CHECKING, Any

# Control characters but for tab and line feed, marks that turn the direction of writing, lone surrogates.
_UNSAFE = re.compile(
    r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069\ud800-\udfff]"
)

if TYPE_CHECKING:
    _Adapter = logging.LoggerAdapter[logging.Logger]
else:
    _Adapter = logging.LoggerAdapter


def printable(text: str) -> str:
    """The text with what a terminal would obey, or could not write, spelt out: \\x1b, \\u202e."""
    return _UNSAFE.sub(lambda found: found[0].encode("unicode_escape", "surrogatepass").decode(), text)


def encodable(text: str, encoding: str) -> str:
    """The text with what an output's encoding lacks spelt out: +- for ±, \\u2603."""
    try:
        text.encode(encoding)
    except UnicodeEncodeError:
        return text.replace("±", "+-").encode(encoding, "backslashreplace").decode(encoding)
    return text


class PrintableLog(_Adapter):
    """A logger whose words are printable, whoever they are from."""

    def log(self, level: int, msg: object, *args: object, **more: Any) -> None:
        clean = (printable(str(arg)) if isinstance(arg, str | Exception) else arg for arg in args)
        super().log(level, msg, *clean, **more)
