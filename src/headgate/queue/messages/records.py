"""Define what is posted and what is kept, and what may be wrong with it."""

from __future__ import annotations

import msgspec

from headgate.queueing.ids import make_id
from headgate.queueing.lanes import TTL_MAX_S

TTL_DEFAULT_S = 259_200
BODY_MAX_BYTES = 1_048_576
DEAD_LETTER_MAX_BYTES = BODY_MAX_BYTES + 65_536
"""A dead letter is a message, and what is said of it."""
BATCH_MAX = 10_000
"""Messages posted at once."""
READ_MAX = 1_000
"""Messages of one partition read at once."""
READ_MAX_CHARS = 4_000_000
"""Of bodies read at once: a page is cut short behind them, never before its first message."""
KEY_MAX_CHARS = 200
DELAY_MAX_S = TTL_MAX_S
"""How far ahead a message may be posted for."""
KEYS_KEPT_S = 3 * 86_400
"""How long a post with the same Idempotency-Key is answered as the first was."""
COUNT_MAX = 100_000
"""Messages are counted so far; more is "at least"."""


class NoQueue(LookupError):
    """Report that there is no queue of this name."""


class KeyReused(ValueError):
    """Report that the Idempotency-Key was used for a different request."""


class PartitionFull(ValueError):
    """Report that there is no room now, or that posts come too fast."""

    def __init__(self, why: str, again_s: float) -> None:
        super().__init__(why)
        self.again_s = again_s


class InvalidPost(ValueError):
    """Report an invalid post; `fields` maps each field to what is wrong with it."""

    def __init__(self, fields: dict[str, str]) -> None:
        super().__init__("; ".join(f"{name}: {text}" for name, text in fields.items()))
        self.fields = fields


class MessageDraft(msgspec.Struct, frozen=True):
    body: str
    ttl_s: int = TTL_DEFAULT_S
    partition: int | None = None
    """None: by the key; without one any, by chance."""
    key: str = ""
    """Messages of one key are in one partition, or strand, for as long as the queue has as many."""
    delay_ms: int = 0
    """It is delivered so long after it was posted."""
    at_ms: int = 0
    """Or not before this time, since 1970."""
    hold: bool = False
    """Until it is delivered, those posted after it to its partition wait behind it."""
    priority: str = ""
    """A name or a number, as `priority_named` takes it; empty: the usual one, or that of the partition."""

    @property
    def size_bytes(self) -> int:
        """Return the size of the body in UTF-8."""
        return len(self.body) if self.body.isascii() else len(self.body.encode())

    def due_ms(self, now_ms: int) -> int:
        """Return when the message is to be delivered if posted now, which is never before now."""
        return max(now_ms + self.delay_ms, self.at_ms)


class Posted(msgspec.Struct, frozen=True, omit_defaults=True):
    """Describe a posted message in an answer."""

    key: str
    timestamp: str
    partition: int
    deliver_at: str = ""
    """When it is due, in seconds since 1970; it is not there before, and then has another id.  Empty: it is there."""


class StoredMessage(msgspec.Struct, frozen=True):
    """Show a stored message."""

    message_id: str
    timestamp: str
    body: str
    partition: int


class QueueRecord(msgspec.Struct, frozen=True):
    id: int
    name: str
    partitions: int
    kind: str
    consistency: str
    principles: str
    """Comma-separated; empty: the application alone."""
    created_ms: int
    messages_max: int = 0
    """Of each partition; 0: any number."""
    bytes_max: int = 0
    """Of the bodies of each partition; 0: any."""
    full: str = "refuse"
    """What becomes of more: refuse it, or drop the oldest."""
    age_max_s: int = 0
    """No message of the queue is kept for longer, whatever its own time is; 0: each is kept for its own."""
    priorities: int = 1
    """Its partitions are in strands of so many, see `queueing.priorities`."""

    def kept_s(self, ttl_s: int) -> int:
        """Return how long a message is kept whose own time is `ttl_s`."""
        return min(ttl_s, self.age_max_s) if self.age_max_s else ttl_s

    def id_of(self, partition: int, ticks: int, node: int) -> str:
        """Return the id of a message, which no other of its partition has; nor of its strand, where there are some."""
        return make_id(ticks, partition if self.priorities > 1 else 0, node)


class PartitionBacklog(msgspec.Struct, frozen=True):
    """Describe what lies behind a position of one partition."""

    waiting: int
    """Messages, counted to COUNT_MAX."""
    newest: str
    """Id of the newest message of the partition, empty when there is none."""
    oldest_waiting: str
    """Timestamp of the first message that waits, empty when none does."""
    delayed: int = 0
    """Messages that are not due yet, counted to COUNT_MAX."""


def wrong_with_body(body: str, most_bytes: int = BODY_MAX_BYTES) -> str:
    """Return why a body cannot be stored, or an empty string."""
    if not body:
        return "a message must not be empty"
    if "\x00" in body:
        return "a message is text, without NUL characters"
    size_bytes = len(body) if body.isascii() else len(body.encode())
    if size_bytes > most_bytes:
        return f"a message has at most {most_bytes} bytes, not {size_bytes}"
    return ""
