"""Dead letters: messages that were given up, as they are kept."""

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
    """How often a job was handed it."""
    error: str
    worker: str
    dead_ms: int
    v: int = 1
    died: int = 0
    """How many of the attempts ended with their process."""
    lost: int = 0
    """Its worker lost its session meanwhile."""
    left: int = 0
    """Its worker was asked to stop meanwhile."""
    unsure: int = 0
    """Besides the attempts: those that were about to begin, of which nothing more was heard."""


def dead_letter(text: str) -> tuple[DeadLetter, str]:
    """Split a dead letter into what is known about it and the body. Raise ValueError."""
    head, _, body = text.partition("\n")
    return msgspec.json.decode(head, type=DeadLetter), body


def letter_of(known: DeadLetter, body: str) -> str:
    """Format a dead letter as it is posted."""
    return f"{msgspec.json.encode(known).decode()}\n{body}"
