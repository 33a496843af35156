"""What a request says, checked.  Everything here raises Refused, naming the fields."""

from __future__ import annotations

import re
import secrets
from collections.abc import Mapping
from typing import Any, TypeVar
from urllib.parse import parse_qs

import msgspec

from headgate.adapters.messages.records import (
    BATCH_MAX,
    BODY_MAX_BYTES,
    DEAD_LETTER_MAX_BYTES,
    KEY_MAX_CHARS,
    READ_MAX,
    TTL_DEFAULT_S,
    Draft,
    Queue,
    Refused,
    wrong_with_body,
)
from headgate.queueing.ids import START, TICKS_MAX, Position, is_id, position_of, ticks_of_unix
from headgate.queueing.lanes import DEAD_LETTERS, PARTITIONS_MAX, QUEUE_NAME, TTL_MAX_S

T = TypeVar("T")

LIMIT_DEFAULT = 100
WAIT_MAX_S = 60.0
IDS_MAX = 1_000
KINDS = ("user", "public")
CONSISTENCIES = ("weak", "strong", "very_strong")
_PRINCIPLE = re.compile(r"app:[A-Za-z0-9_-]+|bid:[^@\s,]+@[A-Za-z0-9-]+(\.[A-Za-z0-9-]+)+")
_ID = re.compile(r"(?:([0-9]{1,3}):)?([0-9a-f]{32})")


def form(body: bytes) -> dict[str, str]:
    """A form, each name once."""
    try:
        found = parse_qs(body.decode(), keep_blank_values=True, max_num_fields=100)
    except ValueError as error:
        raise Refused({"body": f"this is no form: {error}"}) from error
    return {name: values[-1] for name, values in found.items()}


def whole(fields: Mapping[str, Any], name: str, low: int, high: int, default: T) -> int | T:
    """A whole number, or the default when it is not given."""
    value = fields.get(name)
    if type(value) is int and low <= value <= high:
        return value
    if value is None or value == "":
        return default
    if isinstance(value, bool) or not re.fullmatch(r"[0-9]{1,10}", str(value)) or not low <= int(value) <= high:
        raise Refused({name: f"a whole number from {low} to {high} is wanted, not {str(value)[:40]!r}"})
    return int(value)


def truth(fields: Mapping[str, str], name: str) -> bool:
    return fields.get(name, "").lower() in ("true", "1", "yes", "on")


def queue(fields: Mapping[str, str], known: Queue | None, now_ms: int, name: str = "") -> Queue:
    """A queue as wanted; what is not said stays as `known` has it."""
    name = name or fields.get("queue_name") or secrets.token_hex(16)
    if not QUEUE_NAME.fullmatch(name):
        raise Refused({"queue_name": "a name has 1 to 50 letters, digits, dots, hyphens or underscores"})
    base = known or Queue(0, name, 1, "user", "strong", "", now_ms)
    kind = _choice(fields, "type", KINDS, base.kind)
    consistency = _choice(fields, "consistency", CONSISTENCIES, base.consistency)
    partitions = whole(fields, "partitions", 1, PARTITIONS_MAX, base.partitions)
    return Queue(base.id, name, partitions, kind, consistency, _principles(fields, base.principles), base.created_ms)


def _choice(fields: Mapping[str, str], name: str, words: tuple[str, ...], default: str) -> str:
    value = fields.get(name) or default
    if value not in words:
        raise Refused({name: f"one of {', '.join(words)} is wanted, not {value[:40]!r}"})
    return value


def _principles(fields: Mapping[str, str], default: str) -> str:
    if "principles" not in fields:
        return default
    found = [part.strip() for part in fields["principles"].split(",") if part.strip()]
    if any(not _PRINCIPLE.fullmatch(part) for part in found):
        raise Refused({"principles": "each is app:<name> or bid:<user>@<host>"})
    return ",".join(found)


def drafts(headers: Mapping[str, str], body: bytes, queue: str) -> list[Draft]:
    """One message as it stands, or with JSON a batch; fields of a batch are named `<index>.<field>`."""
    if headers.get("content-type", "").partition(";")[0].strip().lower() != "application/json":
        fields = {"body": _text(body), "ttl": headers.get("x-ttl"), "partition": headers.get("x-partition")}
        fields["key"] = _utf8(headers.get("x-key", ""))
        return [_draft(fields, "", DEAD_LETTER_MAX_BYTES if queue == DEAD_LETTERS else BODY_MAX_BYTES)]
    try:
        found = msgspec.json.decode(body)
    except (msgspec.DecodeError, ValueError, RecursionError) as error:
        raise Refused({"body": f"this is no JSON: {error}"}) from error
    messages = found.get("messages") if isinstance(found, dict) else None
    if not isinstance(messages, list) or not messages:
        raise Refused({"messages": 'a batch is {"messages": [{"body": …}, …]} with at least one message'})
    if len(messages) > BATCH_MAX:
        raise Refused({"messages": f"a batch has at most {BATCH_MAX} messages, not {len(messages)}"})
    good, wrong = list[Draft](), dict[str, str]()
    for n, message in enumerate(messages):
        try:
            good.append(_draft(message if isinstance(message, dict) else {"body": message}, f"{n}."))
        except Refused as refused:
            wrong |= refused.fields
    if wrong:
        raise Refused(wrong)
    return good


def _draft(fields: Mapping[str, Any], prefix: str, most_bytes: int = BODY_MAX_BYTES) -> Draft:
    body = fields.get("body", "")
    why = wrong_with_body(body, most_bytes) if isinstance(body, str) else "a message is text"
    if why:
        raise Refused({f"{prefix}body": why})
    try:
        return Draft(body, ttl(fields), whole(fields, "partition", 1, PARTITIONS_MAX, None), _key(fields))
    except Refused as refused:
        raise Refused({f"{prefix}{name}": text for name, text in refused.fields.items()}) from None


def _utf8(header: str) -> str:
    """Of a header that is not in ASCII: its bytes are told as if each were a letter."""
    try:
        return header.encode("latin-1").decode()
    except ValueError as error:
        raise Refused({"key": "it is a text in UTF-8"}) from error


def _key(fields: Mapping[str, Any]) -> str:
    """What decides on the partition, in place of a number."""
    key = fields.get("key")
    if key is None or key == "":
        return ""
    if not isinstance(key, str) or len(key) > KEY_MAX_CHARS or not key.isprintable():
        raise Refused({"key": f"it is a text of at most {KEY_MAX_CHARS} printable characters"})
    if fields.get("partition") not in (None, ""):
        raise Refused({"key": "either a key or a partition is said, not both"})
    return key


def ttl(fields: Mapping[str, Any]) -> int:
    return whole(fields, "ttl", 1, TTL_MAX_S, TTL_DEFAULT_S)


def single(headers: Mapping[str, str], body: bytes) -> tuple[str, int]:
    """Body and TTL of a message that is put."""
    draft = _draft({"body": _text(body), "ttl": headers.get("x-ttl")}, "")
    return draft.body, draft.ttl_s


def _text(body: bytes) -> str:
    try:
        return body.decode()
    except UnicodeDecodeError as error:
        raise Refused({"body": f"a message is text in UTF-8: {error.reason} at byte {error.start}"}) from error


def ids(text: str) -> list[tuple[int, str]]:
    """`[partition:]id` with commas between them -> (partition, id)."""
    found = []
    for part in text.split(","):
        match = _ID.fullmatch(part)
        if match is None or not 1 <= int(match[1] or 1) <= PARTITIONS_MAX:
            raise Refused({"message_ids": f"{part[:60]!r} is no message id: it is [PARTITION:]32 hex digits"})
        found.append((int(match[1] or 1), match[2]))
    if len(found) > IDS_MAX:
        raise Refused({"message_ids": f"at most {IDS_MAX} at once, not {len(found)}"})
    return found


class Page(msgspec.Struct, frozen=True):
    """Which messages are wanted."""

    partitions: tuple[int, ...]
    since: Position
    exclusive: bool
    """Without the message at `since` itself."""
    limit: int
    descending: bool
    wait_s: float


def page(query: Mapping[str, str], of: Queue) -> Page:
    order = _choice(query, "order", ("ascending", "descending"), "ascending")
    after = query.get("after", "")
    name = "after" if after else "since"
    since = _position(query, name, exclusive=bool(after))
    if since == START and order == "descending":
        since = Position(TICKS_MAX)
    limit = whole(query, "limit", 1, READ_MAX, LIMIT_DEFAULT)
    return Page(_partitions(query, of), since, bool(after), limit, order == "descending", wait(query))


def _position(query: Mapping[str, str], name: str, *, exclusive: bool) -> Position:
    text = query.get(name, "")
    if not text:
        return START
    if is_id(text):
        return position_of(text)
    try:
        ticks = ticks_of_unix(text)
    except ValueError as error:
        raise Refused({name: f"a message id or seconds since 1970 are wanted: {error}"}) from error
    return Position(ticks) if exclusive else Position(ticks, "")


def position_after(query: Mapping[str, str]) -> Position:
    return _position(query, "after", exclusive=True)


def _partitions(query: Mapping[str, str], of: Queue) -> tuple[int, ...]:
    found = []
    for part in query.get("partitions", "1").split(","):
        try:
            found.append(whole({"partitions": part.strip()}, "partitions", 1, of.partitions, 1))
        except Refused:
            raise Refused({"partitions": f"numbers from 1 to {of.partitions} with commas between them"}) from None
    return tuple(dict.fromkeys(found))


def wait(query: Mapping[str, str]) -> float:
    text = query.get("wait", "0")
    if not re.fullmatch(r"[0-9]{1,3}(\.[0-9]{1,3})?", text) or float(text) > WAIT_MAX_S:
        raise Refused({"wait": f"seconds from 0 to {WAIT_MAX_S:.0f} are wanted, not {text[:40]!r}"})
    return float(text)
