"""An error in a sentence, with the place it is from: narrowcast runs others' models, tasks and methods."""

from __future__ import annotations

import errno
import linecache
import os
import sysconfig
import traceback
from collections.abc import Callable
from pathlib import Path
from types import FrameType

FULL = {errno.ENOSPC, errno.EDQUOT}
VARIABLE = "NARROWCAST_TRACEBACK"
OURS = {"narrowcast", "narrowcast_studies"}
_STDLIB = os.path.join(sysconfig.get_path("stdlib"), "")


def told(error: Exception) -> str:
    """What an error says, and the last line of the user's own code that it came through.

    One that was not raised for a user to read has its type before it, and if no such line a line of ours
    behind it. NARROWCAST_TRACEBACK=1 puts the whole traceback before all.
    """
    meant = _is_meant(error)
    said = _words(error) if meant else ": ".join(filter(None, (type(error).__name__, str(error))))
    place = _place(error, _is_users) or ("" if meant else _place(error, _is_ours))
    said = f"error: {said}" + (f" ({place})" if place else "")
    if os.environ.get(VARIABLE):
        return "".join(traceback.format_exception(error)) + said
    return said if meant else f"{said}\n{VARIABLE}=1 shows the whole traceback"


def _words(error: Exception) -> str:
    """Of an OSError about a file: the file, the system's word, and what to do."""
    if not isinstance(error, OSError) or error.filename is None or error.strerror is None:
        return str(error)
    do = (
        "make room" if error.errno in FULL else "name another path, or see that it exists and is yours to use"
    )
    return f"cannot read or write {os.fsdecode(error.filename)}: {error.strerror}: {do}"


def _is_meant(error: Exception) -> bool:
    """Whether a line of ours raised it, or it is about files and packages that are not as they should be."""
    if isinstance(error, OSError | ImportError):
        return True
    frame, line = list(traceback.walk_tb(error.__traceback__))[-1]
    code = linecache.getline(frame.f_code.co_filename, line, frame.f_globals)
    return _is_ours(frame) and code.strip().startswith("raise ") and bool(str(error))


def _place(error: BaseException | None, belongs: Callable[[FrameType], bool]) -> str:
    """The last such line that it came through, or else the error that it was made of."""
    while error is not None:
        for frame, line in reversed(list(traceback.walk_tb(error.__traceback__))):
            if belongs(frame):
                path, here = Path(frame.f_code.co_filename), Path.cwd()
                file = path.relative_to(here) if path.is_relative_to(here) else path
                return f"{file}, line {line}, in {frame.f_code.co_name}"
        error = error.__cause__ or error.__context__
    return ""


def _is_ours(frame: FrameType) -> bool:
    return str(frame.f_globals.get("__package__")).split(".")[0] in OURS


def _is_users(frame: FrameType) -> bool:
    file = frame.f_code.co_filename
    installed = "site-packages" in file or "dist-packages" in file or file.startswith((_STDLIB, "<"))
    return not installed and not _is_ours(frame)
