"""Define what a forge says of a change and of what happens to it, the same for all of them.  Pure data.

What is not known is None, or an empty text: never false.  A predicate that asks for what is not known does not hold,
whether it stands in `require` or in `reject` is for the pipeline to say.
"""

from __future__ import annotations

import msgspec


class Word(msgspec.Struct, frozen=True, omit_defaults=True):
    """Represent what one person says about a change of plain git: that it is approved, or that it must not land."""

    who: str
    """As the server knows them."""
    commit: str
    """The patchset it is said of."""
    ref: str
    """Where it is said; it goes when it is taken back."""
    since_ms: int = 0
    """When it was first seen, milliseconds since the epoch, UTC."""


class PipelineCheck(msgspec.Struct, frozen=True, omit_defaults=True):
    """Represent what a pipeline said about one patchset."""

    tenant: str
    pipeline: str
    commit: str
    result: str
    """success | failure"""


class ForgeAccount(msgspec.Struct, frozen=True, omit_defaults=True):
    """Represent an account at a forge."""

    name: str = ""
    """The name they log in with."""
    email: str = ""
    permission: str = ""
    """read | write | admin | none; empty: nobody has asked."""


class Vote(msgspec.Struct, frozen=True, omit_defaults=True):
    """Represent what an account says about the current patchset: a vote on a label, or a review."""

    who: ForgeAccount
    label: str
    """As Gerrit names it; `review` elsewhere."""
    value: str
    """`2`, `-1`; approved | changes_requested | commented | dismissed | pending."""
    since_ms: int = 0
    """When it was given; 0: that is not known."""
    old_value: str = ""
    """Of a vote that an event tells of: what it was before; empty: the event does not say."""


class ProgramStatus(msgspec.Struct, frozen=True, omit_defaults=True):
    """Represent what a program says about the current patchset."""

    who: str
    """The account, or the slug of the app."""
    name: str
    """The context of a status, the name of a check."""
    state: str
    """pending | success | failure | error; of a check its conclusion, or its status while it has none."""
    check: bool = False
    url: str = ""

    @property
    def spelled(self) -> str:
        """Return it as pipelines name it."""
        return f"{self.who}:{self.name}:{self.state}"


class Rule(msgspec.Struct, frozen=True, omit_defaults=True):
    """Represent a condition that the forge sets for a merge."""

    text: str
    """What is wanted, for people, as the end of a sentence that begins with the change."""
    met: bool | None = None
    """None: the forge has not made up its mind; it is waited for."""
    bypassed: bool = False
    """Our account may merge without it."""
    missing: tuple[str, ...] = ()
    """Labels or contexts that it lacks: where a pipeline sets all of them itself, nothing stands in its way."""


class Details(msgspec.Struct, frozen=True, omit_defaults=True):
    """Hold what may change while the patchset stays the same."""

    us: tuple[str, ...] = ()
    """The accounts that Headgate writes as, as `ForgeAccount.name` and `ProgramStatus.who` have them."""
    state: str = ""
    """The forge's own word, as Gerrit's NEW."""
    draft: bool | None = None
    """A draft, or work in progress."""
    current: bool = True
    """Is it the newest patchset?"""
    votes: tuple[Vote, ...] | None = None
    approved: bool | None = None
    """Whether the forge takes it as approved, where it says so."""
    score: int | None = None
    """Thumbs up less thumbs down, where those are counted."""
    statuses: tuple[ProgramStatus, ...] | None = None
    labels: tuple[str, ...] | None = None
    """Labels or tags."""
    hashtags: tuple[str, ...] | None = None
    topic: str | None = None
    together: bool = False
    """The forge merges all open changes of its topic when it merges one."""
    unresolved: int | None = None
    """Threads of discussion that are not resolved."""
    mergeable: bool | None = None
    """Whether it merges without conflicts; None: the forge is still looking."""
    rules: tuple[Rule, ...] | None = None
    """Those in force; None: they are not known, and the forge is asked when it is to land."""
    mark: str = ""
    """How far the driver has told of what happened to it, in its own words."""


class ForgeEvent(msgspec.Struct, frozen=True, omit_defaults=True):
    """Represent what happened, as triggers name it."""

    event: str
    """In the words of the driver: comment-added, pull_request, gl_push."""
    action: str = ""
    who: ForgeAccount | None = None
    comments: tuple[str, ...] = ()
    """The text, and of Gerrit each comment on the patchset."""
    votes: tuple[Vote, ...] = ()
    """All that the event shows, those that it did not change, too."""
    added: tuple[str, ...] = ()
    """Labels, tags or hashtags."""
    removed: tuple[str, ...] = ()
    statuses: tuple[ProgramStatus, ...] = ()
    state: str = ""
    """Of a review that was submitted; of a flag."""
    checker: str = ""
    """Uuid of Gerrit's checker."""
