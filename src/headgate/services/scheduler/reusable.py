"""Look up in the history which builds succeeded on which inputs, so that they may stand for others.

A turn that asks goes on without the answer; another is taken once it is there.  Where the history cannot be read,
nothing stands for anything.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable

import msgspec

from headgate.gate.model import Build
from headgate.gate.returns.shape import checked
from headgate.gate.returns.values import Unfit
from headgate.gate.reuse import NOTHING
from headgate.gate.waiter import Sought
from headgate.map.keys import KeyStorage
from headgate.map.records import FinishedBuild
from headgate.ports.history import HistoryUnavailable, Passed
from headgate.services.context import Context
from headgate.store.types import Unavailable

log = logging.getLogger("headgate.pipeline")

RECENT_MAX = 2_000
"""Limit of buildsets on their way to the history that are searched."""
SLACK_MS = 60_000
"""Greatest assumed difference between the clocks of two machines."""


class PassedBuilds:
    """Look up reusable builds of one pipeline in one process."""

    def __init__(self, context: Context, tenant: str, stir: Callable[[], None]) -> None:
        """Look up builds of a tenant, and call `stir` to bring about a turn when there are answers."""
        self._context, self._tenant, self._stir = context, tenant, stir
        self._wanted: dict[Sought, None] = {}
        self._answers: dict[Sought, Build] = {}
        self._asking: dict[Sought, asyncio.Future[None]] = {}
        self.answered = 0
        """Number of times that answers arrived."""

    @property
    def asking(self) -> tuple[asyncio.Future[None], ...]:
        """Return the look-ups under way; only the caller ends them."""
        return tuple(self._asking.values())

    def of(self, sought: Sought) -> Build | None:
        """Return what `Beside.passed` says."""
        self._wanted[sought] = None
        return self._answers.get(sought)

    def look(self) -> None:
        """Look up, between turns, all builds that the last turn asked for, and forget others."""
        self._answers = {one: found for one, found in self._answers.items() if one in self._wanted}
        fresh = [one for one in self._wanted if one not in self._answers and one not in self._asking]
        if fresh:
            task = asyncio.ensure_future(self._ask(fresh))
            self._asking |= dict.fromkeys(fresh, task)
        self._wanted = {}

    async def _ask(self, fresh: list[Sought]) -> None:
        try:
            found = await self._found(fresh)
        finally:
            for one in fresh:
                del self._asking[one]
        self._answers |= {one: found.get(one, NOTHING) for one in fresh}
        self.answered += 1
        self._stir()

    async def _found(self, fresh: list[Sought]) -> dict[Sought, Build]:
        known = self._recent({one.inputs for one in fresh})  # first: from there it goes into the history
        try:
            if (history := self._context.history) is not None:
                left = [one.inputs for one in fresh if one.inputs not in known]
                known |= await history.passed(self._tenant, left) if left else {}
            made_ms = await self._made_ms({key for one in fresh if one.inputs in known for key in one.keys})
        except (HistoryUnavailable, Unavailable) as error:
            log.warning("builds that succeeded cannot be looked up, all are run: %s", error)
            # An empty answer counts as NOTHING for each: an unreachable history costs builds, never correctness.
            return {}
        passed_before = {one: known[one.inputs] for one in fresh if one.inputs in known}
        builds = {one: _build(passed) for one, passed in passed_before.items() if self._counts(one, passed, made_ms)}
        return {one: build for one, build in builds.items() if build is not None}

    def _recent(self, wanted: set[str]) -> dict[str, Passed]:
        waiting = self._context.map.history.stream.waiting(self._context.mirror, limit=RECENT_MAX)
        ended = (one.event for one in waiting)
        builds = (build for one in ended if one.tenant == self._tenant for build in one.builds)
        return {build.inputs: _passed(build) for build in builds if build.inputs in wanted and build.inputs}

    async def _made_ms(self, keys: Iterable[tuple[str, str]]) -> dict[tuple[str, str], int | None]:
        """Return the time at which the newest key of each project was made; None if it has none."""
        found: dict[tuple[str, str], int | None] = {}
        for connection, project in keys:
            place = KeyStorage().connection(connection).project(project.partition("/")[2]).secrets
            entry = await self._context.store.get(place.path)
            pairs = place.decode(entry.value).pairs if entry is not None else ()
            found[connection, project] = max((pair.created_ms for pair in pairs), default=None)
        return found

    def _counts(self, sought: Sought, passed: Passed, made_ms: dict[tuple[str, str], int | None]) -> bool:
        """Return whether it is younger than the keys of the job's secrets, and its log and artifacts are still kept."""
        # A build whose log is gone would leave people with a result that they cannot look into.
        kept_ms = self._context.logs_kept_ms
        if kept_ms and passed.end_ms < self._context.now_ms() - kept_ms:
            return False
        made = [made_ms[key] for key in sought.keys]
        # A project without keys has lost the one that the secret was encrypted with, so nothing counts there.
        return all(at is not None and at + SLACK_MS < passed.start_ms for at in made)


def _passed(build: FinishedBuild) -> Passed:
    return Passed(
        uuid=build.uuid,
        start_ms=build.start_ms,
        end_ms=build.end_ms,
        log_url=build.log_url,
        returned=build.returned,
    )


def _build(passed: Passed) -> Build | None:
    """Return nothing of one whose data this version would not take."""
    try:
        checked(passed.returned)
    except Unfit as unfit:
        log.warning("build %s stands for no other: %s", passed.uuid, unfit)
        return None
    return Build(passed.uuid, "", result="SUCCESS", log_url=passed.log_url, data=msgspec.to_builtins(passed.returned))
