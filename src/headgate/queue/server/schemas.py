"""Define the shapes in the API's description, as JSON Schema."""

from __future__ import annotations

from typing import Any

from headgate.queue.messages.records import BODY_MAX_BYTES, DELAY_MAX_S, TTL_DEFAULT_S
from headgate.queueing.partitions import PARTITIONS_MAX, PRIORITIES_MAX, TTL_MAX_S

Json = dict[str, Any]  # a JSON document

TEXT, NUMBER, YES = {"type": "string"}, {"type": "integer"}, {"type": "boolean"}
ID = {"type": "string", "pattern": "^[0-9a-f]{32}$", "description": "A version-1 UUID; its time is the order."}
TIME = {"type": "string", "description": "Seconds since 1970, to 100 ns."}
PARTITION = {"type": "integer", "minimum": 1, "maximum": PARTITIONS_MAX}
DELAY = {"type": "number", "minimum": 0, "maximum": DELAY_MAX_S, "description": "Seconds until it is delivered."}
DELIVER_AT = {
    "type": ["number", "string"],
    "description": "In place of `delay`: seconds since 1970, or a time as 2026-01-31T12:00:00Z.",
}
PRIORITY = {
    "type": ["string", "integer"],
    "description": "high, normal, low, or a number from 1, the highest, to the `priorities` of the queue. Default: "
    "normal, the one in the middle.",
}
HOLD = {"type": "boolean", "default": False, "description": "Those posted after it to its partition wait for it."}
TTL = {"type": "integer", "minimum": 1, "maximum": TTL_MAX_S, "default": TTL_DEFAULT_S, "description": "Seconds."}
SCHEMAS: Json = {
    "Posted": {
        "type": "object",
        "properties": {
            "key": ID,
            "timestamp": TIME,
            "partition": PARTITION,
            "deliver_at": {
                **TIME,
                "description": "Of one that is not due yet; it has this key until then.",
            },
        },
    },
    "Schedule": {
        "type": "object",
        "required": ["cron", "body"],
        "properties": {
            "cron": {"type": "string", "description": "`minute hour day month weekday`, all of which must fit."},
            "body": {"type": "string", "description": "In it, {time} stands for the time the message is for."},
            "zone": {"type": "string", "default": "UTC", "description": "Of the fields, such as Europe/Berlin."},
            "missed": {
                "enum": ["once", "all", "skip"],
                "default": "once",
                "description": "Of times that passed while no server ran: one message in all, one each (of the "
                "last 7 days), or none.",
            },
            "partition": PARTITION,
            "key": TEXT,
            "ttl": TTL,
            "priority": PRIORITY,
        },
    },
    "PartitionStatus": {
        "type": "object",
        "properties": {
            "partition": PARTITION,
            "messages": {"type": "integer", "description": "Processed or not, with those that are not due yet."},
            "bytes": NUMBER,
            "delayed": {"type": "integer", "description": "Not due yet, counted to 1000."},
            "priority": {"type": "integer", "description": "Of its messages, where the queue has priorities."},
            "groups": {
                "type": "array",
                "items": {
                    "type": "object",
                    "properties": {
                        "group": TEXT,
                        "worker": TEXT,
                        "held": YES,
                        "processed": TEXT,
                        "waiting": {"type": "integer", "description": "Behind what is processed, counted to 1000."},
                        "retrying": NUMBER,
                    },
                },
            },
        },
    },
    "Delayed": {
        "type": "object",
        "properties": {
            "message_id": {**ID, "description": "Until it is delivered; by it, it can be deleted."},
            "timestamp": TIME,
            "deliver_at": {**TIME, "description": "Seconds since 1970."},
            "body": TEXT,
            "partition": PARTITION,
            "hold": HOLD,
        },
    },
    "Message": {
        "type": "object",
        "properties": {"message_id": ID, "timestamp": TIME, "body": TEXT, "partition": PARTITION},
    },
    "Draft": {
        "type": "object",
        "required": ["body"],
        "properties": {
            "body": {"type": "string", "minLength": 1, "description": f"At most {BODY_MAX_BYTES} bytes of UTF-8."},
            "ttl": TTL,
            "partition": {**PARTITION, "description": "Without it, by the key, or any."},
            "key": {
                "type": "string",
                "description": "In place of a partition: messages of one key are in one, and keep their order. It is "
                "the first 8 bytes of the SHA-256 of the key, as a number, modulo the number of partitions (with "
                "priorities: of strands), plus 1.",
            },
            "delay": DELAY,
            "deliver_at": DELIVER_AT,
            "hold": HOLD,
            "priority": PRIORITY,
        },
    },
    "LeaseRequest": {
        "type": "object",
        "properties": {
            "worker": {"type": "string", "description": "Who asks, for people."},
            "group": {"type": "string", "default": "workers", "description": "Each has its own progress."},
            "partition": {**PARTITION, "description": "Without it, any."},
            "ttl": {"type": "number", "minimum": 1, "maximum": 3600, "default": 30, "description": "Seconds."},
        },
    },
    "Lease": {
        "type": "object",
        "properties": {
            "lease": {"type": "string", "description": "Its name, in the paths of what is done under it."},
            "partition": PARTITION,
            "epoch": {"type": "integer", "description": "One more with every holder."},
            "expires_in": {"type": "number", "description": "Seconds."},
            "processed": {"type": "string", "description": "The newest message that is done; empty: none is."},
            "priorities": {
                "type": "integer",
                "description": "Of the queue, where it has some: so many partitions from this one on are held "
                "together, and messages come one at a time.",
            },
        },
    },
    "Handed": {
        "type": "object",
        "properties": {
            "message_id": ID,
            "timestamp": TIME,
            "body": TEXT,
            "partition": PARTITION,
            "attempt": {"type": "integer", "description": "1 when it has certainly not been begun before."},
        },
    },
    "Outcome": {
        "type": "object",
        "properties": {
            "done": {"type": "array", "items": ID},
            "failed": {
                "type": "array",
                "items": {
                    "type": "object",
                    "required": ["message_id"],
                    "properties": {
                        "message_id": ID,
                        "error": TEXT,
                        "retry_after": {"type": "number", "description": "Seconds; else 1, 2, 4 … up to 300."},
                        "reject": {**YES, "description": "Do not try it again: it is a dead letter."},
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
            "partitions": {**PARTITION, "default": 1},
            "priorities": {
                "type": "integer",
                "minimum": 1,
                "maximum": PRIORITIES_MAX,
                "default": 1,
                "description": "Of a new queue. `partitions` is a multiple of it: the first so many are of priority "
                "1, 2 and so on, and are processed together; so are the next.",
            },
            "type": {"enum": ["user", "public"], "default": "user"},
            "consistency": {"enum": ["weak", "strong", "very_strong"], "default": "strong"},
            "messages_max": {"type": "integer", "default": 0, "description": "Of each partition; 0: any number."},
            "bytes_max": {"type": "integer", "default": 0, "description": "Of each partition; 0: any."},
            "age_max": {
                "type": "integer",
                "default": 0,
                "description": "Seconds that a message is kept at most, whatever its own ttl; 0: any.",
            },
            "full": {
                "enum": ["refuse", "drop"],
                "default": "refuse",
                "description": "What becomes of more: it is answered 429, or the oldest messages go.",
            },
            "principles": {"type": ["string", "null"], "description": "Who else may read: app:NAME, bid:USER@HOST."},
        },
    },
    "Malformed": {
        "type": "object",
        "description": "The answer to an address with control characters.",
        "required": ["error", "description"],
        "properties": {"error": TEXT, "description": TEXT},
    },
    "Error": {
        "required": ["status", "error_msg"],
        "type": "object",
        "properties": {
            "status": {"const": "error"},
            "error_msg": {"type": "object", "additionalProperties": TEXT, "description": "What is wrong, by field."},
        },
    },
}


_OPTIONAL = {
    "Posted": ("deliver_at",),
    "Delayed": ("hold",),
    "Lease": ("priorities",),
    "PartitionStatus": ("priority",),
    "Message": (),
    "Handed": (),
}
"""Schema of an answer -> the fields that are left out when they are empty."""
for _name, _fields in _OPTIONAL.items():
    _schema = SCHEMAS[_name]
    _schema["required"] = [one for one in _schema["properties"] if one not in _fields]
    _schema["additionalProperties"] = False
_QUEUE = SCHEMAS["Queue"]["properties"]
CHANGED: Json = {
    **{name: {key: value for key, value in schema.items() if key != "default"} for name, schema in _QUEUE.items()},
    "principles": {**_QUEUE["principles"], "description": "Null: nobody else."},
}
"""Fields of a queue in an answer."""
CHANGED_OPTIONAL = ("priorities", "messages_max", "bytes_max", "age_max", "full")
"""Fields left out for a queue without such a limit, or with a single priority."""
SCHEMAS["Listed"] = {
    "type": "object",
    "required": ["queue_name"],
    "properties": {
        **CHANGED,
        "created": {"type": "number", "description": "Seconds since 1970."},
        "application": TEXT,
        "count": {"type": "integer", "description": "Asked with `include_count`."},
        "messages": {"type": "integer", "description": "Asked with `include_size`."},
        "bytes": {"type": "integer", "description": "Asked with `include_size`."},
    },
    "additionalProperties": False,
}
