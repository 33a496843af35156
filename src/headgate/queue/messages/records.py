"""Define what is posted and what is kept, and the errors of posts."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from headgate.base.errors import HeadgateError
from headgate.queueing.ids import make_id
from headgate.queueing.partitions import TTL_MAX_S

TTL_DEFAULT_S = 259_200
BODY_MAX_BYTES = 1_048_576
DEAD_LETTER_MAX_BYTES = BODY_MAX_BYTES + 65_536
"""Size limit of a dead letter: a message, and the record of its attempts."""
BATCH_MAX = 10_000
"""Limit on the messages of one post."""
READ_MAX = 1_000
"""Limit on the messages of one partition that one request reads."""
READ_MAX_CHARS = 4_000_000
"""Characters of bodies after which a page of messages ends; it has at least one message. Bytes are counted, because
they are known without reading the bodies."""
PUT_MAX_CHARS = 16_000_000
"""Limit on the characters of bodies that one request writes to several ids."""
KEY_MAX_CHARS = 200
DELAY_MAX_S = TTL_MAX_S
"""Longest time, in seconds, from the posting of a message to its delivery."""
KEYS_MAX_S = 3 * 86_400
"""Seconds for which a repeated post with the same Idempotency-Key gets the answer of the first."""
COUNT_MAX = 100_000
"""Number up to which messages are counted; above it, answers say "at least"."""


class NoQueue(HeadgateError, LookupError):
    """Report that there is no queue of this name."""


class KeyReused(HeadgateError, ValueError):
    """Report that the Idempotency-Key was used for a different request."""


class PartitionFull(HeadgateError, ValueError):
    """Report that there is no room now, or that posts come too fast."""

    def __init__(self, why: str, again_s: float) -> None:
        super().__init__(why)
        self.again_s = again_s


class InvalidPost(HeadgateError, ValueError):
    """Report an invalid post; `fields` maps each field to what is wrong with it."""

    def __init__(self, fields: dict[str, str]) -> None:
        super().__init__("; ".join(f"{name}: {text}" for name, text in fields.items()))
        self.fields = fields


class MessageDraft(msgspec.Struct, frozen=True):
    """Hold a message as somebody posts it."""

    body: str
    ttl_s: int = TTL_DEFAULT_S
    partition: int | None = None
    """Number of the partition. None: the key decides or, without a key, chance."""
    key: str = ""
    """Messages with the same key are in one partition, or strand, while the number of partitions stays the same."""
    delay_ms: int = 0
    """Milliseconds from posting to delivery; 0: none."""
    at_ms: int = 0
    """Time before which the message is not delivered, in milliseconds since 1970; 0: none."""
    hold: bool = False
    """Whether messages posted later to the partition wait until this one is delivered."""
    priority: str = ""
    """Name or number of a priority, see `priority_named`; empty: the usual one, or that of the partition."""

    @property
    def size_bytes(self) -> int:
        """Return the size of the body in UTF-8."""
        return len(self.body) if self.body.isascii() else len(self.body.encode())

    def due_ms(self, now_ms: int) -> int:
        """Return when the message is delivered if it is posted now: never before now."""
        return max(now_ms + self.delay_ms, self.at_ms)


class Posted(msgspec.Struct, frozen=True, omit_defaults=True):
    """Describe a posted message in an answer."""

    key: str
    timestamp: str
    partition: int
    deliver_at: str = ""
    """When the message is due, in seconds since 1970: it appears only then, and with another id. Empty: it has been
    delivered."""


class StoredMessage(msgspec.Struct, frozen=True):
    """Show a stored message."""

    message_id: str
    timestamp: str
    body: str
    partition: int


class QueueRecord(msgspec.Struct, frozen=True):
    """Describe a queue and its settings."""

    id: int
    name: str
    partitions: int
    kind: str
    consistency: str
    principles: str
    """Principals with access to the queue, comma-separated; empty: only the application."""
    created_ms: int
    messages_max: int = 0
    """Limit on the messages of each partition; 0: none."""
    bytes_max: int = 0
    """Limit on the bytes of bodies of each partition; 0: none."""
    full: str = "refuse"
    """What happens to messages beyond the limits: `refuse` them, or `drop` the oldest."""
    age_max_s: int = 0
    """Longest time, in seconds, for which the queue keeps any message; 0: each message's TTL decides."""
    priorities: int = 1
    """Number of priorities; each strand of partitions has as many, see `queueing.partitions`."""

    def lifetime_s(self, ttl_s: int) -> int:
        """Return how long the queue keeps a message with this TTL, in seconds."""
        return min(ttl_s, self.age_max_s) if self.age_max_s else ttl_s

    def id_of(self, partition: int, ticks: int, node: int) -> str:
        """Return a message id that is unique in its partition and, in a queue with priorities, in its strand."""
        return make_id(ticks, partition if self.priorities > 1 else 0, node)


def fitting(sizes: Iterable[int]) -> int:
    """Return how many of the first bodies, of these sizes, fill a page."""
    count = total = 0
    for size in sizes:
        if total >= READ_MAX_CHARS:
            break
        count, total = count + 1, total + size
    return count


def wrong_with_body(body: str, most_bytes: int = BODY_MAX_BYTES) -> str:
    """Return why a body cannot be stored, or an empty string."""
    if not body:
        return "a message must not be empty"
    # PostgreSQL's type `text` cannot store this character.
    if "\x00" in body:
        return "a message must be text without NUL characters"
    size_bytes = len(body) if body.isascii() else len(body.encode())
    if size_bytes > most_bytes:
        return f"a message may have at most {most_bytes} bytes, not {size_bytes}"
    return ""
