"""Check the fields of a request. Every function here raises InvalidPost, naming the fields."""

from __future__ import annotations

import re
import secrets
from collections.abc import Mapping
from datetime import datetime
from typing import Any, NamedTuple, TypeVar
from urllib.parse import parse_qs

import msgspec

from headgate.queue.messages import records
from headgate.queueing.ids import START, TICKS_MAX, Position, is_id, position_of, ticks_of_unix
from headgate.queueing.partitions import DEAD_LETTERS, PARTITIONS_MAX, PRIORITIES_MAX, PRIORITY, QUEUE_NAME, TTL_MAX_S

T = TypeVar("T")

LIMIT_DEFAULT = 100
PAGE_MAX_CHARS = records.READ_MAX_CHARS
"""Characters of bodies after which a page of several partitions ends."""
WAIT_MAX_S = 60.0
FORM_MAX_BYTES = 65_536
PRINCIPLES_MAX_CHARS = 2_000
"""Limit on the principals of a queue, which are read with its record at every request."""
IDS_MAX = 1_000
MOST_MAX = 9_999_999_999
"""Largest value of a limit on partitions."""
KINDS = ("user", "public")
CONSISTENCIES = ("weak", "strong", "very_strong")
_PRINCIPLE = re.compile(r"app:[A-Za-z0-9_-]+|bid:[^@\s,]+@[A-Za-z0-9-]+(\.[A-Za-z0-9-]+)+")
_ID = re.compile(r"(?:([0-9]{1,3}):)?([0-9a-f]{32})")


def form(body: bytes) -> dict[str, str]:
    """Parse a form in which each name occurs once."""
    if len(body) > FORM_MAX_BYTES:
        raise records.InvalidPost({"body": f"a form may have at most {FORM_MAX_BYTES} bytes, not {len(body)}"})
    try:
        # Without the limit, one request of megabytes becomes millions of fields.
        found = parse_qs(body.decode(), keep_blank_values=True, max_num_fields=100)
    except ValueError as error:
        raise records.InvalidPost({"body": f"this is not a form: {error}"}) from error
    return {name: values[-1] for name, values in found.items()}


def idempotency_key(headers: Mapping[str, str]) -> str:
    """Return the key under which a request may be repeated, or an empty string."""
    key = headers.get("idempotency-key", "")
    if len(key) > records.KEY_MAX_CHARS or not key.isprintable():
        raise records.InvalidPost(
            {"Idempotency-Key": f"it may have at most {records.KEY_MAX_CHARS} printable characters"}
        )
    return key


def whole_number(fields: Mapping[str, Any], name: str, low: int, high: int, default: T) -> int | T:
    """Return a whole number, or the default if it is missing."""
    value = fields.get(name)
    # By exact type, because `True` is an int, too.
    if type(value) is int and low <= value <= high:
        return value
    if value is None or value == "":
        return default
    # Plain digits only: `int` also takes signs, underscores and the digits of other scripts.
    plain = type(value) in (int, str) and re.fullmatch(r"[0-9]{1,10}", str(value))
    if not plain or not low <= int(str(value)) <= high:
        raise records.InvalidPost({name: f"it must be a whole number from {low} to {high}, not {_quoted(value)}"})
    return int(value)


def _quoted(value: object) -> str:
    """Return the beginning of a value for an error, or its type: writing out a list of megabytes takes seconds."""
    return f"a {type(value).__name__}" if isinstance(value, list | dict) else repr(str(value)[:40])


def truth(fields: Mapping[str, str], name: str) -> bool:
    return fields.get(name, "").lower() in ("true", "1", "yes", "on")


def queue(
    fields: Mapping[str, str], known: records.QueueRecord | None, now_ms: int, name: str = ""
) -> records.QueueRecord:
    """Return the queue that is requested; settings that are missing stay as `known` has them."""
    name = name or fields.get("queue_name") or secrets.token_hex(16)
    if not QUEUE_NAME.fullmatch(name):
        raise records.InvalidPost({"queue_name": "a name has 1 to 50 letters, digits, dots, hyphens or underscores"})
    base = known or records.QueueRecord(0, name, 1, "user", "strong", "", now_ms)
    kind = _choice(fields, "type", KINDS, base.kind)
    consistency = _choice(fields, "consistency", CONSISTENCIES, base.consistency)
    priorities = whole_number(fields, "priorities", 1, PRIORITIES_MAX, base.priorities)
    partitions = whole_number(fields, "partitions", 1, PARTITIONS_MAX, base.partitions if known else priorities)
    _check_priorities(name, partitions, priorities, known)
    principles, most = _principles(fields, base.principles), MOST_MAX
    messages_max = whole_number(fields, "messages_max", 0, most, base.messages_max)
    bytes_max = whole_number(fields, "bytes_max", 0, most, base.bytes_max)
    age_max_s = whole_number(fields, "age_max", 0, TTL_MAX_S, base.age_max_s)
    full = _choice(fields, "full", ("refuse", "drop"), base.full)
    if name == DEAD_LETTERS and (messages_max or bytes_max) and full == "refuse":
        raise records.InvalidPost({"full": "a queue of dead letters never refuses: set full to drop, or set no limits"})
    return records.QueueRecord(
        id=base.id,
        name=name,
        partitions=partitions,
        kind=kind,
        consistency=consistency,
        principles=principles,
        created_ms=base.created_ms,
        messages_max=messages_max,
        bytes_max=bytes_max,
        full=full,
        age_max_s=age_max_s,
        priorities=priorities,
    )


def _check_priorities(name: str, partitions: int, priorities: int, known: records.QueueRecord | None) -> None:
    if known and priorities != known.priorities:
        raise records.InvalidPost(
            {"priorities": f"a queue cannot change its priorities: it has {known.priorities}; create another queue"}
        )
    if partitions % priorities:
        wanted = f"with {priorities} priorities it must be a multiple of {priorities}, not {partitions}"
        raise records.InvalidPost({"partitions": f"{wanted}: each strand has one partition of each priority"})
    if name == DEAD_LETTERS and priorities > 1:
        raise records.InvalidPost(
            {"priorities": "a queue of dead letters has none: a message that is posted again keeps its priority"}
        )


def _choice(fields: Mapping[str, str], name: str, words: tuple[str, ...], default: str) -> str:
    value = fields.get(name) or default
    if value not in words:
        raise records.InvalidPost({name: f"it must be one of {', '.join(words)}, not {value[:40]!r}"})
    return value


def _principles(fields: Mapping[str, str], default: str) -> str:
    if "principles" not in fields:
        return default
    found = [part.strip() for part in fields["principles"].split(",") if part.strip()]
    if len(fields["principles"]) > PRINCIPLES_MAX_CHARS:
        raise records.InvalidPost({"principles": f"they may have at most {PRINCIPLES_MAX_CHARS} characters together"})
    if any(not _PRINCIPLE.fullmatch(part) or not part.isprintable() for part in found):
        raise records.InvalidPost({"principles": "each is app:<name> or bid:<user>@<host>"})
    return ",".join(found)


def drafts(headers: Mapping[str, str], body: bytes, queue: str, now_ms: int) -> list[records.MessageDraft]:
    """Return the body as one message or, with JSON, a batch, whose fields are named `<index>.<field>`."""
    if headers.get("content-type", "").partition(";")[0].strip().lower() != "application/json":
        fields = {"body": _text(body), "ttl": headers.get("x-ttl"), "partition": headers.get("x-partition")}
        fields["key"] = _utf8(headers.get("x-key", ""))
        others = ("delay", "deliver_at", "hold", "priority")
        fields |= {name: headers.get(f"x-{name.replace('_', '-')}") for name in others}
        return [
            draft(
                fields, "", now_ms, records.DEAD_LETTER_MAX_BYTES if queue == DEAD_LETTERS else records.BODY_MAX_BYTES
            )
        ]
    try:
        found = msgspec.json.decode(body)
    except (msgspec.DecodeError, ValueError, RecursionError) as error:
        raise records.InvalidPost({"body": f"this is not JSON: {error}"}) from error
    messages = found.get("messages") if isinstance(found, dict) else None
    if not isinstance(messages, list) or not messages:
        raise records.InvalidPost({"messages": 'a batch is {"messages": [{"body": …}, …]} with at least one message'})
    if len(messages) > records.BATCH_MAX:
        raise records.InvalidPost(
            {"messages": f"a batch may have at most {records.BATCH_MAX} messages, not {len(messages)}"}
        )
    good, wrong = list[records.MessageDraft](), dict[str, str]()
    for n, message in enumerate(messages):
        try:
            good.append(draft(message if isinstance(message, dict) else {"body": message}, f"{n}.", now_ms))
        except records.InvalidPost as refused:
            wrong |= refused.fields
    if wrong:
        raise records.InvalidPost(wrong)
    return good


def draft(
    fields: Mapping[str, Any], prefix: str, now_ms: int, most_bytes: int = records.BODY_MAX_BYTES
) -> records.MessageDraft:
    """Return one message from its fields in a batch."""
    body = fields.get("body", "")
    why = records.wrong_with_body(body, most_bytes) if isinstance(body, str) else "a message is text"
    if why:
        raise records.InvalidPost({f"{prefix}body": why})
    try:
        partition = whole_number(fields, "partition", 1, PARTITIONS_MAX, None)
        return records.MessageDraft(
            body, ttl(fields), partition, _key(fields), *_due(fields, now_ms), _priority(fields)
        )
    except records.InvalidPost as refused:
        raise records.InvalidPost({f"{prefix}{name}": text for name, text in refused.fields.items()}) from None


def _utf8(header: str) -> str:
    """Decode a header with bytes beyond ASCII: the server passes each byte as one character."""
    try:
        return header.encode("latin-1").decode()
    except ValueError as error:
        raise records.InvalidPost({"key": "it must be text in UTF-8"}) from error


def _key(fields: Mapping[str, Any]) -> str:
    """Return the key, which decides on the partition in place of a number."""
    key = fields.get("key")
    if key is None or key == "":
        return ""
    if not isinstance(key, str) or len(key) > records.KEY_MAX_CHARS or not key.isprintable():
        raise records.InvalidPost({"key": f"it may have at most {records.KEY_MAX_CHARS} printable characters"})
    if fields.get("partition") not in (None, ""):
        raise records.InvalidPost({"key": "give either a key or a partition, not both"})
    return key


def _priority(fields: Mapping[str, Any]) -> str:
    """Return the priority as requested; whether the queue has it is checked when the message is posted."""
    value = fields.get("priority")
    if value is None or value == "":
        return ""
    priority = str(value).lower() if type(value) in (str, int) else ""
    if not PRIORITY.fullmatch(priority):
        raise records.InvalidPost(
            {"priority": f"it must be high, normal, low or a number from 1, not {_quoted(value)}"}
        )
    if fields.get("partition") not in (None, ""):
        raise records.InvalidPost({"priority": "give either a priority or a partition, not both"})
    return priority


class DeliveryTime(NamedTuple):
    """Define when a message is delivered."""

    delay_ms: int = 0
    at_ms: int = 0
    hold: bool = False


def _due(fields: Mapping[str, Any], now_ms: int) -> DeliveryTime:
    delay, at, hold = (fields.get(name) or None for name in ("delay", "deliver_at", "hold"))
    if delay is not None and at is not None:
        raise records.InvalidPost({"delay": "give either a delay or deliver_at, not both"})
    wait = _hold(hold)
    if delay is not None:
        return DeliveryTime(_delay_ms(delay), 0, wait)
    if at is not None:
        return DeliveryTime(0, _at_ms(at, now_ms), wait)
    if wait:
        raise records.InvalidPost(
            {"hold": "only a message with a delay, or deliver_at, holds up those posted after it"}
        )
    return DeliveryTime()


def _hold(value: Any) -> bool:  # JSON, or the text of a header
    if value is None or isinstance(value, bool):
        return bool(value)
    word = value.lower() if isinstance(value, str) else ""
    if word not in ("yes", "no", "true", "false"):
        raise records.InvalidPost({"hold": f"it must be yes or no, not {_quoted(value)}"})
    return word in ("yes", "true")


def _delay_ms(value: Any) -> int:  # JSON, or the text of a header
    number = isinstance(value, int | float) and not isinstance(value, bool)
    # `float` would also take `nan`, `inf` and `1e9`.
    if not number and not (isinstance(value, str) and re.fullmatch(r"[0-9]{1,8}(\.[0-9]{1,9})?", value)):
        raise records.InvalidPost({"delay": f"it must be seconds, such as 90 or 0.5, not {_quoted(value)}"})
    if not 0 <= float(value) <= records.DELAY_MAX_S:
        raise records.InvalidPost({"delay": f"it must be between 0 and {records.DELAY_MAX_S} seconds"})
    return round(float(value) * 1000)


def _at_ms(value: Any, now_ms: int) -> int:  # JSON, or the text of a header
    wanted = f"it must be seconds since 1970 or a time such as 2026-01-31T12:00:00Z, not {_quoted(value)}"
    try:
        if isinstance(value, str) and not re.fullmatch(r"[0-9]{1,12}(\.[0-9]{1,9})?", value):
            moment = datetime.fromisoformat(value)
            # Python would read it in the server's own zone.
            if moment.tzinfo is None:
                raise records.InvalidPost({"deliver_at": f"{value[:40]!r} has no time zone; write …Z for UTC"})
            seconds = moment.timestamp()
        elif isinstance(value, bool):
            raise records.InvalidPost({"deliver_at": wanted})
        else:
            seconds = float(value)
    except (TypeError, ValueError, OverflowError) as error:
        if isinstance(error, records.InvalidPost):
            raise
        raise records.InvalidPost({"deliver_at": wanted}) from error
    # Written so that a comparison with NaN is refused.
    if not 0 <= seconds * 1000 <= now_ms + records.DELAY_MAX_S * 1000:
        raise records.InvalidPost({"deliver_at": f"it may be at most {records.DELAY_MAX_S} seconds ahead"})
    return round(seconds * 1000)


def ttl(fields: Mapping[str, Any]) -> int:
    return whole_number(fields, "ttl", 1, TTL_MAX_S, records.TTL_DEFAULT_S)


def single(headers: Mapping[str, str], body: bytes) -> tuple[str, int]:
    """Return body and TTL of a message that is put."""
    one = draft({"body": _text(body), "ttl": headers.get("x-ttl")}, "", 0)
    return one.body, one.ttl_s


def _text(body: bytes) -> str:
    try:
        return body.decode()
    except UnicodeDecodeError as error:
        raise records.InvalidPost(
            {"body": f"a message must be text in UTF-8: {error.reason} at byte {error.start}"}
        ) from error


def ids(text: str) -> list[tuple[int, str]]:
    """Parse `[partition:]id`, separated by commas, to (partition, id)."""
    found = []
    for part in text.split(","):
        match = _ID.fullmatch(part)
        if match is None or not 1 <= int(match[1] or 1) <= PARTITIONS_MAX:
            raise records.InvalidPost(
                {"message_ids": f"{part[:60]!r} is not a message id: write [PARTITION:] and 32 hex digits"}
            )
        found.append((int(match[1] or 1), match[2]))
    if len(found) > IDS_MAX:
        raise records.InvalidPost({"message_ids": f"at most {IDS_MAX} per request, not {len(found)}"})
    return found


class MessagePage(msgspec.Struct, frozen=True):
    """Define which messages are requested."""

    partitions: tuple[int, ...]
    since: Position
    exclusive: bool
    """Whether to leave out the message at `since` itself."""
    limit: int
    descending: bool
    wait_s: float


def page(query: Mapping[str, str], of: records.QueueRecord) -> MessagePage:
    order = _choice(query, "order", ("ascending", "descending"), "ascending")
    after = query.get("after", "")
    name = "after" if after else "since"
    since = _position(query, name, exclusive=bool(after))
    if since == START and order == "descending":
        # Without a position, descending order begins at the newest message.
        since = Position(TICKS_MAX)
    limit = whole_number(query, "limit", 1, records.READ_MAX, LIMIT_DEFAULT)
    return MessagePage(_partitions(query, of), since, bool(after), limit, order == "descending", wait(query))


def _position(query: Mapping[str, str], name: str, *, exclusive: bool) -> Position:
    text = query.get(name, "")
    if not text:
        return START
    if is_id(text):
        return position_of(text)
    try:
        ticks = ticks_of_unix(text)
    except ValueError as error:
        raise records.InvalidPost({name: f"it must be a message id or seconds since 1970: {error}"}) from error
    return Position(ticks) if exclusive else Position(ticks, "")


def position_after(query: Mapping[str, str]) -> Position:
    return _position(query, "after", exclusive=True)


def _partitions(query: Mapping[str, str], of: records.QueueRecord) -> tuple[int, ...]:
    found = []
    for part in query.get("partitions", "1").split(","):
        try:
            found.append(whole_number({"partitions": part.strip()}, "partitions", 1, of.partitions, 1))
        except records.InvalidPost:
            raise records.InvalidPost(
                {"partitions": f"numbers from 1 to {of.partitions}, separated by commas"}
            ) from None
    # A partition named twice is read once.
    return tuple(dict.fromkeys(found))


def wait(query: Mapping[str, str]) -> float:
    text = query.get("wait", "0")
    if not re.fullmatch(r"[0-9]{1,3}(\.[0-9]{1,3})?", text) or float(text) > WAIT_MAX_S:
        raise records.InvalidPost({"wait": f"it must be seconds from 0 to {WAIT_MAX_S:.0f}, not {text[:40]!r}"})
    return float(text)
