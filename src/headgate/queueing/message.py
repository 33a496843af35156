"""Define the message that a job receives, and the exceptions that it may raise."""

from __future__ import annotations

from typing import Any

import msgspec


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
    """Report that the job failed as often as its policy allows; the last time, its process could no longer say so."""


class Vanished(Exception):
    """Report that the processes that ran this message disappeared, or had to stop, too often."""
