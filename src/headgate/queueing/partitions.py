"""Partitions of queues: each has its messages in order, and one worker at a time processes it."""

from __future__ import annotations

import hashlib
import re
from typing import NamedTuple

PARTITIONS_MAX = 200
TTL_MAX_S = 1 << 25
"""Longest time to keep a message, in seconds: 388 days."""
DEAD_LETTERS = "headgate_dead_letters"
"""Queue of the messages that workers of the application gave up."""
RESERVED = (DEAD_LETTERS, "qdo_error", "qdo_status")
"""Beginnings of the names of queues that no job may process."""
QUEUE_NAME = re.compile(r"[A-Za-z0-9._-]{1,50}")


class QueuePartition(NamedTuple):
    """Name one partition of one queue.  Partitions are numbered from 1."""

    queue: str
    number: int = 1

    def __str__(self) -> str:
        """Return only the queue's name for its first partition."""
        return self.queue if self.number == 1 else f"{self.queue}:{self.number}"


def partition_of_key(key: str, partitions: int) -> int:
    """Return the number of the partition of a key: the first 8 bytes of the SHA-256 of the key in UTF-8, as a
    number, modulo the number of partitions, plus 1. This computation must never change."""
    return int.from_bytes(hashlib.sha256(key.encode()).digest()[:8], "big") % partitions + 1


def parse_partition(text: str) -> QueuePartition:
    """Parse `<queue>`, `<queue>:<n>` or, as in old configuration files, `<queue>-<n>` with a queue of 32 hex digits.
    Raise ValueError."""
    # The last colon, although names have none: what is wrong before it then appears in the error as it was written.
    queue, colon, number = text.rpartition(":")
    if not colon:
        old = re.fullmatch(r"([0-9a-f]{32})-([0-9]{1,3})", text)
        queue, number = (old[1], old[2]) if old else (text, "1")
    if not QUEUE_NAME.fullmatch(queue) or not number.isdecimal() or not 1 <= int(number) <= PARTITIONS_MAX:
        raise ValueError(
            f"{text!r} is not a partition of a queue: write QUEUE or QUEUE:N, with N from 1 to {PARTITIONS_MAX}"
        )
    return QueuePartition(queue, int(number))
