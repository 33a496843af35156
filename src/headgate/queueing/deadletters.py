"""Dead letters: messages that a worker gave up, in the form in which they are kept."""

from __future__ import annotations

import msgspec

DEAD_TTL_S = 30 * 86_400
ERROR_MAX_CHARS = 2_000


class DeadLetter(msgspec.Struct, frozen=True):
    """Represent the first line of a dead letter; the unchanged body follows it."""

    queue: str
    partition: int
    message_id: str
    timestamp: str
    attempts: int
    """Number of times that a job received the message."""
    error: str
    worker: str
    dead_ms: int
    v: int = 1
    died: int = 0
    """Attempts during which the process ended."""
    lost: int = 0
    """Attempts during which the worker lost its session."""
    left: int = 0
    """Attempts during which the worker was asked to stop."""
    unsure: int = 0
    """Attempts, not counted in `attempts`, that were about to begin and of which no outcome is known."""


def dead_letter(text: str) -> tuple[DeadLetter, str]:
    """Split a dead letter into what is known about it and the body. Raise ValueError."""
    head, _, body = text.partition("\n")
    return msgspec.json.decode(head, type=DeadLetter), body


def format_dead_letter(known: DeadLetter, body: str) -> str:
    """Format a dead letter as it is posted."""
    return f"{msgspec.json.encode(known).decode()}\n{body}"
