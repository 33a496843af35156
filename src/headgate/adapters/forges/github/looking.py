"""One look at a project: its branches and tags, and those of its pull requests that may have moved."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from msgspec.structs import replace

from headgate.adapters.forges.github.client import AGAIN_S, Client, Denied, Key, NotThere, Query, Rejected
from headgate.adapters.forges.github.happenings import Mark
from headgate.adapters.forges.github.pull import look
from headgate.adapters.forges.github.standing import Stands
from headgate.adapters.git.engine import GitEngine
from headgate.adapters.git.looking.look import Look
from headgate.adapters.git.looking.misfits import Misfits
from headgate.adapters.git.looking.names import HEADS, Names
from headgate.base.ids import derived
from headgate.config.forges.facts import Happening
from headgate.gate.change import TAGS, EventKind, Standing, TriggerEvent, numbered
from headgate.ports.forge import Hint, Sighting
from headgate.ports.reporter import ReporterAway

log = logging.getLogger("headgate.github")

ODD_MAX = 3
"""Pull requests in a row that GitHub does not tell of now; with more, it is not they that are odd."""
BATCH_MAX = 10
"""Changes of one sighting: what is seen is stored before more is asked for."""


@dataclass(slots=True)
class Known:
    """What is known of a connection; it is kept up to date while it is looked at."""

    standings: Mapping[str, Standing]
    heads: Mapping[str, Mapping[str, str]]
    refs: Mapping[str, Mapping[str, str]]


@dataclass(slots=True)
class ProjectLook:
    """Used once.  `more`: there is more than in one look."""

    client: Client
    engine: Callable[[], GitEngine]
    stands: Stands
    names: Names
    key: Key
    us: tuple[str, ...]
    project: str
    """Canonical name."""
    known: Known
    hints: Sequence[Hint]
    whole: bool
    """All of it is looked at, not only what is hinted at."""
    again: frozenset[int] = frozenset()
    """Pull requests that could not be looked at before."""
    more: bool = False
    odd: dict[int, str] = field(default_factory=dict)
    """Pull requests that cannot be looked at -> why; the others are all the same."""
    misfits: str | None = None
    """What is wrong with the refs, where they were looked at."""
    _heads: dict[str, str] = field(default_factory=dict)

    async def sightings(self) -> AsyncIterator[Sighting]:
        """Yield what is new, and at last which hints that answers.  Raise what client and git do."""
        old = self.known.heads.get(self.project)
        self._heads = dict(old or {})
        if self.whole or any(hint.ref for hint in self.hints):
            seen = await self._refs(old)
            if seen is not None:
                yield seen
        standings: list[Standing] = []
        told: list[TriggerEvent] = []
        async for standing, events in self._changes(first=old is None):
            standings.append(standing)
            told += events
            if len(standings) >= BATCH_MAX:
                yield Sighting(tuple(standings), tuple(told))
                standings, told = [], []
        answered = tuple(hint.id for hint in self.hints)
        if standings or told or answered:
            yield Sighting(tuple(standings), tuple(told), answered=answered)

    async def _refs(self, old: Mapping[str, str] | None) -> Sighting | None:
        """Compare branches and tags, as plain git has them."""
        mirror = self.engine().mirror(self.project, self.client.account.name)
        listing = await mirror.remote.listing(HEADS, TAGS)
        misfits = Misfits()
        for ref, why in listing.unreadable.items():
            misfits.add(ref, why)
        seen = self.known.refs.get(self.project)
        self._heads = {ref: commit for ref, commit in listing.refs.items() if ref.startswith(HEADS)}
        one = Look(self.client.account.name, self.project, mirror, self.names, dict(listing.refs), {}, misfits)
        found = await one.compare(old, seen, set(), {})
        self.more = one.more or one.late
        self.misfits = misfits.told
        if found is None:
            return None
        return replace(found, lingering={}, events=tuple(_in_words(event) for event in found.events))

    async def _changes(self, *, first: bool) -> AsyncIterator[tuple[Standing, list[TriggerEvent]]]:
        own = {key: s for key, s in self.known.standings.items() if s.change.project == self.project}
        for standing in own.values():
            if standing.untold:
                yield _told(standing)
        failed = 0
        for number in await self._due(own):
            was = self.known.standings.get(numbered(self.project, str(number)))
            if was is not None and (was.untold or (was.landed and not self.whole)):
                continue
            try:
                found = await self._one(number, was, first)
            except (Denied, Rejected, ReporterAway) as error:
                self.odd[number] = str(error)
                failed += not isinstance(error, Rejected)
                if failed > ODD_MAX or (isinstance(error, ReporterAway) and error.wait_s > AGAIN_S):
                    raise
                continue
            failed = 0
            if found is not None and (found[0] != was or found[1]):
                yield found

    async def _one(self, number: int, was: Standing | None, first: bool) -> tuple[Standing, list[TriggerEvent]] | None:
        project = self.client.account.short(self.project)
        try:
            pull = await look(self.client, self.key, project, number, urgent=not self.whole)
        except NotThere:
            return None  # it was transferred, or never there
        if was is None and pull.state != "OPEN":
            return None
        return await self.stands.of(self.key, self.project, pull, was, self.us, self._heads, first=first)

    async def _due(self, own: Mapping[str, Standing]) -> list[int]:
        """Return the numbers of what may have moved."""
        found = {int(hint.number) for hint in self.hints if hint.number.isdecimal() and len(hint.number) < 10}
        found |= self.again
        commits = {hint.commit for hint in self.hints if hint.commit and not hint.number}
        found |= {int(s.change.number) for s in own.values() if s.open and s.change.commit in commits}
        if any(not (hint.number or hint.commit or hint.ref) for hint in self.hints):  # the rules, or all of it
            self.stands.forget_rules()
            found |= {int(s.change.number) for s in own.values() if s.open}
        if self.whole:
            found |= await self._moved(own)
        return sorted(found)

    async def _moved(self, own: Mapping[str, Standing]) -> set[int]:
        """Return those that are open there and are not as known, and those that are known to be open and are not."""
        path = f"/repos/{self.client.account.short(self.project)}/pulls"
        there: dict[int, Mapping[str, Any]] = {}
        query: Query = {"state": "open", "sort": "created", "direction": "asc"}
        async for page in self.client.pages(self.key, path, query, urgent=False):
            there |= {int(one["number"]): one for one in page}
        known = {int(s.change.number): s for s in own.values() if s.change.number.isdecimal()}
        moved = {number for number, one in there.items() if _differs(one, known.get(number))}
        return moved | {number for number, s in known.items() if s.open and number not in there}


def _differs(there: Mapping[str, Any], known: Standing | None) -> bool:
    if known is None or not known.open or known.details is None or known.change.commit != there["head"]["sha"]:
        return True
    return bool(Mark.of(known.details.mark).updated != there["updated_at"])


def _told(standing: Standing) -> tuple[Standing, list[TriggerEvent]]:
    """What the gate landed is told of, without asking GitHub."""
    change = standing.change
    id = derived(change.key, "landed", change.commit)
    happening = Happening("pull_request", "closed")
    details = replace(standing.details, state="MERGED") if standing.details is not None else None
    told = TriggerEvent(EventKind.MERGED, change, id, happening=happening)
    return replace(standing, untold=False, details=details), [told]


def _in_words(event: TriggerEvent) -> TriggerEvent:
    return replace(event, happening=Happening("push")) if event.kind is EventKind.REF_UPDATED else event
