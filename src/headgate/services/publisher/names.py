"""Make published events, and determine the queue and the partition to which they go."""

from __future__ import annotations

import hashlib
import re

from headgate.base.ids import derived
from headgate.gate.change import Change
from headgate.map.outbox import PublishedEvent
from headgate.queueing.partitions import QUEUE_NAME

VERSION = 1


def published_event(
    kind: str, subject: str, tenant: str, pipeline: str, change: Change, item: str, at_ms: int
) -> PublishedEvent:
    """Make a published event. `subject` distinguishes it from others of its kind."""
    return PublishedEvent(
        v=VERSION,
        kind=kind,
        id=derived(kind, tenant, pipeline, item, subject),
        at_ms=at_ms,
        tenant=tenant,
        pipeline=pipeline,
        project=change.project,
        branch=change.branch,
        change=change.id,
        commit=change.commit,
        item=item,
        url=change.url,
    )


def queue_of(tenant: str) -> str:
    """Return the queue of a tenant's events, which has the tenant's name if a queue can have it."""
    name = f"gate-{tenant}"
    if QUEUE_NAME.fullmatch(name):
        return name
    # Two tenants whose names differ only in characters that queues do not have still get different queues.
    short = re.sub(r"[^A-Za-z0-9._-]", "-", name)[:40]
    return f"{short}-{hashlib.sha256(tenant.encode()).hexdigest()[:8]}"


def partition_of(project: str, partitions: int) -> int:
    """Return the partition of a project; all its events go there, so their order is kept."""
    # Python's own hash differs from process to process.
    return int.from_bytes(hashlib.sha256(project.encode()).digest()[:8]) % partitions + 1
