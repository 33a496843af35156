"""Define the message that a job receives, what the job may raise, and messages that a worker gave up."""

from __future__ import annotations

from typing import Any

import msgspec

DEAD_TTL_S = 30 * 86_400
"""Time in seconds for which a dead letter is kept."""
ERROR_MAX_CHARS = 2_000


class Message(msgspec.Struct, frozen=True):
    """Represent one message.  Its fields are also available as `message["body"]`, as older jobs read them."""

    message_id: str
    body: str
    partition: int
    timestamp: str
    """Seconds since 1970, decimal, to 100 ns."""
    queue: str = ""
    attempt: int = 1
    """Number of this attempt. 1 means that the message has certainly not been started before."""

    def __getitem__(self, name: str) -> Any:  # str or int, like the field
        if name not in self.__struct_fields__:
            raise KeyError(name)
        return getattr(self, name)

    def json(self) -> Any:  # any JSON that the producer wrote
        """Return the decoded JSON body. Raise ValueError."""
        return msgspec.json.decode(self.body)


class StopWorker(Exception):
    """End the worker; the message whose job raised this counts as not processed."""


class RetryLater(Exception):
    """Try the message again, not before `after_s` seconds; it counts as an attempt like any failure."""

    def __init__(self, after_s: float, why: str = "asked to be tried again later") -> None:
        super().__init__(why)
        self.after_s = after_s


class Reject(Exception):
    """Tell the worker not to retry: the message goes straight to the dead letters."""


class TimeLimit(Exception):
    """Report that the job took longer than its queue allows."""


class Failed(Exception):
    """Report that the job failed as often as its policy allows, when the exception of the last failure is no longer
    known."""


class Vanished(Exception):
    """Report that the processes that ran this message disappeared, or had to stop, too often."""


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
    """Attempts that may have begun and whose outcome is unknown; not counted in `attempts`."""


def dead_letter(text: str) -> tuple[DeadLetter, str]:
    """Split a dead letter into what is known about it and the body. Raise ValueError."""
    head, _, body = text.partition("\n")
    return msgspec.json.decode(head, type=DeadLetter), body


def format_dead_letter(known: DeadLetter, body: str) -> str:
    """Format a dead letter as it is posted."""
    return f"{msgspec.json.encode(known).decode()}\n{body}"
