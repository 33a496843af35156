"""Deliver the reports of one connection until they are accepted, those of each change in order; show what waits.

No turn waits for a courier. While the receiver is unavailable, all reports wait, and a record next to them has the
reason. A delayed report holds up only the reports of its own change. A rejected report is moved to the quarantine,
where people see it and retry or drop it.
"""

from __future__ import annotations

import asyncio
import heapq
import logging
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from msgspec.structs import replace

from headgate.base.texts import line
from headgate.map.outbox import OutboxMessage, OutboxMessages
from headgate.map.queues import ReportsQueue
from headgate.map.records import OutboxCommand, RepositoryProblem
from headgate.map.tree import unescape
from headgate.ports.reporter import Reporter, ReporterAway, ReportPutOff, ReportRefused
from headgate.recipes.codec import readable
from headgate.recipes.lock import lock
from headgate.recipes.mirrorpart import MirrorPart
from headgate.recipes.stream import Unread, consumed
from headgate.services.context import Context
from headgate.services.forgework import LAND_MAX_MS, ForgeReporter
from headgate.services.quarantine import Quarantine, Tries
from headgate.store.store import Session
from headgate.store.types import At, Op

log = logging.getLogger("headgate.reports")

AT_ONCE_MAX = 4
"""Limit on the reports delivered at a time; no two of them are for the same change."""
LOOKED_AT_MAX = 1_000
"""Number of the oldest reports from which the courier chooses those to deliver."""
PAUSE_FIRST_S, PAUSE_MAX_S = 1.0, 300.0
PUT_OFF_MAX_MS = 24 * 3_600_000
"""Time for which a delayed report is retried; after that it is moved to the quarantine."""
BROKEN_MAX = 5
"""Number of failed attempts at the reports of one change while the server accepts other reports; after that the report
is given up."""
DROPPED_MAX = 40
"""Limit on the reports dropped in one commit."""


class _Broken(ReportPutOff):
    """Report that the receiver does not answer for the reports of one change although it does for others."""


@dataclass(slots=True)
class _Pause:
    """Represent a pause that grows while nothing is accepted."""

    until_s: float = 0.0
    length_s: float = 0.0

    def grow(self, now_s: float, least_s: float = 0.0) -> None:
        self.length_s = min(PAUSE_MAX_S, 2 * self.length_s or PAUSE_FIRST_S)
        self.until_s = now_s + max(self.length_s, least_s)


@dataclass(slots=True)
class Courier:
    """Deliver the reports of one connection, one process at a time; `run` is the body of the component."""

    context: Context
    connection: str
    reporter: Reporter
    lander: ForgeReporter | None = None
    """The forge's interface for merging; None for other connections."""
    _tries: Tries = field(default_factory=Tries)
    _away: _Pause = field(default_factory=_Pause)
    _put_off: dict[str, _Pause] = field(default_factory=dict)
    """Change -> pause of its reports."""
    _broken: dict[str, tuple[int, int]] = field(default_factory=dict)
    """Change whose reports got no answer -> number of reports accepted by then, and how often others were accepted
    since."""
    _probed: set[str] = field(default_factory=set)
    """Changes that were tried since the last report was accepted."""
    _taken: int = 0
    """Number of reports accepted so far."""
    _resting: dict[str, float] = field(default_factory=dict)
    """Project whose reports the forge rejects -> end of its pause; reports of other projects are delivered."""
    _session: Session | None = None
    _recorded: str = ""
    """The recorded reason why reports wait."""

    @property
    def _place(self) -> ReportsQueue:
        return self.context.map.reports(self.connection)

    async def run(self, session: Session) -> None:
        place, self._session = self._place, session
        async with lock(self.context.store, session, place.election.path).hold() as guard:
            # The problem may have ended since the last holder recorded it; the first accepted report removes it.
            self._recorded = problem.text if (problem := self._shown) is not None else ""
            with self.context.mirror.part(place.queue.path, place.data.path, place.command.path) as part:
                while True:
                    await self._heed(guard)
                    await self._round(guard, part)

    async def _heed(self, guard: At) -> None:
        """Carry out a person's command: retry reports immediately, or drop the waiting ones."""
        entry = self.context.mirror.get(self._place.command.path)
        if entry is None:
            return
        # Even an unreadable command ends the pauses, and is removed.
        command = readable(entry, OutboxCommand)
        self._away.until_s = 0.0
        self._put_off.clear()
        self._resting.clear()
        while command is not None and command.do == "drop":
            waiting = self._place.stream.waiting(self.context.mirror, limit=DROPPED_MAX)
            if not waiting:
                break
            # A pipeline waits for each landing, so a dropped landing must be answered.
            unanswered = [op for one in waiting for op in self._unasked(one, "it was dropped manually")]
            await self.context.store.commit([], [*consumed(waiting), *unanswered], guards=[guard])
            await self.context.mirror.gone(waiting[-1].entry)
        await self.context.store.commit([], [self._place.command.delete()], guards=[guard])
        await self.context.mirror.gone(self._place.command.path)

    async def _round(self, guard: At, part: MirrorPart) -> None:
        """Deliver the next reports, or wait until there are some."""
        seen, mirror, now_s = part.moves, self.context.mirror, asyncio.get_running_loop().time()
        waiting = self._place.stream.waiting(mirror, limit=LOOKED_AT_MAX)
        # While the receiver is unavailable, only people may shorten the pause.
        if waiting and (away_s := self._away.until_s - now_s) > 0:
            await self._pause(away_s, part)
            return
        chosen = list(self._chosen(waiting, now_s))
        if chosen:
            await self._tell_all(chosen, guard)
            return
        if not waiting:
            self._put_off.clear()
            self._broken.clear()
            self._resting.clear()
            await self._well(guard)
        pauses = (*(pause.until_s for pause in self._put_off.values()), *self._resting.values())
        soonest_s = min(pauses, default=None) if waiting else None
        await part.moved_within(None if soonest_s is None else max(0.0, soonest_s - now_s), seen)

    async def _pause(self, pause_s: float, part: MirrorPart) -> None:
        """Pause, unless a command arrives."""
        until_s, loop = asyncio.get_running_loop().time() + pause_s, asyncio.get_running_loop()
        while (left_s := until_s - loop.time()) > 0 and self.context.mirror.get(self._place.command.path) is None:
            await part.moved_within(left_s, part.moves)

    def _chosen(self, waiting: Sequence[Unread[OutboxMessages]], now_s: float) -> Iterator[Unread[OutboxMessages]]:
        """Yield the oldest report of each change that is not delayed, taking projects in turn. While it is unknown
        whether the receiver accepts any, yield only one, of a different change each time."""
        # One report is enough to find out whether the receiver is back; more would all wait for the same timeout.
        seen, most = set[str](), 1 if self._away.length_s else AT_ONCE_MAX
        turns: Counter[str] = Counter()
        found = list[tuple[bool, int, int, Unread[OutboxMessages]]]()
        self._resting = {project: until_s for project, until_s in self._resting.items() if until_s > now_s}
        for place, event in enumerate(waiting):
            # Reports of one change stay in order: an older delayed one holds up the later ones.
            whose = _change(event)
            if whose in seen:
                continue
            seen.add(whose)
            if whose in self._put_off and self._put_off[whose].until_s > now_s:
                continue
            project = _project(event)
            if project in self._resting:
                continue
            # Reports that were not tried since the last success come first, because one report may break the receiver.
            found.append((whose in self._probed, turns[project], place, event))
            turns[project] += 1
        if all(probed for probed, *_ in found):
            self._probed.clear()
        yield from (event for *_, event in heapq.nsmallest(most, found, key=lambda one: one[:3]))

    async def _tell_all(self, chosen: Sequence[Unread[OutboxMessages]], guard: At) -> None:
        """Deliver every report completely, whatever happens to the others."""
        results = await asyncio.gather(*(self._tell(event) for event in chosen), return_exceptions=True)
        found = [self._judged(event, result) for event, result in zip(chosen, results, strict=True)]
        ops, now_s, away = list[Op](), asyncio.get_running_loop().time(), list[ReporterAway]()
        ended = list[Unread[OutboxMessages]]()
        for event, result in zip(chosen, found, strict=True):
            if isinstance(result, ReporterAway):
                away.append(result)
                if result.alone:
                    self._resting[_project(event)] = now_s + max(result.wait_s, PAUSE_FIRST_S)
            # A cancellation is not the result of a report.
            elif isinstance(result, BaseException) and not isinstance(result, Exception):
                raise result
            elif isinstance(result, Exception) and not self._given_up(event, result):
                self._put_off.setdefault(_change(event), _Pause()).grow(now_s)
            else:
                ended.append(event)
                self._put_off.pop(_change(event), None)
                ops += self._ends(event, result)
        if ops:
            # One commit removes the delivered reports and answers the pipelines.
            await self.context.store.commit([], ops, guards=[guard])
            await self.context.mirror.gone(ended[-1].entry)
        await self._counted(away, len(ended), now_s, guard)

    def _ends(self, event: Unread[OutboxMessages], result: list[Op] | Exception) -> list[Op]:
        """Return the operations that remove a report from the outbox, because it was accepted or never will be."""
        if not isinstance(result, Exception):
            return [*event.consume(), *result]
        # Giving up a landing is an answer to the pipeline, so it does not go to the quarantine.
        if _landings(event):
            return [*event.consume(), *self._unasked(event, str(result) or repr(result))]
        return Quarantine(self.context).report(event, self._place.queue.path, self.connection, result)

    async def _counted(self, away: Sequence[ReporterAway], ended: int, now_s: float, guard: At) -> None:
        """Adjust the pause for the receiver, and record its state."""
        everywhere = [one.wait_s for one in away if not one.alone]
        if everywhere:
            self._away.grow(now_s, max(everywhere))
        elif ended:
            self._away = _Pause()
        if ended:
            self._taken += ended
            self._probed.clear()
        if away:
            await self._tell_why(str(away[0]), guard)
        elif ended and not self._resting:
            await self._well(guard)

    def _judged(self, event: Unread[OutboxMessages], result: list[Op] | BaseException) -> list[Op] | BaseException:
        """Return the result of a delivery. A change whose reports get no answer although those of others do is delayed
        separately; otherwise all would wait for it forever."""
        whose = _change(event)
        if not isinstance(result, ReporterAway) or result.alone:
            self._broken.pop(whose, None)
            return result
        self._probed.add(whose)
        taken, times = self._broken.get(whose, (self._taken, 0))
        # Another report was accepted in the meantime, so the receiver works, and this change's reports break it.
        times += self._taken > taken
        self._broken[whose] = (self._taken, times)
        if not times:
            return result
        return ReportRefused(str(result)) if times > BROKEN_MAX and self._is_late(event) else _Broken(str(result))

    async def _tell(self, event: Unread[OutboxMessages]) -> list[Op]:
        """Deliver the reports; return the answers that pipelines wait for. Raise the reporter's errors."""
        name, answers = event.body.rpartition("/")[2], list[Op]()
        for number, outgoing in enumerate(event.event.messages):
            # A forge's votes precede the landing in the same entry, so they were delivered in earlier rounds of the
            # loop.
            if outgoing.land is not None and self.lander is not None and self._session is not None:
                answers += await self.lander.land(outgoing, outgoing.land, self._session)
            else:
                # Each message has its own key, so the receiver recognises a repeated delivery.
                await self.reporter.tell(replace(outgoing, key=outgoing.key or f"{name}-{number}"))
        return answers

    def _unasked(self, event: Unread[OutboxMessages], why: str) -> list[Op]:
        """Return operations that answer the pipelines whose requests are given up."""
        found = [(one, one.land) for one in _landings(event) if one.land is not None]
        return [op for one, work in found if self.lander for op in self.lander.given_up(one, work, why)]

    def _given_up(self, event: Unread[OutboxMessages], error: Exception) -> bool:
        """Return whether the report is given up."""
        if isinstance(error, ReportRefused):
            return True
        if isinstance(error, ReportPutOff):
            log.warning("%s: a report is delayed: %s", self.connection, error)
            return not isinstance(error, _Broken) and self._is_late(event)
        log.error("%s: a report failed with an unexpected error", self.connection, exc_info=error)
        return self._tries.spent(event.entry)

    def _is_late(self, event: Unread[OutboxMessages]) -> bool:
        oldest_ms = min((one.report.at_ms for one in event.event.messages), default=0)
        # A pipeline waits for a landing, so it is given up much earlier.
        return self.context.now_ms() - oldest_ms > (LAND_MAX_MS if _landings(event) else PUT_OFF_MAX_MS)

    @property
    def _shown(self) -> RepositoryProblem | None:
        entry = self.context.mirror.get(self._place.problem.path)
        return readable(entry, RepositoryProblem) if entry is not None else None

    async def _tell_why(self, why: str, guard: At) -> None:
        """Record the reason, once while it stays the same."""
        why, shown = line(why, 500), self._shown
        log.warning(
            "%s: reports cannot be delivered, trying again in %.0f s: %s", self.connection, self._away.length_s, why
        )
        if self._recorded != why:
            # A receiver may be unavailable for hours; one write is enough.
            since_ms = shown.since_ms if shown is not None else self.context.now_ms()
            await self.context.store.commit(
                [], [self._place.problem.put(RepositoryProblem(since_ms, why))], guards=[guard]
            )
            self._recorded = why

    async def _well(self, guard: At) -> None:
        """Record that the receiver answers again."""
        if self._recorded:
            log.info("%s: reports are accepted again", self.connection)
            await self.context.store.commit([], [self._place.problem.delete()], guards=[guard])
            self._recorded = ""


def _landings(event: Unread[OutboxMessages]) -> list[OutboxMessage]:
    """Return the landings among the reports, whose answers a pipeline awaits."""
    return [one for one in event.event.messages if one.land is not None]


def _change(event: Unread[OutboxMessages]) -> str:
    """Return the change whose order must be kept."""
    return next((whose(one) for one in event.event.messages), "")


def _project(event: Unread[OutboxMessages]) -> str:
    return next((one.report.project for one in event.event.messages), "")


def whose(outgoing: OutboxMessage) -> str:
    """Return the key within which reports stay in order: the change with all its patchsets, the ref, or the ordering
    key of the message or object that the report answers."""
    report = outgoing.report
    line = f" {one.connection} {one.source} {one.ordering_key}" if (one := report.answers) is not None else ""
    return f"{report.tenant} {report.project} {report.branch} {report.ref or report.change.partition(',')[0]}{line}"


class Outbox(NamedTuple):
    """Describe the reports that wait for one connection."""

    connection: str
    waiting: int
    oldest_ms: int | None
    """Time of the oldest waiting report; None: nothing waits."""
    problem: RepositoryProblem | None
    """Why reports wait; None if they are being delivered."""


def outboxes(context: Context) -> list[Outbox]:
    """Describe the outbox of every connection that has received reports, by name."""
    place = context.map.reports
    below = (place.relative(entry.path) for entry in context.mirror.under(place.path))
    names = sorted({unescape(path.partition("/")[0]) for path in below})
    return [outbox(context, name) for name in names]


def outbox(context: Context, connection: str) -> Outbox:
    place, mirror = context.map.reports(connection), context.mirror
    oldest = place.stream.waiting(mirror, limit=1)
    oldest_ms = oldest[0].event.messages[0].report.at_ms if oldest and oldest[0].event.messages else None
    entry = mirror.get(place.problem.path)
    problem = readable(entry, RepositoryProblem) if entry is not None else None
    return Outbox(connection, place.stream.length(mirror), oldest_ms, problem)


def wanted(context: Context, connection: str, do: str) -> Sequence[Op]:
    """Return operations that retry (`do`) waiting reports immediately, or drop them, for the caller's commit."""
    return [context.map.reports(connection).command.put(OutboxCommand(do))]
