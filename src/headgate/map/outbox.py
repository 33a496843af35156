"""Define the notices of what happens in a gate, and the reports of pipelines, in the form in which others receive
them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
from msgspec.structs import replace

from headgate.gate.change import Change
from headgate.gate.returns.shape import FileComment
from headgate.gate.work import LandRequest

LONG_MAX_BYTES, SHORT_MAX_BYTES = 100_000, 4_000
"""Size limits of a waiting report as JSON: while few wait, and while many do."""


class Notice(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """Publish one event of a gate as a JSON object. Members may be added; `v` grows when a member changes its
    meaning or is removed."""

    v: int
    """1"""
    kind: str
    """change-enqueued | item-reset | build-started | build-finished | change-landed | change-rejected | change-passed
    | change-dequeued | configuration-held, of what was pushed to a branch and is not in force; report, with the
    members of QueueReport"""
    id: str
    """The same for the same thing, however often it is told."""
    at_ms: int
    """When, in milliseconds since 1970."""
    tenant: str
    pipeline: str
    project: str
    branch: str
    change: str
    """The patchset, as people name it."""
    commit: str
    item: str
    """The item in its queue, from change-enqueued to its end."""
    url: str = ""
    """Where the change can be looked at."""
    buildset: str = ""
    """The buildset; for item-reset, the new one."""
    build: str = ""
    """The build, for build-… events; with `job`."""
    job: str = ""
    attempt: int = 0
    result: str = ""
    """The result, for build-finished and the item's end, as in the history."""
    voting: bool = True
    """Whether the result counts, for build-finished."""
    log_url: str = ""
    """The address of the log, for build-finished."""
    message: str = ""
    """The reason, for the item's end."""


class Notices(msgspec.Struct, frozen=True):
    """Hold the events of one turn, in order."""

    notices: tuple[Notice, ...]


class BuildTold(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """Describe one build in a report."""

    job: str
    build: str
    attempt: int
    result: str = ""
    """Empty: it has not ended."""
    voting: bool = True
    start_ms: int = 0
    end_ms: int = 0
    log_url: str = ""
    error: str = ""


class ObjectNotice(msgspec.Struct, frozen=True, kw_only=True):
    """Publish one change of an inventory object as a JSON object, like a Notice. The content of the object is not
    included: readers need their own permission for it."""

    v: int
    kind: str
    """object-created | object-updated | object-deleted"""
    id: str
    at_ms: int
    user: str
    """The user who changed the object."""
    partition: str
    """Its uuid, as are those of the object."""
    type: str
    project: str
    uuid: str
    name: str


class Answered(msgspec.Struct, frozen=True):
    """Name what a report answers: the message, or the change of an object, that started the item."""

    connection: str
    source: str
    """The queue it was posted to; the type of the object."""
    lane: str
    """The partition; the uuid of the object."""
    id: str
    """The id of the message or of the change."""


class QueueReport(Notice, frozen=True, omit_defaults=True, kw_only=True):
    """Report a phase of an item to a queue: a JSON object with the members of a notice of kind `report`, and these."""

    report: str
    """success | failure | merge-conflict | config-error | start | enqueue | no-jobs | disabled | dequeue: where the
    pipeline names the connection.  At a forge also refused | settled | waits | alarm | landed: it does not come in;
    nothing keeps it out any more; it has passed and waits; people have to look after it; it has landed."""
    ref: str = ""
    """The updated ref, for an item that is not a change."""
    event: str = ""
    """What enqueued the item; an item that gives way to another of the same change leaves it that."""
    enqueued_ms: int = 0
    builds: tuple[BuildTold, ...] = ()
    """The builds in the order of the job graph, as they are now."""
    subject: str = ""
    """The first line of what the change says of itself."""
    root: str = ""
    """The address of the pages, if there is one: the buildset is at `<root>/t/<tenant>/buildset/<buildset>`."""
    comments: dict[str, tuple[FileComment, ...]] = {}
    """Path of a file -> what jobs say of it."""
    answers: Answered | None = None
    """What the report answers, for an item that a message or a change of an object started."""


class Pushed(msgspec.Struct, frozen=True):
    """Record that a change has landed by a push of the tested commit, which its forge is now to show."""

    commit: str
    """The resulting head of its branch."""
    contained: bool
    """The forge sees by itself that it is merged: the branch has the change's own commits."""


class OutboxMessage(msgspec.Struct, frozen=True, omit_defaults=True):
    """Hold a report on its way to one connection."""

    queue: str
    """The message queue, for a connection of queues; otherwise empty."""
    report: QueueReport
    ttl_s: int | None = None
    """None: as long as the server keeps messages."""
    options: dict[str, str] = {}
    """The reporter's own keys, as the pipeline has them."""
    key: str = ""
    """The same for the same report to the same reporter, however often it is told."""
    change: Change | None = None
    """What it is told of, where it is told at a forge."""
    how: dict[str, Any] = {}
    """The reporter's own keys as the pipeline has them, of a forge.  JSON."""
    land: LandRequest | None = None
    """What is to be merged there; the answer goes to the pipeline."""
    precedence: int = 0
    """The precedence of the landing, if a merger pushes it."""
    pushed: Pushed | None = None
    """What has landed is to be shown there; the report is what people read where the forge does not see it."""
    echoes: bool = False
    """A pipeline may be started by what is told: once it is, the change is looked at."""


class Postings(msgspec.Struct, frozen=True):
    """Hold the reports of one turn to one connection, in order. All are delivered, or all are tried again."""

    postings: tuple[OutboxMessage, ...]


def fitted(posting: OutboxMessage, size_max_bytes: int) -> OutboxMessage:
    """Shorten the report until the message fits: comments go first, then what jobs said, then jobs, then text."""
    report, cut = posting.report, "…\nThe rest of this report is left out."
    short = size_max_bytes // 12
    smaller: tuple[Callable[[QueueReport], QueueReport], ...] = (
        lambda one: one,
        lambda one: replace(one, comments={}),
        lambda one: replace(one, builds=tuple(replace(build, error="") for build in one.builds)),
        lambda one: replace(one, message=one.message[:short] + cut, subject=one.subject[:200]),
        lambda one: replace(one, builds=one.builds[: size_max_bytes // 1_000]),
        lambda one: replace(one, builds=()),
    )
    for less in smaller:
        report = less(report)
        if len(msgspec.json.encode(report)) <= size_max_bytes:
            break
    return posting if report is posting.report else replace(posting, report=report)
