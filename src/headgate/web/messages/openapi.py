"""The API described: OpenAPI 3.1, and the same as a page to read."""

from __future__ import annotations

from html import escape
from typing import Any

from headgate import __version__
from headgate.adapters.messages.records import BATCH_MAX, BODY_MAX_BYTES, DELAY_MAX_S, READ_MAX, TTL_DEFAULT_S
from headgate.queueing.lanes import PARTITIONS_MAX, TTL_MAX_S
from headgate.web.messages.parsing import LIMIT_DEFAULT, WAIT_MAX_S

Json = dict[str, Any]  # a document

_TEXT, _NUMBER, _YES = {"type": "string"}, {"type": "integer"}, {"type": "boolean"}
_ID = {"type": "string", "pattern": "^[0-9a-f]{32}$", "description": "A version-1 UUID; its time is the order."}
_TIME = {"type": "string", "description": "Seconds since 1970, to 100 ns."}
_PARTITION = {"type": "integer", "minimum": 1, "maximum": PARTITIONS_MAX}
_DELAY = {"type": "number", "minimum": 0, "maximum": DELAY_MAX_S, "description": "Seconds until it is delivered."}
_DELIVER_AT = {
    "type": ["number", "string"],
    "description": "In place of `delay`: seconds since 1970, or a time as 2026-01-31T12:00:00Z.",
}
_HOLD = {"type": "boolean", "default": False, "description": "Those posted after it to its partition wait for it."}
_TTL = {"type": "integer", "minimum": 1, "maximum": TTL_MAX_S, "default": TTL_DEFAULT_S, "description": "Seconds."}
SCHEMAS: Json = {
    "Posted": {
        "type": "object",
        "properties": {
            "key": _ID,
            "timestamp": _TIME,
            "partition": _PARTITION,
            "deliver_at": {
                **_TIME,
                "description": "Of a message that is not due yet: when it is; it has this key until then.",
            },
        },
    },
    "Delayed": {
        "type": "object",
        "properties": {
            "message_id": {**_ID, "description": "Until it is delivered; by it, it can be deleted."},
            "timestamp": _TIME,
            "deliver_at": {**_TIME, "description": "Seconds since 1970."},
            "body": _TEXT,
            "partition": _PARTITION,
            "hold": _HOLD,
        },
    },
    "Message": {
        "type": "object",
        "properties": {"message_id": _ID, "timestamp": _TIME, "body": _TEXT, "partition": _PARTITION},
    },
    "Draft": {
        "type": "object",
        "required": ["body"],
        "properties": {
            "body": {"type": "string", "minLength": 1, "description": f"At most {BODY_MAX_BYTES} bytes of UTF-8."},
            "ttl": _TTL,
            "partition": {**_PARTITION, "description": "Without it, by the key, or any."},
            "key": {
                "type": "string",
                "description": "In place of a partition: messages of one key are in one, and keep their order. It is "
                "the first 8 bytes of the SHA-256 of the key, as a number, modulo the number of partitions, plus 1.",
            },
            "delay": _DELAY,
            "deliver_at": _DELIVER_AT,
            "hold": _HOLD,
        },
    },
    "Wish": {
        "type": "object",
        "properties": {
            "worker": {"type": "string", "description": "Who asks, for people."},
            "group": {"type": "string", "default": "workers", "description": "Each has its own progress."},
            "partition": {**_PARTITION, "description": "Without it, any."},
            "ttl": {"type": "number", "minimum": 1, "maximum": 3600, "default": 30, "description": "Seconds."},
        },
    },
    "Lease": {
        "type": "object",
        "properties": {
            "lease": {"type": "string", "description": "Its name, in the paths of what is done under it."},
            "partition": _PARTITION,
            "epoch": {"type": "integer", "description": "One more with every holder."},
            "expires_in": {"type": "number", "description": "Seconds."},
            "processed": {"type": "string", "description": "The newest message that is done; empty: none is."},
        },
    },
    "Handed": {
        "type": "object",
        "properties": {
            "message_id": _ID,
            "timestamp": _TIME,
            "body": _TEXT,
            "partition": _PARTITION,
            "attempt": {"type": "integer", "description": "1 when it has certainly not been begun before."},
        },
    },
    "Outcome": {
        "type": "object",
        "properties": {
            "done": {"type": "array", "items": _ID},
            "failed": {
                "type": "array",
                "items": {
                    "type": "object",
                    "required": ["message_id"],
                    "properties": {
                        "message_id": _ID,
                        "error": _TEXT,
                        "retry_after": {"type": "number", "description": "Seconds; else 1, 2, 4 … up to 300."},
                        "reject": {**_YES, "description": "Do not try it again: it is a dead letter."},
                    },
                },
            },
            "attempts": {"type": "integer", "default": 3, "description": "The failure that makes a dead letter."},
            "ttl": {"type": "number", "default": 30, "description": "Of the lease, from now, in seconds."},
        },
    },
    "Queue": {
        "type": "object",
        "properties": {
            "queue_name": {"type": "string", "pattern": "^[A-Za-z0-9._-]{1,50}$"},
            "partitions": {**_PARTITION, "default": 1},
            "type": {"enum": ["user", "public"], "default": "user"},
            "consistency": {"enum": ["weak", "strong", "very_strong"], "default": "strong"},
            "principles": {"type": ["string", "null"], "description": "Who else may read: app:NAME, bid:USER@HOST."},
        },
    },
    "Error": {
        "type": "object",
        "properties": {
            "status": {"const": "error"},
            "error_msg": {"type": "object", "additionalProperties": _TEXT, "description": "What is wrong, by field."},
        },
    },
}


def _ref(name: str) -> Json:
    return {"$ref": f"#/components/schemas/{name}"}


def _query(name: str, schema: Json, text: str) -> Json:
    return {"name": name, "in": "query", "schema": schema, "description": text}


def _header(name: str, schema: Json, text: str) -> Json:
    return {"name": name, "in": "header", "schema": schema, "description": text}


def _answer(text: str, **properties: Json) -> Json:
    schema = {"type": "object", "properties": {"status": {"const": "ok"}, **properties}}
    return {"description": text, "content": {"application/json": {"schema": schema}}}


def _messages(name: str) -> Json:
    return {"type": "array", "items": _ref(name)}


_SINCE = _query("since", _TEXT, "From this message id, or these seconds since 1970, on; itself included.")
_AFTER = _query("after", _TEXT, "As `since`, without the message itself.")
_STREAM = {"description": "Server-sent events.", "content": {"text/event-stream": {"schema": _TEXT}}}
_FORM = {"content": {"application/x-www-form-urlencoded": {"schema": _ref("Queue")}}}
_RAW = {"text/plain": {"schema": {"type": "string", "minLength": 1}}}
_BATCH = {
    "type": "object",
    "properties": {"messages": {"type": "array", "minItems": 1, "maxItems": BATCH_MAX, "items": _ref("Draft")}},
}
_PAGE = [
    _SINCE,
    _AFTER,
    _query(
        "limit",
        {"type": "integer", "maximum": READ_MAX, "default": LIMIT_DEFAULT},
        "Of each; fewer when large.",
    ),
    _query("order", {"enum": ["ascending", "descending"]}, "By id."),
    _query("partitions", {"type": "string", "default": "1"}, "Numbers with commas; answered one after another."),
]


def _operations() -> dict[str, dict[str, Json]]:
    """path -> method -> operation, without what all have."""
    return {**_application(), **_queue(), **_parts_of_queue(), **_server()}


def _application() -> dict[str, dict[str, Json]]:
    return {
        "/v1/{app}": {
            "get": {
                "summary": "Queues; or, asked for text/event-stream, where something is posted and when queues change.",
                "parameters": [
                    _query("limit", _NUMBER, "At most so many."),
                    _query("offset", _TEXT, "From this name on."),
                    _query("details", _YES, "With partitions, type, consistency, principles, created."),
                    _query("include_count", _YES, "With the number of messages."),
                ],
                "responses": {"200": _answer("Queues by name.", queues=_messages("Queue"))},
            },
            "post": {
                "summary": "Make a queue, or change one.",
                "requestBody": _FORM,
                "responses": {"201": _answer("As it is now.")},
            },
        },
    }


def _queue() -> dict[str, dict[str, Json]]:
    return {
        "/v1/{app}/{queue}": {
            "get": {
                "summary": "Messages, in order.",
                "parameters": [
                    *_PAGE,
                    _query("wait", {"type": "number", "maximum": WAIT_MAX_S}, "Seconds to wait for a new one."),
                ],
                "responses": {"200": _answer("Perhaps none.", messages=_messages("Message"))},
            },
            "post": {
                "summary": "Post one message as it stands, or a batch as JSON.",
                "parameters": [
                    _header("X-TTL", _TTL, "Of a single message."),
                    _header("X-Partition", _PARTITION, "Of a single message."),
                    _header("X-Key", _TEXT, "Of a single message; see `key` of a draft."),
                    _header("X-Delay", _DELAY, "Of a single message."),
                    _header("X-Deliver-At", _DELIVER_AT, "Of a single message."),
                    _header("X-Hold", _TEXT, "Of a single message: yes or no; see `hold` of a draft."),
                    _header("Idempotency-Key", _TEXT, "The same post with the same key is answered as the first was."),
                ],
                "requestBody": {"content": {**_RAW, "application/json": {"schema": _BATCH}}},
                "responses": {"201": _answer("One entry a message, in order.", messages=_messages("Posted"))},
            },
            "put": {
                "summary": "Change a queue; what is not said stays, partitions only grow.",
                "requestBody": _FORM,
                "responses": {"200": _answer("As it is now.")},
            },
            "delete": {"summary": "Remove a queue with its messages.", "responses": {"200": _answer("Gone.")}},
        },
    }


def _parts_of_queue() -> dict[str, dict[str, Json]]:
    return {
        "/v1/{app}/{queue}/stream": {
            "get": {"summary": "Messages as they come.", "parameters": _PAGE, "responses": {"200": _STREAM}}
        },
        "/v1/{app}/{queue}/lag": {
            "get": {
                "summary": "How much waits behind a position of one partition.",
                "parameters": [_AFTER, _query("partition", _PARTITION, "Default: 1.")],
                "responses": {
                    "200": _answer("Counted.", waiting=_NUMBER, newest=_ID, oldest_waiting=_TIME, delayed=_NUMBER)
                },
            }
        },
        "/v1/{app}/{queue}/delayed": {
            "get": {
                "summary": "Messages of one partition that are not due yet, as they will be delivered.",
                "parameters": [
                    _query("partition", _PARTITION, "Default: 1."),
                    _query("limit", {"type": "integer", "maximum": READ_MAX}, "Default: 100."),
                ],
                "responses": {"200": _answer("Perhaps none.", messages=_messages("Delayed"))},
            }
        },
        "/v1/{app}/{queue}/delayed/{ids}": {
            "delete": {
                "summary": "Withdraw messages that are not due yet: `[PARTITION:]ID` with commas.",
                "responses": {"200": _answer("Those that were still there are gone.", withdrawn=_NUMBER)},
            }
        },
        **_leases(),
        "/v1/{app}/{queue}/{ids}": {
            "get": {
                "summary": "Messages by id: `[PARTITION:]ID` with commas.",
                "responses": {"200": _answer("Those that are there.", messages=_messages("Message"))},
            },
            "put": {
                "summary": "Write one body to every id; what is not there is made.",
                "parameters": [_header("X-TTL", _TTL, "")],
                "requestBody": {"content": _RAW},
                "responses": {"200": _answer("Written.")},
            },
            "delete": {"summary": "Delete messages.", "responses": {"200": _answer("Gone, known or not.")}},
        },
    }


def _leases() -> dict[str, dict[str, Json]]:
    lease = {**_ref("Lease"), "description": "Null: nothing was free before `wait` was over."}
    lost = {"409": {"description": "The lease is no more; nothing was written."}}
    wait = _query("wait", {"type": "number", "maximum": WAIT_MAX_S}, "Seconds to wait for some.")
    return {
        "/v1/{app}/{queue}/lease": {
            "post": {
                "summary": "Take a partition that nobody of the group has, and where something is to be done.",
                "parameters": [wait],
                "requestBody": {"content": {"application/json": {"schema": _ref("Wish")}}},
                "responses": {"200": _answer("It is yours until its time is over.", lease=lease)},
            }
        },
        "/v1/{app}/{queue}/lease/{lease}": {
            "get": {
                "summary": "The next messages of the partition; asked again, the same.",
                "parameters": [_query("limit", {"type": "integer", "maximum": READ_MAX}, "Default: 100."), wait],
                "responses": {"200": _answer("Perhaps none.", messages=_messages("Handed")), **lost},
            },
            "post": {
                "summary": "Say what became of messages, and keep the lease; with nothing in it, only that.",
                "requestBody": {"content": {"application/json": {"schema": _ref("Outcome")}}},
                "responses": {"200": _answer("Recorded.", lease=_ref("Lease")), **lost},
            },
            "delete": {"summary": "Give the partition back.", "responses": {"200": _answer("Free."), **lost}},
        },
    }


def _server() -> dict[str, dict[str, Json]]:
    return {
        "/__heartbeat__": {"get": {"summary": "Is it there?", "responses": {"200": {"description": "OK"}}}},
        "/metrics": {"get": {"summary": "For Prometheus.", "responses": {"200": {"description": "Figures."}}}},
    }


def description() -> Json:
    paths: Json = {}
    for path, operations in _operations().items():
        keys = [part[1:-1] for part in path.split("/") if part.startswith("{")]
        paths[path] = {method: _whole(operation, keys) for method, operation in operations.items()}
        if keys:
            named = [{"name": key, "in": "path", "required": True, "schema": _TEXT} for key in keys]
            paths[path]["parameters"] = named
    return {
        "openapi": "3.1.0",
        "info": {"title": "Headgate messages", "version": __version__},
        "security": [{"application": []}],
        "paths": paths,
        "components": {
            "schemas": SCHEMAS,
            "securitySchemes": {
                "application": {
                    "type": "apiKey",
                    "in": "header",
                    "name": "Authorization",
                    "description": "`Application KEY`",
                }
            },
        },
    }


def _whole(operation: Json, keys: list[str]) -> Json:
    """With the errors it may be answered with."""
    texts = {"400": "A field is wrong."} if keys else {}
    texts |= (
        {"401": "No such key.", "403": "Another key is needed.", "404": "No such application or queue."} if keys else {}
    )
    error = {"application/json": {"schema": _ref("Error")}}
    wrong = {status: {"description": text, "content": error} for status, text in texts.items()}
    return {**operation, "responses": {**operation["responses"], **wrong}}


def page() -> str:
    """For people, from the same declarations."""
    rows = []
    for path, operations in _operations().items():
        for method, operation in operations.items():
            names = ", ".join(f"<code>{escape(p['name'])}</code>" for p in operation.get("parameters", []))
            cells = (f"<b>{method.upper()}</b>", f"<code>{escape(path)}</code>", escape(operation["summary"]), names)
            rows.append("<tr>" + "".join(f"<td>{cell}</td>" for cell in cells) + "</tr>")
    return (
        "<!doctype html><meta charset=utf-8><title>Headgate messages</title>"
        "<style>body{font:15px system-ui;margin:2em auto;max-width:70em}td{padding:.3em .8em;vertical-align:top}"
        "tr:nth-child(even){background:#f4f4f4}</style><h1>Headgate messages</h1>"
        "<p>Described for programs in <a href=openapi.json>openapi.json</a>. A key goes into the header "
        "<code>Authorization: Application KEY</code>.</p><table>" + "".join(rows) + "</table>"
    )
