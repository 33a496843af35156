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


_SINCE = _query("since", schemas.TEXT, "First message: an id, or seconds since 1970. It is included.")
_AFTER = _query("after", schemas.TEXT, "Like `since`, but excludes the message itself.")
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
        "Maximum number of messages of each partition; fewer if they are large.",
    ),
    _query("order", {"enum": ["ascending", "descending"]}, "By id."),
    _query(
        "partitions",
        {"type": "string", "default": "1"},
        "Comma-separated numbers; the response has one partition after the other, and ends after the one with which it"
        " has more than 4 million characters.",
    ),
]


def _operations() -> dict[str, dict[str, schemas.Json]]:
    """Return the operations by path and method, without the parts that all of them share."""
    return {**_application(), **_queue(), **_parts_of_queue(), **_server()}


def _application() -> dict[str, dict[str, schemas.Json]]:
    return {
        "/v1/{app}": {
            "get": {
                "summary": "List queues or, as text/event-stream, report posts and changes of queues.",
                "parameters": [
                    _query("limit", schemas.NUMBER, "Maximum number of queues."),
                    _query("offset", schemas.TEXT, "First name."),
                    _query("details", schemas.YES, "Include partitions, type, consistency, principles, created."),
                    _query("include_count", schemas.YES, "Include the number of messages."),
                    _query(
                        "include_size",
                        schemas.YES,
                        "Include the number and bytes of stored messages, including delayed and expired ones.",
                    ),
                    {**_query("kept", schemas.YES, "The same as `include_size`."), "deprecated": True},
                ],
                "responses": {"200": _answer("The queues, sorted by name.", queues=_messages("Listed"))},
            },
            "post": {
                "summary": "Create or change a queue.",
                "requestBody": _FORM,
                "responses": {
                    "201": _answer(
                        "The current settings.", schemas.CHANGED_OPTIONAL, **schemas.CHANGED, application=schemas.TEXT
                    )
                },
            },
        },
    }


def _queue() -> dict[str, dict[str, schemas.Json]]:
    return {
        "/v1/{app}/{queue}": {
            "get": {
                "summary": "Return messages in order.",
                "parameters": [
                    *_PAGE,
                    _query("wait", {"type": "number", "maximum": WAIT_MAX_S}, "Seconds to wait for a new message."),
                ],
                "responses": {"200": _answer("The messages; the list may be empty.", messages=_messages("Message"))},
            },
            "post": {
                "summary": "Post the body as one message, or a batch as JSON.",
                "parameters": [
                    _header("X-TTL", schemas.TTL, "TTL of a single message."),
                    _header("X-Partition", schemas.PARTITION, "Partition of a single message."),
                    _header("X-Key", schemas.TEXT, "Key of a single message; see `key` of a draft."),
                    _header("X-Priority", schemas.PRIORITY, "Priority of a single message."),
                    _header("X-Delay", schemas.DELAY, "Delay of a single message."),
                    _header("X-Deliver-At", schemas.DELIVER_AT, "Delivery time of a single message."),
                    _header(
                        "X-Hold",
                        schemas.TEXT,
                        "Whether a single message holds up others: yes or no; see `hold` of a draft.",
                    ),
                    _header(
                        "Idempotency-Key", schemas.TEXT, "A repeated post with the same key gets the first response."
                    ),
                ],
                "requestBody": {"content": {**_RAW, "application/json": {"schema": _BATCH}}},
                "responses": {"201": _answer("One entry for each message, in order.", messages=_messages("Posted"))},
            },
            "put": {
                "summary": "Change a queue. Omitted settings stay; the number of partitions only grows.",
                "requestBody": _FORM,
                "responses": {
                    "200": _answer(
                        "The current settings.",
                        schemas.CHANGED_OPTIONAL,
                        **schemas.CHANGED,
                        created={"type": "number"},
                    )
                },
            },
            "delete": {"summary": "Remove a queue with its messages.", "responses": {"200": _answer("Removed.")}},
        },
    }


def _parts_of_queue() -> dict[str, dict[str, schemas.Json]]:
    return {
        "/v1/{app}/{queue}/stream": {
            "get": {"summary": "Stream messages.", "parameters": _PAGE, "responses": {"200": _STREAM}}
        },
        "/v1/{app}/{queue}/lag": {
            "get": {
                "summary": "Count the messages behind a position in one partition.",
                "parameters": [_AFTER, _query("partition", schemas.PARTITION, "Default: 1.")],
                "responses": {
                    "200": _answer(
                        "The counts.",
                        waiting=schemas.NUMBER,
                        newest={"type": "string", "description": "Empty if there is none."},
                        oldest_waiting=schemas.TIME,
                        delayed=schemas.NUMBER,
                    )
                },
            }
        },
        "/v1/{app}/{queue}/delayed": {
            "get": {
                "summary": "List the delayed messages of one partition in order of delivery.",
                "parameters": [
                    _query("partition", schemas.PARTITION, "Default: 1."),
                    _query("limit", {"type": "integer", "maximum": READ_MAX}, "Default: 100."),
                ],
                "responses": {"200": _answer("The messages; the list may be empty.", messages=_messages("Delayed"))},
            }
        },
        "/v1/{app}/{queue}/delayed/{ids}": {
            "delete": {
                "summary": "Withdraw delayed messages: comma-separated `[PARTITION:]ID`.",
                "responses": {"200": _answer("The messages that existed are withdrawn.", withdrawn=schemas.NUMBER)},
            }
        },
        **_leases(),
        **_schedules(),
        "/v1/{app}/{queue}/status": {"get": _partition_status()},
        "/v1/{app}/{queue}/standing": {"get": {**_partition_status(), "deprecated": True}},
        "/v1/{app}/{queue}/{ids}": {
            "get": {
                "summary": "Return messages by id: comma-separated `[PARTITION:]ID`.",
                "responses": {"200": _answer("The messages that exist.", messages=_messages("Message"))},
            },
            "put": {
                "summary": "Write one body to every id; create messages that do not exist.",
                "parameters": [_header("X-TTL", schemas.TTL, "")],
                "requestBody": {"content": _RAW},
                "responses": {"200": _answer("Written.")},
            },
            "delete": {
                "summary": "Delete messages.",
                "responses": {"200": _answer("Deleted; unknown ids are ignored.")},
            },
        },
    }


def _partition_status() -> schemas.Json:
    return {
        "summary": "Show the contents of each partition, and the progress of each group of workers over HTTP.",
        "parameters": [_query("group", schemas.TEXT, "Show only this group.")],
        "responses": {"200": _answer("The partitions.", partitions=_messages("PartitionStatus"))},
    }


def _schedules() -> dict[str, dict[str, schemas.Json]]:
    return {
        "/v1/{app}/{queue}/schedules": {
            "get": {
                "summary": "List the schedules of a queue.",
                "responses": {"200": _answer("The schedules, sorted by name.", schedules=_messages("Schedule"))},
            }
        },
        "/v1/{app}/{queue}/schedules/{name}": {
            "put": {
                "summary": "Create or change a schedule. If its times do not change, its next time stays.",
                "requestBody": {"content": {"application/json": {"schema": _ref("Schedule")}}},
                "responses": {"200": _answer("The schedule, with its next time.")},
            },
            "delete": {
                "summary": "Remove a schedule.",
                "responses": {"200": _answer("Removed.", removed=schemas.NUMBER)},
            },
        },
    }


def _leases() -> dict[str, dict[str, schemas.Json]]:
    lease = {
        "anyOf": [_ref("Lease"), {"type": "null"}],
        "description": "Null if no partition became available within `wait`.",
    }
    lost = {"409": {"description": "The lease has ended; nothing was written."}}
    wait = _query("wait", {"type": "number", "maximum": WAIT_MAX_S}, "Seconds to wait if there is nothing yet.")
    return {
        "/v1/{app}/{queue}/lease": {
            "post": {
                "summary": "Lease a partition that has work and that no worker of the group holds.",
                "parameters": [wait],
                "requestBody": {"content": {"application/json": {"schema": _ref("LeaseRequest")}}},
                "responses": {"200": _answer("The lease; it is valid until it expires.", lease=lease)},
            }
        },
        "/v1/{app}/{queue}/lease/{lease}": {
            "get": {
                "summary": "Return the next messages of the partition; a repeated request returns the same.",
                "parameters": [_query("limit", {"type": "integer", "maximum": READ_MAX}, "Default: 100."), wait],
                "responses": {
                    "200": _answer("The messages; the list may be empty.", messages=_messages("Handed")),
                    **lost,
                },
            },
            "post": {
                "summary": "Report the outcome of messages, and extend the lease; an empty outcome only extends it.",
                "parameters": [
                    _header(
                        "Idempotency-Key", schemas.TEXT, "An outcome that is repeated with the same key counts once."
                    )
                ],
                "requestBody": {"content": {"application/json": {"schema": _ref("Outcome")}}},
                "responses": {"200": _answer("Recorded.", lease=_ref("Lease")), **lost},
            },
            "delete": {"summary": "Give the partition back.", "responses": {"200": _answer("Returned."), **lost}},
        },
    }


def _server() -> dict[str, dict[str, schemas.Json]]:
    return {
        "/v1": {
            "get": {
                "summary": "List the applications of the key or token.",
                "responses": {
                    "200": _answer(
                        "The applications, sorted by name.", applications={"type": "array", "items": schemas.TEXT}
                    )
                },
            }
        },
        "/__heartbeat__": {
            "get": {"summary": "Check that the server runs.", "responses": {"200": {"description": "OK"}}}
        },
        "/metrics": {
            "get": {"summary": "Return metrics for Prometheus.", "responses": {"200": {"description": "The metrics."}}}
        },
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
    texts = {"401": "The key is unknown.", "503": "Too many writes wait: try again after Retry-After."}
    if keys:
        texts |= {"400": "A field is invalid.", "429": "No room, or too many posts: try again after Retry-After."}
        texts |= {"403": "This needs another key.", "404": "The application or queue does not exist."}
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
        "<p>Programs read <a href=openapi.json>openapi.json</a>. Send the key in the header "
        "<code>Authorization: Application KEY</code>.</p><table>" + "".join(rows) + "</table>"
    )
