"""Define the facts that forges report about changes and events, in one form for all forges. Pure data.

An unknown fact is None or an empty string, never false. A predicate about an unknown fact does not hold, both in
`require` and in `reject`.
"""

from __future__ import annotations

import msgspec


class Word(msgspec.Struct, frozen=True, omit_defaults=True):
    """Represent one person's approval or veto of a change of plain git."""

    who: str
    """Name by which the server knows the person."""
    commit: str
    """Commit of the patchset to which it refers."""
    ref: str
    """Ref that holds it; the ref is deleted when the person withdraws it."""
    since_ms: int = 0
    """Time at which it was first seen, in milliseconds since the epoch (UTC)."""


class PipelineCheck(msgspec.Struct, frozen=True, omit_defaults=True):
    """Represent the result of a pipeline for one patchset."""

    tenant: str
    pipeline: str
    commit: str
    result: str
    """success | failure"""


class ForgeAccount(msgspec.Struct, frozen=True, omit_defaults=True):
    """Represent an account at a forge."""

    name: str = ""
    """Login name."""
    email: str = ""
    permission: str = ""
    """read | write | admin | none; empty if it was not requested."""


class Vote(msgspec.Struct, frozen=True, omit_defaults=True):
    """Represent a vote on a label, or a review, of the current patchset."""

    who: ForgeAccount
    label: str
    """Gerrit's name of the label; `review` on other forges."""
    value: str
    """`2`, `-1`; approved | changes_requested | commented | dismissed | pending."""
    since_ms: int = 0
    """Time at which it was given; 0 when unknown."""
    old_value: str = ""
    """Earlier value of a vote in an event; empty if the event does not contain it."""


class ProgramStatus(msgspec.Struct, frozen=True, omit_defaults=True):
    """Represent a status or a check that a program reports for the current patchset."""

    who: str
    """Account that set it, or slug of the app."""
    name: str
    """Context of a status, or name of a check."""
    state: str
    """pending | success | failure | error; for a check, its conclusion, or its status until it has one."""
    check: bool = False
    url: str = ""

    @property
    def spelled(self) -> str:
        """Return the status as pipelines name it: `who:name:state`."""
        return f"{self.who}:{self.name}:{self.state}"


class Rule(msgspec.Struct, frozen=True, omit_defaults=True):
    """Represent a condition that the forge sets for a merge."""

    text: str
    """Text of the requirement: the rest of a sentence that begins with the change."""
    met: bool | None = None
    """Whether it is met; None while the forge has not decided, for which Headgate waits."""
    bypassed: bool = False
    """Whether Headgate's account may merge without it."""
    missing: tuple[str, ...] = ()
    """Labels or contexts that it lacks; a pipeline that sets all of them itself may proceed."""


class Details(msgspec.Struct, frozen=True, omit_defaults=True):
    """Hold facts that may change while the patchset stays the same."""

    us: tuple[str, ...] = ()
    """Headgate's own accounts, as in `ForgeAccount.name` and `ProgramStatus.who`."""
    state: str = ""
    """State as the forge names it, such as Gerrit's NEW."""
    draft: bool | None = None
    """Whether it is a draft or work in progress."""
    current: bool = True
    """Whether it is the newest patchset."""
    votes: tuple[Vote, ...] | None = None
    approved: bool | None = None
    """Whether the forge considers the change approved; None if the forge does not report that."""
    score: int | None = None
    """Thumbs up minus thumbs down; None if the forge does not count them."""
    statuses: tuple[ProgramStatus, ...] | None = None
    labels: tuple[str, ...] | None = None
    """Labels or tags."""
    hashtags: tuple[str, ...] | None = None
    topic: str | None = None
    together: bool = False
    """Whether the forge merges all open changes of a topic together."""
    unresolved: int | None = None
    """Number of unresolved threads of discussion."""
    mergeable: bool | None = None
    """Whether it merges without conflicts; None while the forge is still checking."""
    rules: tuple[Rule, ...] | None = None
    """Rules in force; None if unknown, in which case Headgate requests them before it lands the change."""
    mark: str = ""
    """Position up to which the driver has sent events of this change, in the driver's own form."""


class ForgeEvent(msgspec.Struct, frozen=True, omit_defaults=True):
    """Represent an event with the values that triggers match."""

    event: str
    """Name of the event as the driver's triggers spell it: comment-added, pull_request, gl_push."""
    action: str = ""
    who: ForgeAccount | None = None
    comments: tuple[str, ...] = ()
    """Text of the comment, and on Gerrit each comment on the patchset."""
    votes: tuple[Vote, ...] = ()
    """All votes in the event, including those that it did not change."""
    added: tuple[str, ...] = ()
    """Labels, tags or hashtags that the event added."""
    removed: tuple[str, ...] = ()
    statuses: tuple[ProgramStatus, ...] = ()
    state: str = ""
    """State of a submitted review or of a flag."""
    checker: str = ""
    """UUID of the Gerrit checker."""
