"""Define the published events of a gate, and the reports of pipelines, in the form in which receivers get them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
from msgspec.structs import replace

from headgate.gate.state.change import Change
from headgate.gate.state.returns import FileComment
from headgate.gate.state.works import LandRequest

LONG_MAX_BYTES, SHORT_MAX_BYTES = 100_000, 4_000
"""Size limits of a waiting report as JSON: the first applies while few reports wait, the second while many do."""


class PublishedEvent(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """Publish one event of a gate as a JSON object. Members may be added; `v` increases when a member changes its
    meaning or is removed."""

    v: int
    """1"""
    kind: str
    """change-enqueued | item-reset | build-started | build-finished | change-landed | change-rejected | change-passed |
    change-dequeued | configuration-held, when the new configuration of a branch has errors and is not put in force |
    report, which has the members of QueueReport"""
    id: str
    """Identifies the event: repeated deliveries of it have the same id."""
    at_ms: int
    """Time of the event, in milliseconds since 1970."""
    tenant: str
    pipeline: str
    project: str
    branch: str
    change: str
    """The patchset, in the form that people use."""
    commit: str
    item: str
    """The item in its queue, from change-enqueued to its end."""
    url: str = ""
    """Address of the change's page."""
    buildset: str = ""
    """The buildset; for item-reset, the new one."""
    build: str = ""
    """The build, for build-… events, which also have `job`."""
    job: str = ""
    attempt: int = 0
    result: str = ""
    """The result, as in the history, for build-finished and the end of the item."""
    voting: bool = True
    """Whether the result counts, for build-finished."""
    log_url: str = ""
    """Address of the log, for build-finished."""
    message: str = ""
    """The reason, for the end of the item."""


class PublishedEvents(msgspec.Struct, frozen=True):
    """Hold the events of one turn, in order."""

    events: tuple[PublishedEvent, ...] = msgspec.field(name="notices")


class ReportedBuild(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """Describe one build in a report."""

    job: str
    build: str
    attempt: int
    result: str = ""
    """Result of the build; empty while it runs."""
    voting: bool = True
    start_ms: int = 0
    end_ms: int = 0
    log_url: str = ""
    error: str = ""


class PublishedObjectChange(msgspec.Struct, frozen=True, kw_only=True):
    """Publish one change of an inventory object as a JSON object, like a PublishedEvent. The content of the object is
    not included: readers need their own permission for it."""

    v: int
    kind: str
    """object-created | object-updated | object-deleted"""
    id: str
    at_ms: int
    user: str
    """The user who changed the object."""
    partition: str
    """Uuid of the partition."""
    type: str
    project: str
    uuid: str
    name: str


class Answered(msgspec.Struct, frozen=True):
    """Identify the message, or the change of an object, that started the item of a report."""

    connection: str
    source: str
    """The queue of the message, or the type of the object."""
    ordering_key: str = msgspec.field(name="lane")
    """The number of the queue's partition, or the uuid of the object."""
    id: str
    """The id of the message or of the change."""


class QueueReport(PublishedEvent, frozen=True, omit_defaults=True, kw_only=True):
    """Report a phase of an item to a queue: a JSON object with the members of a PublishedEvent of kind `report`, and
    these."""

    report: str
    """success | failure | merge-conflict | config-error | start | enqueue | no-jobs | disabled | dequeue: the setting
    of the pipeline that names the connection. For a forge also refused (the gate does not admit the change) | settled
    (nothing keeps it out any more) | waits (it has passed and waits) | alarm (people have to act) | landed."""
    ref: str = ""
    """The updated ref, for an item that is not a change."""
    event: str = ""
    """The event that enqueued the item. An item that replaces another one of the same change inherits the event."""
    enqueued_ms: int = 0
    builds: tuple[ReportedBuild, ...] = ()
    """The builds in the order of the job graph, in their state at the time of the report."""
    subject: str = ""
    """The first line of the change's message."""
    root: str = ""
    """Address of the pages; empty without pages. The buildset is at `<root>/t/<tenant>/buildset/<buildset>`."""
    comments: dict[str, tuple[FileComment, ...]] = {}
    """Path of a file -> the comments of jobs on it."""
    answers: Answered | None = None
    """The message, or the change of an object, that started the item, if one did."""

    def document(self) -> bytes:
        """Return the report as others receive it: its record, and members under the names that they have now."""
        if (of := self.answers) is None:
            return msgspec.json.encode(self)
        # The record keeps `lane`, which others read until the next release.
        answers = {**msgspec.to_builtins(of), "ordering_key": of.ordering_key}
        return msgspec.json.encode({**msgspec.to_builtins(self), "answers": answers})


class Pushed(msgspec.Struct, frozen=True):
    """Record that a change has landed by a push of the tested commit, which its forge must now show."""

    commit: str
    """The head of the branch after the push."""
    contained: bool
    """Whether the branch contains the change's own commits, so that the forge itself shows the change as merged."""


class OutboxMessage(msgspec.Struct, frozen=True, omit_defaults=True):
    """Hold a report that waits for delivery to one connection."""

    queue: str
    """The message queue, for a connection of queues; otherwise empty."""
    report: QueueReport
    ttl_s: int | None = None
    """Lifetime of the message; None: the default of the server."""
    options: dict[str, str] = {}
    """The reporter's own settings in the pipeline."""
    key: str = ""
    """Identifies a report to one reporter: repeated deliveries of it have the same key."""
    change: Change | None = None
    """The change that a report to a forge is about."""
    how: dict[str, Any] = {}
    """The reporter's own settings in the pipeline, for a forge. JSON."""
    land: LandRequest | None = None
    """The request to merge the change at the forge, whose answer goes to the pipeline."""
    precedence: int = 0
    """The precedence of the landing, if a merger pushes it."""
    pushed: Pushed | None = None
    """The landing that the forge must show. People read the report if the forge does not detect the landing itself."""
    echoes: bool = False
    """Whether the report may start a pipeline: once it is delivered, the change is read again."""


class OutboxMessages(msgspec.Struct, frozen=True):
    """Hold the reports of one turn to one connection, in order. Either all are delivered, or all are retried."""

    messages: tuple[OutboxMessage, ...] = msgspec.field(name="postings")


def fitted(outgoing: OutboxMessage, size_max_bytes: int) -> OutboxMessage:
    """Shorten the report until the message fits: drop comments first, then errors of builds, then text, then builds."""
    report, cut = outgoing.report, "…\nThe rest of this report is left out."
    short = size_max_bytes // 12
    smaller: tuple[Callable[[QueueReport], QueueReport], ...] = (
        lambda one: one,
        lambda one: replace(one, comments={}),
        lambda one: replace(one, builds=tuple(replace(build, error="") for build in one.builds)),
        lambda one: replace(one, message=one.message[:short] + cut, subject=one.subject[:200]),
        lambda one: replace(one, builds=one.builds[: size_max_bytes // 1_000]),
        lambda one: replace(one, builds=()),
    )
    # First drop what people can also find on the pages.
    for less in smaller:
        report = less(report)
        if len(msgspec.json.encode(report)) <= size_max_bytes:
            break
    return outgoing if report is outgoing.report else replace(outgoing, report=report)
