"""Describe the API: as OpenAPI 3.1, and as a page for people."""

from __future__ import annotations

from html import escape

from headgate import __version__
from headgate.queue.messages.records import BATCH_MAX, READ_MAX
from headgate.queue.server import schemas  # fmt: skip
from headgate.queue.server.forms import LIMIT_DEFAULT, WAIT_MAX_S


def _ref(name: str) -> schemas.Json:
    return {"$ref": f"#/components/schemas/{name}"}


def _query(name: str, schema: schemas.Json, text: str) -> schemas.Json:
    return {"name": name, "in": "query", "schema": schema, "description": text}


def _header(name: str, schema: schemas.Json, text: str) -> schemas.Json:
    return {"name": name, "in": "header", "schema": schema, "description": text}


def _answer(text: str, optional: tuple[str, ...] = (), **properties: schemas.Json) -> schemas.Json:
    members = {"status": {"const": "ok"}, **properties}
    required = [name for name in members if name not in optional]
    schema = {"type": "object", "properties": members, "required": required, "additionalProperties": False}
    return {"description": text, "content": {"application/json": {"schema": schema}}}


def _messages(name: str) -> schemas.Json:
    return {"type": "array", "items": _ref(name)}


_SINCE = _query("since", schemas.TEXT, "From this message id, or these seconds since 1970, on; itself included.")
_AFTER = _query("after", schemas.TEXT, "As `since`, without the message itself.")
_STREAM = {"description": "Server-sent events.", "content": {"text/event-stream": {"schema": schemas.TEXT}}}
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


def _operations() -> dict[str, dict[str, schemas.Json]]:
    """Return the operations by path and method, without what all of them have."""
    return {**_application(), **_queue(), **_parts_of_queue(), **_server()}


def _application() -> dict[str, dict[str, schemas.Json]]:
    return {
        "/v1/{app}": {
            "get": {
                "summary": "Queues; or, asked for text/event-stream, where something is posted and when queues change.",
                "parameters": [
                    _query("limit", schemas.NUMBER, "At most so many."),
                    _query("offset", schemas.TEXT, "From this name on."),
                    _query("details", schemas.YES, "With partitions, type, consistency, principles, created."),
                    _query("include_count", schemas.YES, "With the number of messages."),
                    _query(
                        "include_size",
                        schemas.YES,
                        "With messages and bytes that are stored, not due yet or expired ones included.",
                    ),
                    {**_query("kept", schemas.YES, "The same as `include_size`."), "deprecated": True},
                ],
                "responses": {"200": _answer("Queues by name.", queues=_messages("Listed"))},
            },
            "post": {
                "summary": "Make a queue, or change one.",
                "requestBody": _FORM,
                "responses": {
                    "201": _answer(
                        "The queue as it is now.", schemas.CHANGED_OPTIONAL, **schemas.CHANGED, application=schemas.TEXT
                    )
                },
            },
        },
    }


def _queue() -> dict[str, dict[str, schemas.Json]]:
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
                    _header("X-TTL", schemas.TTL, "Of a single message."),
                    _header("X-Partition", schemas.PARTITION, "Of a single message."),
                    _header("X-Key", schemas.TEXT, "Of a single message; see `key` of a draft."),
                    _header("X-Priority", schemas.PRIORITY, "Of a single message."),
                    _header("X-Delay", schemas.DELAY, "Of a single message."),
                    _header("X-Deliver-At", schemas.DELIVER_AT, "Of a single message."),
                    _header("X-Hold", schemas.TEXT, "Of a single message: yes or no; see `hold` of a draft."),
                    _header(
                        "Idempotency-Key", schemas.TEXT, "The same post with the same key is answered as the first was."
                    ),
                ],
                "requestBody": {"content": {**_RAW, "application/json": {"schema": _BATCH}}},
                "responses": {"201": _answer("One entry a message, in order.", messages=_messages("Posted"))},
            },
            "put": {
                "summary": "Change a queue; what is not said stays, partitions only grow.",
                "requestBody": _FORM,
                "responses": {
                    "200": _answer(
                        "The queue as it is now.",
                        schemas.CHANGED_OPTIONAL,
                        **schemas.CHANGED,
                        created={"type": "number"},
                    )
                },
            },
            "delete": {"summary": "Remove a queue with its messages.", "responses": {"200": _answer("Gone.")}},
        },
    }


def _parts_of_queue() -> dict[str, dict[str, schemas.Json]]:
    return {
        "/v1/{app}/{queue}/stream": {
            "get": {"summary": "Messages as they come.", "parameters": _PAGE, "responses": {"200": _STREAM}}
        },
        "/v1/{app}/{queue}/lag": {
            "get": {
                "summary": "How much waits behind a position of one partition.",
                "parameters": [_AFTER, _query("partition", schemas.PARTITION, "Default: 1.")],
                "responses": {
                    "200": _answer(
                        "Counted.",
                        waiting=schemas.NUMBER,
                        newest={"type": "string", "description": "Empty: there is none."},
                        oldest_waiting=schemas.TIME,
                        delayed=schemas.NUMBER,
                    )
                },
            }
        },
        "/v1/{app}/{queue}/delayed": {
            "get": {
                "summary": "Messages of one partition that are not due yet, as they will be delivered.",
                "parameters": [
                    _query("partition", schemas.PARTITION, "Default: 1."),
                    _query("limit", {"type": "integer", "maximum": READ_MAX}, "Default: 100."),
                ],
                "responses": {"200": _answer("Perhaps none.", messages=_messages("Delayed"))},
            }
        },
        "/v1/{app}/{queue}/delayed/{ids}": {
            "delete": {
                "summary": "Withdraw messages that are not due yet: `[PARTITION:]ID` with commas.",
                "responses": {"200": _answer("Those that were still there are gone.", withdrawn=schemas.NUMBER)},
            }
        },
        **_leases(),
        **_schedules(),
        "/v1/{app}/{queue}/status": {"get": _partition_status()},
        "/v1/{app}/{queue}/standing": {"get": {**_partition_status(), "deprecated": True}},
        "/v1/{app}/{queue}/{ids}": {
            "get": {
                "summary": "Messages by id: `[PARTITION:]ID` with commas.",
                "responses": {"200": _answer("Those that are there.", messages=_messages("Message"))},
            },
            "put": {
                "summary": "Write one body to every id; what is not there is made.",
                "parameters": [_header("X-TTL", schemas.TTL, "")],
                "requestBody": {"content": _RAW},
                "responses": {"200": _answer("Written.")},
            },
            "delete": {"summary": "Delete messages.", "responses": {"200": _answer("Gone, known or not.")}},
        },
    }


def _partition_status() -> schemas.Json:
    return {
        "summary": "What each partition keeps, and how far each group of workers over HTTP is.",
        "parameters": [_query("group", schemas.TEXT, "This one alone.")],
        "responses": {"200": _answer("By partition.", partitions=_messages("PartitionStatus"))},
    }


def _schedules() -> dict[str, dict[str, schemas.Json]]:
    return {
        "/v1/{app}/{queue}/schedules": {
            "get": {
                "summary": "Messages that the server posts again and again.",
                "responses": {"200": _answer("By name.", schedules=_messages("Schedule"))},
            }
        },
        "/v1/{app}/{queue}/schedules/{name}": {
            "put": {
                "summary": "Make a schedule, or change one; when it keeps its times, it keeps the next.",
                "requestBody": {"content": {"application/json": {"schema": _ref("Schedule")}}},
                "responses": {"200": _answer("As it is now, with the next time.")},
            },
            "delete": {"summary": "Remove a schedule.", "responses": {"200": _answer("Gone.", removed=schemas.NUMBER)}},
        },
    }


def _leases() -> dict[str, dict[str, schemas.Json]]:
    lease = {"anyOf": [_ref("Lease"), {"type": "null"}], "description": "Null: nothing became free within `wait`."}
    lost = {"409": {"description": "The lease is no more; nothing was written."}}
    wait = _query("wait", {"type": "number", "maximum": WAIT_MAX_S}, "Seconds to wait for some.")
    return {
        "/v1/{app}/{queue}/lease": {
            "post": {
                "summary": "Take a partition that nobody of the group has, and where something is to be done.",
                "parameters": [wait],
                "requestBody": {"content": {"application/json": {"schema": _ref("LeaseRequest")}}},
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
                "parameters": [
                    _header("Idempotency-Key", schemas.TEXT, "Repeated with it, the last outcome counts once.")
                ],
                "requestBody": {"content": {"application/json": {"schema": _ref("Outcome")}}},
                "responses": {"200": _answer("Recorded.", lease=_ref("Lease")), **lost},
            },
            "delete": {"summary": "Give the partition back.", "responses": {"200": _answer("Free."), **lost}},
        },
    }


def _server() -> dict[str, dict[str, schemas.Json]]:
    return {
        "/v1": {
            "get": {
                "summary": "The applications that the key or token is of.",
                "responses": {"200": _answer("By name.", applications={"type": "array", "items": schemas.TEXT})},
            }
        },
        "/__heartbeat__": {"get": {"summary": "Is it there?", "responses": {"200": {"description": "OK"}}}},
        "/metrics": {"get": {"summary": "For Prometheus.", "responses": {"200": {"description": "Figures."}}}},
    }


def description() -> schemas.Json:
    paths: schemas.Json = {}
    for path, operations in _operations().items():
        keys = [part[1:-1] for part in path.split("/") if part.startswith("{")]
        paths[path] = {method: _with_errors(operation, keys) for method, operation in operations.items()}
        if keys:
            named = [{"name": key, "in": "path", "required": True, "schema": schemas.TEXT} for key in keys]
            paths[path]["parameters"] = named
    return {
        "openapi": "3.1.0",
        "info": {"title": "Headgate messages", "version": __version__},
        "security": [{"application": []}],
        "paths": paths,
        "components": {
            "schemas": schemas.SCHEMAS,
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


def _with_errors(operation: schemas.Json, keys: list[str]) -> schemas.Json:
    """Return the operation completed with the errors that may answer it."""
    texts = {"401": "No such key.", "503": "Too much waits to be written: again after Retry-After."}
    if keys:
        texts |= {"400": "A field is wrong.", "429": "Full, or too fast: again after Retry-After."}
        texts |= {"403": "Another key is needed.", "404": "No such application or queue."}
    error, malformed = _ref("Error"), {"anyOf": [_ref("Error"), _ref("Malformed")]}
    wrong = {
        status: {
            "description": text,
            "content": {"application/json": {"schema": malformed if status == "400" else error}},
        }
        for status, text in texts.items()
    }
    return {**operation, "responses": {**operation["responses"], **wrong}}


def page() -> str:
    """Return the page for people (HTML), made from the same declarations."""
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
