"""Query a project once: its branches and tags, and the changes that may have moved.

This is for forges whose changes have numbers, and that report whether anything about an open change moved.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol

from msgspec.structs import replace

from headgate.adapters.forges.rest import AGAIN_S, ForgeDenied, NotThere, Rejected, expected_form
from headgate.adapters.git.engine import GitEngine
from headgate.adapters.git.poll.look import Look
from headgate.adapters.git.poll.names import HEADS, Misfits, Names
from headgate.base.ids import derived
from headgate.base.texts import line
from headgate.config.forges.facts import ForgeEvent
from headgate.gate.state.change import TAGS, ChangeState, EventKind, TriggerEvent, numbered, storable
from headgate.ports.forge import ButtonOrder, Hint, Protection, Sighting, of_project
from headgate.ports.reporter import ReporterAway

log = logging.getLogger("headgate.forges")

ODD_MAX = 3
"""Failed changes in a row after which the forge itself counts as unavailable."""
IN_TURN_MAX = 10
"""Unmoved changes that a full query reads in turn, since a new status, protection or permission does not show in the
list."""
BATCH_MAX = 10
"""Changes in one sighting: results are stored before more is requested."""


@dataclass(slots=True)
class KnownChanges:
    """Hold the known state of a connection; it is updated while a query runs."""

    change_states: Mapping[str, ChangeState]
    heads: Mapping[str, Mapping[str, str]]
    refs: Mapping[str, Mapping[str, str]]


class Words(NamedTuple):
    """Hold one forge's names of common things."""

    noun: str
    """The forge's word for a change, for messages."""
    landed: ForgeEvent
    pushed: ForgeEvent
    settles: bool = False
    """Whether the forge checks asynchronously if a change can be merged, so that a second query must follow soon."""


Guarded = tuple[Protection | None, str]
"""Protections of branches, and a message about what the forge does not provide; for that part, earlier values stay
valid."""
Found = tuple[ChangeState, list[TriggerEvent]]
"""State of a change, and the events since the last query."""


class ProjectPoll(Protocol):
    """Declare how a driver reads one project in one query."""

    @property
    def words(self) -> Words: ...

    async def opened(self, known: Mapping[int, ChangeState]) -> Mapping[int, bool]:
        """Return the numbers of open changes, and whether each has moved since its known state."""
        ...

    async def one(
        self, number: int, was: ChangeState | None, heads: Mapping[str, str], *, first: bool, urgent: bool
    ) -> Found | None:
        """Return the state of a change; None if it is closed and unknown, and so irrelevant. `heads`: ref -> commit
        of the branches; `first`: whether this is the first query of the project. Raise NotThere, ForgeDenied, Rejected,
        ReporterAway."""
        ...

    def forget_rules(self) -> None:
        """Discard the cached rules, since somebody has changed them."""
        ...


class PollScope(NamedTuple):
    """Define the scope of one query of a project, and the known state before it."""

    names: Names
    project: str
    """Canonical name of the project."""
    known: KnownChanges
    hints: Sequence[Hint]
    full: bool
    """Whether to query the entire project rather than only hinted places."""
    again: frozenset[int]
    """Changes whose last query failed: they come last, and another failure does not count against the forge."""
    resting: frozenset[int]
    """Changes whose last query failed and that are not due yet; they are queried only if hinted at."""
    protections: bool
    """Whether somebody needs the protections of its branches."""


@dataclass(slots=True)
class ProjectLook:
    """Query a project once. `more` is set if the query has not covered everything."""

    asking: ProjectPoll
    connection: str
    engine: Callable[[], GitEngine]
    scope: PollScope
    protection: Callable[[], Awaitable[Guarded]] | None = None
    """Returns its protected and locked branches; None if the forge does not provide them."""
    may_write: Callable[[str], Awaitable[bool]] | None = None
    """Tells whether a person, named as the forge names them, may write to the project; None if this forge has no
    commands. Raises ReporterAway."""
    hidden: str = ""
    """Message about the parts of the project that our account may not see."""
    more: bool = False
    attempted: set[int] = field(default_factory=set)
    """Changes whose query was attempted."""
    odd: dict[int, str] = field(default_factory=dict)
    """Changes whose query failed, while other queries succeed -> the reason."""
    unsettled: set[int] = field(default_factory=set)
    """Changes for which the forge is still checking whether they can be merged."""
    misfits: str | None = None
    """What is wrong with the refs; None if they were not queried."""
    unseen: str | None = None
    """What the forge does not provide about its branches; None if that was not requested."""
    _heads: dict[str, str] = field(default_factory=dict)

    async def sightings(self) -> AsyncIterator[Sighting]:
        """Yield what is new, and finally the hints that are thereby answered. Raise the errors of client and git."""
        # Orders come first, in a sighting of their own, so that a failing query does not keep a person waiting.
        if any(hint.order for hint in self.scope.hints):
            yield await self._orders()
            self.scope = self.scope._replace(hints=[hint for hint in self.scope.hints if hint.order is None])
        old = self.scope.known.heads.get(self.scope.project)
        self._heads = dict(old or {})
        # Branches come before changes: the files of a change are computed against the current branch.
        seen = await self._refs(old) if self.scope.full or any(hint.ref for hint in self.scope.hints) else None
        moved = self.scope.full or self._rules_moved or self._heads.keys() != (old or {}).keys()
        if self.protection is not None and self.scope.protections and moved:
            protection, self.unseen = await self.protection()
            seen = replace(
                seen or Sighting(), protections={self.scope.project: protection} if protection is not None else {}
            )
        if seen is not None:
            yield seen
        change_states: list[ChangeState] = []
        trigger_events: list[TriggerEvent] = []
        async for change_state, events in self._changes(first=old is None):
            change_states.append(change_state)
            trigger_events += events
            if len(change_states) >= BATCH_MAX:
                yield Sighting(tuple(change_states), tuple(trigger_events))
                change_states, trigger_events = [], []
        answered = tuple(hint.id for hint in self.scope.hints)
        if change_states or trigger_events or answered:
            yield Sighting(tuple(change_states), tuple(trigger_events), answered=answered)

    async def _orders(self) -> Sighting:
        """Return a sighting with the commands of people who may write, according to the forge; their hints name the
        person and the command."""
        found, answered = list[tuple[str, ButtonOrder]](), list[str]()
        for hint in self.scope.hints:
            if hint.order is None:
                continue
            answered.append(hint.id)
            if self.may_write is not None and await self.may_write(hint.order.who):
                found.append((numbered(self.scope.project, hint.number), hint.order))
            else:
                log.info(
                    "%s: %s has no permission to remove anything from a pipeline there",
                    self.scope.project,
                    line(hint.order.who, 100),
                )
        return Sighting(orders=tuple(found), answered=tuple(answered))

    @property
    def _rules_moved(self) -> bool:
        """Return whether a hint names no change, commit or ref, so that the rules, or anything else, may have moved."""
        return any(not (hint.number or hint.commit or hint.ref) for hint in self.scope.hints)

    async def _refs(self, old: Mapping[str, str] | None) -> Sighting | None:
        """Compare branches and tags, as for plain git; return a sighting, or None if nothing moved."""
        mirror = self.engine().mirror(self.scope.project, self.connection)
        listing = await mirror.remote.listing(HEADS, TAGS)
        misfits = Misfits()
        for ref, why in listing.unreadable.items():
            misfits.add(ref, why)
        seen = self.scope.known.refs.get(self.scope.project)
        self._heads = {ref: commit for ref, commit in listing.refs.items() if ref.startswith(HEADS)}
        # Pass no known changes: changes have numbers here, so compare only branches and tags.
        one = Look(self.connection, self.scope.project, mirror, self.scope.names, dict(listing.refs), {}, misfits)
        found = await one.compare(old, seen, set(), {})
        self.more = one.more or one.late
        self.misfits = misfits.text
        if found is None:
            return None
        return replace(found, lingering={}, events=tuple(self._in_words(event) for event in found.events))

    async def _changes(self, *, first: bool) -> AsyncIterator[Found]:
        own = of_project(self.scope.known.change_states, self.scope.project)
        for change_state in own.values():
            if change_state.untold:
                yield self._as_landed(change_state)
        failed, before = 0, self.scope.again | self.scope.resting
        for number in await self._due(own):
            was = self.scope.known.change_states.get(numbered(self.scope.project, str(number)))
            # The gate has landed it, but the forge may still show it as open; that answer must not reopen it.
            if was is not None and (was.untold or (was.landed and not self.scope.full)):
                continue
            self.attempted.add(number)
            try:
                found = await self._one(number, was, first)
            except (ForgeDenied, Rejected, ReporterAway) as error:
                self.odd[number] = str(error)
                failed += not isinstance(error, Rejected) and number not in before
                # Several failures in a row, or a request to wait, concern the forge rather than these changes.
                if failed > ODD_MAX or (isinstance(error, ReporterAway) and error.wait_s > AGAIN_S):
                    raise
                continue
            failed = 0
            if found is not None and self.asking.words.settles and _unsettled(found[0]):
                self.unsettled.add(number)
            if found is not None and (found[0] != was or found[1]):
                yield found

    async def _one(self, number: int, was: ChangeState | None, first: bool) -> Found | None:
        try:
            with expected_form():
                found = await self.asking.one(number, was, self._heads, first=first, urgent=not self.scope.full)
                if found is not None:
                    storable(*found)
                return found
        except NotThere:
            return None  # it was transferred, or never existed

    async def _due(self, own: Mapping[str, ChangeState]) -> list[int]:
        """Return the numbers of changes that may have moved."""
        found = {int(hint.number) for hint in self.scope.hints if hint.number.isdecimal() and len(hint.number) < 10}
        found |= self.scope.again
        commits = {hint.commit for hint in self.scope.hints if hint.commit and not hint.number}
        found |= {int(s.change.number) for s in own.values() if s.open and s.change.commit in commits}
        if self._rules_moved:
            self.asking.forget_rules()
            found |= {int(s.change.number) for s in own.values() if s.open}
        if self.scope.full:
            found |= await self._moved(own) - self.scope.resting
        return sorted(found, key=lambda number: (number in self.scope.again | self.scope.resting, number))

    async def _moved(self, own: Mapping[str, ChangeState]) -> set[int]:
        """Return the open changes that differ from their known states, and the changes that are no longer open."""
        known = {int(s.change.number): s for s in own.values() if s.change.number.isdecimal()}
        there = await self.asking.opened(known)
        moved = {number for number, one in there.items() if one}
        return moved | {number for number, s in known.items() if s.open and number not in there}

    def _as_landed(self, change_state: ChangeState) -> Found:
        """Return the state of a change that the gate has landed, and the event of its merge, without a call to the
        forge."""
        change = change_state.change
        id = derived(change.key, "landed", change.commit)
        details = replace(change_state.details, state="MERGED") if change_state.details is not None else None
        event = TriggerEvent(EventKind.MERGED, change, id, happening=self.asking.words.landed)
        return replace(change_state, untold=False, details=details), [event]

    def _in_words(self, event: TriggerEvent) -> TriggerEvent:
        return replace(event, happening=self.asking.words.pushed) if event.kind is EventKind.REF_UPDATED else event


def listed(
    page: Iterable[Any],
    number: str,
    known: Mapping[int, ChangeState],
    differs: Callable[[Any, ChangeState | None], bool],
) -> dict[int, bool]:
    """Return the numbers on a page of a list, and whether each change has moved; a malformed entry counts as moved."""
    found: dict[int, bool] = {}
    for one in page:
        # If `differs` fails, the first assignment remains, so that a malformed entry is queried rather than ignored.
        with suppress(LookupError, TypeError, ValueError):
            found[int(one[number])] = True
            found[int(one[number])] = differs(one, known.get(int(one[number])))
    return found


def in_turn(found: dict[int, bool], turns: dict[str, int], project: str) -> dict[int, bool]:
    """Return the changes, with some unmoved ones, in turn, marked as moved. `turns`: project -> the last of these."""
    last = turns.get(project, 0)
    # Continue after the last number, then wrap around: each gets its turn, even as changes come and go.
    rest = sorted((number for number, moved in found.items() if not moved), key=lambda n: (n <= last, n))
    for number in rest[:IN_TURN_MAX]:
        found[number], turns[project] = True, number
    return found


def _unsettled(change_state: ChangeState) -> bool:
    return change_state.open and change_state.details is not None and change_state.details.mergeable is None
