"""An ear at the stream: what it hears is wanted to be looked at, and that it hears nothing any more is noticed."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Collection

from headgate.adapters.forges.gerrit import stream as streaming
from headgate.adapters.forges.gerrit.server import Server
from headgate.adapters.forges.gerrit.stream import StreamDead
from headgate.adapters.forges.gerrit.watchlist import RETRY_MAX_S, GerritPace, GerritWatchList
from headgate.base.tasks import run_until

log = logging.getLogger("headgate.gerrit")


class Ear:
    """Listen to the stream of one server."""

    def __init__(
        self, server: Server, wanted: GerritWatchList, projects: Collection[str], pace: GerritPace, program: str = "ssh"
    ) -> None:
        """Make a listener; `program` is the ssh client."""
        self._server, self._wanted, self._projects = server, wanted, frozenset(projects)
        self._pace, self._program = pace, program
        self.listens = False
        self.problem = ""
        """Why the stream does not work, for people; empty while it works."""
        self._deaf = asyncio.Event()
        self._hinted: dict[int, float] = {}
        """Change -> when the stream last mentioned it, in monotonic seconds."""
        self._untold: dict[int, float] = {}
        """Change -> when a look found something new that the stream had not reported, in monotonic seconds."""

    def found(self, numbers: Collection[int]) -> None:
        """Note that a look found something new at these changes that the stream had not announced."""
        at_s = time.monotonic()
        if self.listens:
            fresh = {n for n in numbers if at_s - self._hinted.get(n, float("-inf")) > self._pace.silent_s}
            self._untold |= {number: self._untold.get(number, at_s) for number in fresh}
        self._hinted = {n: s for n, s in self._hinted.items() if at_s - s <= self._pace.silent_s}

    def doubt_s(self) -> float | None:
        """Return how long to wait before a stream that missed something counts as dead; None if it missed nothing."""
        if not self._untold:
            return None
        left_s = min(self._untold.values()) + self._pace.silent_s - time.monotonic()
        if left_s <= 0:
            self._untold.clear()
            self._deaf.set()
            return None
        return left_s

    async def listen(self) -> None:
        """Listen until cancelled."""
        failures = 0
        while True:
            self._deaf.clear()
            self._untold.clear()
            began_s, well = time.monotonic(), None
            try:
                async with streaming.stream(self._server, self._program) as hints:
                    self.listens = True
                    well = asyncio.get_running_loop().call_later(self._pace.silent_s, self._well)
                    await run_until(self._deaf, self._hear(hints))
                why = "the stream was silent though there was something to tell"
            except StreamDead as dead:
                why = str(dead)
            finally:
                self.listens = False
                if well is not None:
                    well.cancel()
            # A stream that lasted resets the pauses; one that is accepted and dropped at once does not.
            failures = 0 if time.monotonic() - began_s > RETRY_MAX_S else failures + 1
            text = f"its events are not told, so that it is looked at every now and then: {why}"
            if self.problem != text:
                log.error("events of %s are not told, it is looked instead: %s", self._server.ssh_server, why)
            self.problem = text
            self._wanted.stirred.set()
            await asyncio.sleep(self._pace.retry_s(failures))

    def _well(self) -> None:
        """Note that the stream works."""
        if self.problem:
            log.info("events of %s are told again", self._server.ssh_server)
            self.problem = ""
            self._wanted.stirred.set()

    async def _hear(self, hints: AsyncIterator[streaming.GerritHint]) -> None:
        loop = asyncio.get_running_loop()
        async for hint in hints:
            self._well()
            if hint.number:
                self._hinted[hint.number] = time.monotonic()
                self._untold.pop(hint.number, None)
            project = self._server.project(hint.project) if hint.project else ""
            if project and project not in self._projects:
                continue
            if self._server.replication_delay_s:
                # git may read from a replica that receives the commits only some time after the event.
                loop.call_later(self._server.replication_delay_s, self._wanted.add, hint.number, project)
            else:
                self._wanted.add(hint.number, project)
