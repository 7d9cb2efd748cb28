"""Mods: what wraps a ClientApp's handling of a message."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable

from flwr.app import Context, Message

log = logging.getLogger("flwr")


def sizes_mod(
    message: Message, context: Context, call_next: Callable[[Message, Context], Message]
) -> Message:
    """Say in the node's log how long a message's work took, and how many bytes its records had each way."""
    started, received = time.perf_counter(), _bytes(message)
    reply = call_next(message, context)
    log.info(
        "%s: %d bytes of records in, %d out, %.2f s",
        message.metadata.message_type,
        received,
        _bytes(reply),
        time.perf_counter() - started,
    )
    return reply


def _bytes(message: Message) -> int:
    if not message.has_content():
        return 0
    return sum(record.count_bytes() for record in message.content.values())
