"""Pull requests, as GitHub and Gitea have them, at one moment."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection
from dataclasses import dataclass, field
from datetime import datetime

import msgspec

from headgate.config.forges.facts import ForgeAccount, ProgramStatus, Vote

MESSAGE_MAX_CHARS, FOOTERS_MAX_CHARS = 16_000, 4_000
"""Limits on message and footers; the middle of a longer message is left out."""


class PullRemark(msgspec.Struct, frozen=True):
    """Represent a comment on the whole pull request."""

    id: int
    who: ForgeAccount
    text: str
    at_ms: int


class Reviewed(msgspec.Struct, frozen=True):
    """Represent a review."""

    id: int
    who: ForgeAccount
    state: str
    """approved | changes_requested | commented | dismissed | pending"""
    at_ms: int
    pushes: bool
    """Whether its author may push."""


class ProgramReport(msgspec.Struct, frozen=True):
    """Represent what a program reports on the head."""

    status: ProgramStatus
    at_ms: int
    asked_again: bool = False
    """Whether somebody requested another run of the check."""


class PullAction(msgspec.Struct, frozen=True):
    """Record an action, since the state shows only its outcome."""

    action: str
    """Name of the action, as triggers of GitHub have it: labeled, closed, converted_to_draft."""
    who: ForgeAccount
    what: str = ""
    """The label, for actions on labels."""


@dataclass(frozen=True, slots=True)
class AnyPull(ABC):
    """Describe a pull request as far as all forges with pull requests can."""

    project: str
    """owner/name, as the project is called now."""
    number: int
    title: str
    body: str
    url: str
    state: str
    """OPEN | CLOSED | MERGED"""
    draft: bool
    created_ms: int
    updated: str
    head: str
    base: str
    base_commit: str
    author: ForgeAccount
    mergeable: bool | None
    merge_commit: str
    labels: tuple[str, ...]
    reviews: tuple[Reviewed, ...]
    """The newest reviews; reviews of strangers can push older ones off this list."""
    remarks: tuple[PullRemark, ...]
    reports: tuple[ProgramReport, ...]
    deeds: tuple[PullAction, ...] = field(default=(), kw_only=True)
    """The newest actions, oldest first, if the forge provides them."""

    @property
    def message(self) -> str:
        """Return the text that contains footers."""
        return f"{self.title}\n\n{self.body}" if self.body else self.title

    @property
    @abstractmethod
    def approved(self) -> bool:
        """Tell whether the forge counts it as approved."""

    def doer(self, action: str, what: str = "") -> ForgeAccount | None:
        """Return the author of the last action of a kind; None if the forge does not provide it."""
        found = (one.who for one in reversed(self.deeds) if (one.action, one.what) == (action, what))
        return next(found, None)

    @property
    @abstractmethod
    def votes(self) -> tuple[Vote, ...]:
        """Return one vote of each author."""


def newest_of_each(reviews: Collection[Reviewed], opinions: Collection[Reviewed] = ()) -> tuple[Vote, ...]:
    """Return one vote of each author: the newest, but a mere comment does not withdraw an approval. `opinions`: votes
    besides the reviews, one of each author."""
    found = {one.who.name: one for one in opinions}
    for one in reviews:
        # `opinions` may hold a newer review than those that are listed: strangers' reviews push others off the list.
        if one.who.name in found and found[one.who.name].id > one.id:
            continue
        if one.state == "commented" and one.who.name in found and found[one.who.name].state != "commented":
            continue
        found[one.who.name] = one
    return tuple(Vote(one.who, "review", one.state, one.at_ms) for one in found.values())


def ms(at: str) -> int:
    """Return a time of a forge as milliseconds since the epoch."""
    return int(datetime.fromisoformat(at).timestamp() * 1000)


def cut(message: str) -> str:
    """Return a message as it is stored, shortened because each change is stored many times; its footers are at the
    end."""
    if len(message) <= MESSAGE_MAX_CHARS:
        return message
    return f"{message[: MESSAGE_MAX_CHARS - FOOTERS_MAX_CHARS]}\n[…]\n{message[-FOOTERS_MAX_CHARS:]}"
