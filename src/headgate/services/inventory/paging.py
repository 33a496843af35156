"""Where a page ended, and what a watcher is told."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Iterator, Sequence
from typing import Self

import msgspec

from headgate.inventory.filters import Filter, Sort
from headgate.inventory.journal import Change, Kind
from headgate.inventory.model import Caller
from headgate.inventory.names import Invalid, is_uuid, normal
from headgate.services.inventory.journal import Commit
from headgate.services.inventory.lanes import Position, Query
from headgate.services.inventory.search import Found


class Token(msgspec.Struct, frozen=True, array_like=True):
    """Where a page ended: the moment that all pages show, by which indexes it is found, the last position in them, how
    many were told before where another order is wanted."""

    revision: int
    plan: tuple[int, ...]
    lane: int
    within: str
    told: int
    asked: str
    """Digest of the question: a token goes with no other one."""

    @property
    def after(self) -> Position:
        return self.lane, self.within

    def text(self) -> str:
        return base64.urlsafe_b64encode(msgspec.json.encode(self)).decode().rstrip("=")

    @classmethod
    def read(cls, text: str, asked: str) -> Self:
        """Raises Invalid."""
        try:
            padded = text.encode() + b"=" * (-len(text) % 4)
            token = msgspec.json.decode(base64.b64decode(padded, altchars=b"-_", validate=True), type=cls)
        except ValueError as error:
            raise Invalid("the page token is none that was given out; begin without one") from error
        if token.asked != asked:
            raise Invalid("the page token is of another search; begin without one")
        return token


def digest(caller: Caller, any: Sequence[Filter], sorts: Sequence[Sort]) -> str:
    said = msgspec.json.encode((caller.partition, caller.project, any, sorts), order="deterministic")
    return hashlib.sha256(said).hexdigest()[:16]


def after_marker(found: Sequence[Found], marker: str) -> Sequence[Found]:
    """Those after the object with this uuid; without a marker all.  Raises Invalid when it is not among them."""
    if not marker:
        return found
    wanted = normal(marker) if is_uuid(marker) else marker
    for number, one in enumerate(found):
        if one.object.uuid == wanted:
            return found[number + 1 :]
    raise wrong_marker(marker)


def wrong_marker(marker: str) -> Invalid:
    return Invalid(f"marker {marker!r} is not the uuid of an object that matches")


def seen(query: Query, commit: Commit) -> Iterator[Change]:
    """What a commit did to what matches: coming to match is being created, ceasing to is being deleted."""
    for change in commit.recorded.changes:
        old = query.shown(change.old) if change.old and query.matches(change.old) else None
        new = query.shown(change.new) if change.new and query.matches(change.new) else None
        if old is not None and new is not None:
            yield Change(Kind.UPDATED, old, new)
        elif old is not None or new is not None:
            yield Change(Kind.CREATED if old is None else Kind.DELETED, old, new)


def changes_facts(commits: Sequence[Commit]) -> bool:
    """Did one of them change partitions, types or definitions?"""
    return any(commit.facts for commit in commits)
