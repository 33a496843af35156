"""Define the shapes in the API's description, as JSON Schema."""

from __future__ import annotations

from typing import Any

from headgate.queue.messages.records import BODY_MAX_BYTES, DELAY_MAX_S, TTL_DEFAULT_S
from headgate.queueing.partitions import PARTITIONS_MAX, PRIORITIES_MAX, TTL_MAX_S

Json = dict[str, Any]  # a JSON document

TEXT, NUMBER, YES = {"type": "string"}, {"type": "integer"}, {"type": "boolean"}
ID = {
    "type": "string",
    "pattern": "^[0-9a-f]{32}$",
    "description": "A version-1 UUID; messages are ordered by its time.",
}
TIME = {"type": "string", "description": "Seconds since 1970, to 100 ns."}
PARTITION = {"type": "integer", "minimum": 1, "maximum": PARTITIONS_MAX}
DELAY = {"type": "number", "minimum": 0, "maximum": DELAY_MAX_S, "description": "Seconds until the delivery."}
DELIVER_AT = {
    "type": ["number", "string"],
    "description": "Instead of `delay`: seconds since 1970, or a time such as 2026-01-31T12:00:00Z.",
}
PRIORITY = {
    "type": ["string", "integer"],
    "description": "high, normal, low, or a number from 1, the highest, to the `priorities` of the queue. Default: "
    "normal, the one in the middle.",
}
HOLD = {
    "type": "boolean",
    "default": False,
    "description": "Messages posted later to the same partition wait for this one.",
}
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
                "description": "Time of delivery of a delayed message, which has this key until then.",
            },
        },
    },
    "Schedule": {
        "type": "object",
        "required": ["cron", "body"],
        "properties": {
            "cron": {"type": "string", "description": "`minute hour day month weekday`, all of which must match."},
            "body": {
                "type": "string",
                "description": "Body of the messages; {time} is replaced by the scheduled time.",
            },
            "zone": {"type": "string", "default": "UTC", "description": "Time zone of `cron`, such as Europe/Berlin."},
            "missed": {
                "enum": ["once", "all", "skip"],
                "default": "once",
                "description": "What to post for times that passed while no server ran: one message in all, one "
                "each (of the last 7 days), or none.",
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
            "messages": {
                "type": "integer",
                "description": "Number of stored messages, processed or not, including delayed ones.",
            },
            "bytes": NUMBER,
            "delayed": {"type": "integer", "description": "Number of delayed messages, counted to 1000."},
            "priority": {"type": "integer", "description": "Priority of the messages, if the queue has priorities."},
            "groups": {
                "type": "array",
                "items": {
                    "type": "object",
                    "properties": {
                        "group": TEXT,
                        "worker": TEXT,
                        "held": YES,
                        "processed": TEXT,
                        "waiting": {
                            "type": "integer",
                            "description": "Number of unprocessed messages, counted to 1000.",
                        },
                        "retrying": NUMBER,
                    },
                },
            },
        },
    },
    "Delayed": {
        "type": "object",
        "properties": {
            "message_id": {**ID, "description": "Valid until the delivery; use it to withdraw the message."},
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
            "partition": {
                **PARTITION,
                "description": "By default, the key determines the partition; without a key, any is used.",
            },
            "key": {
                "type": "string",
                "description": "Instead of a partition: messages with the same key are in one partition and keep "
                "their order. Its number is the first 8 bytes of the SHA-256 of the key, as a "
                "number, modulo the number "
                "of partitions (with priorities: of strands), plus 1.",
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
            "worker": {"type": "string", "description": "Display name of the worker."},
            "group": {
                "type": "string",
                "default": "workers",
                "description": "Group of workers; each has its own progress.",
            },
            "partition": {**PARTITION, "description": "By default, any."},
            "ttl": {"type": "number", "minimum": 1, "maximum": 3600, "default": 30, "description": "Seconds."},
        },
    },
    "Lease": {
        "type": "object",
        "properties": {
            "lease": {"type": "string", "description": "Name of the lease, for the paths of requests under it."},
            "partition": PARTITION,
            "epoch": {"type": "integer", "description": "Grows by one with every holder."},
            "expires_in": {"type": "number", "description": "Seconds."},
            "processed": {
                "type": "string",
                "description": "Id of the newest message that is done; empty if there is none.",
            },
            "priorities": {
                "type": "integer",
                "description": "Number of priorities of the queue, if it has some. The lease covers as many "
                "partitions, from this one on, and messages come one at a time.",
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
            "attempt": {"type": "integer", "description": "1 if the message has certainly not been started before."},
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
                        "retry_after": {
                            "type": "number",
                            "description": "Seconds to the next attempt; by default 1, 2, 4 … up to 300.",
                        },
                        "reject": {**YES, "description": "Do not retry: make it a dead letter."},
                    },
                },
            },
            "attempts": {"type": "integer", "default": 3, "description": "Number of failures that make a dead letter."},
            "ttl": {"type": "number", "default": 30, "description": "Remaining time of the lease, in seconds."},
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
                "description": "Number of priorities of a new queue. `partitions` is a multiple of it: consecutive "
                "partitions of priority 1, 2 and so on form a strand and are processed together.",
            },
            "type": {"enum": ["user", "public"], "default": "user"},
            "consistency": {"enum": ["weak", "strong", "very_strong"], "default": "strong"},
            "messages_max": {
                "type": "integer",
                "default": 0,
                "description": "Limit on the messages of each partition; 0: none.",
            },
            "bytes_max": {
                "type": "integer",
                "default": 0,
                "description": "Limit on the bytes of each partition; 0: none.",
            },
            "age_max": {
                "type": "integer",
                "default": 0,
                "description": "Longest time to keep a message, in seconds, whatever its own ttl; 0: no limit.",
            },
            "full": {
                "enum": ["refuse", "drop"],
                "default": "refuse",
                "description": (
                    "What happens beyond a limit: a post is answered 429, or the oldest messages are deleted."
                ),
            },
            "principles": {
                "type": ["string", "null"],
                "description": "Other principals that may read: app:NAME, bid:USER@HOST.",
            },
        },
    },
    "Malformed": {
        "type": "object",
        "description": "The response to an address with control characters.",
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
"""Schema of a response -> the fields that are left out when they are empty."""
for _name, _fields in _OPTIONAL.items():
    _schema = SCHEMAS[_name]
    _schema["required"] = [one for one in _schema["properties"] if one not in _fields]
    _schema["additionalProperties"] = False
_QUEUE = SCHEMAS["Queue"]["properties"]
CHANGED: Json = {
    **{name: {key: value for key, value in schema.items() if key != "default"} for name, schema in _QUEUE.items()},
    "principles": {**_QUEUE["principles"], "description": "Other principals that may read; null: none."},
}
"""Fields of a queue in a response."""
CHANGED_OPTIONAL = ("priorities", "messages_max", "bytes_max", "age_max", "full")
"""Fields left out for a queue without such a limit, or with a single priority."""
SCHEMAS["Listed"] = {
    "type": "object",
    "required": ["queue_name"],
    "properties": {
        **CHANGED,
        "created": {"type": "number", "description": "Seconds since 1970."},
        "application": TEXT,
        "count": {"type": "integer", "description": "Present with `include_count`."},
        "messages": {"type": "integer", "description": "Present with `include_size`."},
        "bytes": {"type": "integer", "description": "Present with `include_size`."},
    },
    "additionalProperties": False,
}
