"""Keep what a connection sees, like its runner."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager

from headgate.adapters.forges.gerrit.driver import GerritForge
from headgate.config.operator.model import TenantProject
from headgate.gate.state.change import ChangeState, EventKind, TriggerEvent
from headgate.ports.forge import Sighting
from headgate.testing.clock import DEADLINE_S


class Seen:
    """Hold the change states, branches, tags and events of one connection."""

    def __init__(self) -> None:
        self.known: dict[str, ChangeState] = {}
        self.heads: dict[str, dict[str, str]] = {}
        self.refs: dict[str, dict[str, str]] = {}
        self.problems: dict[str, str] = {}
        self.events: list[TriggerEvent] = []
        self.answered: list[str] = []
        self._stirred = asyncio.Event()

    def take(self, sighting: Sighting) -> None:
        self.known |= {change_state.change.key: change_state for change_state in sighting.change_states}
        self.heads |= sighting.heads
        for project, refs in sighting.refs.items():
            there = {**self.refs.get(project, {}), **refs}
            self.refs[project] = {ref: object for ref, object in there.items() if object}
        self.problems |= sighting.problems
        self.events += sighting.events
        self.answered += sighting.answered
        self._stirred.set()

    async def until(self, so: Callable[[], object]) -> None:
        """Wait until the condition holds."""
        async with asyncio.timeout(DEADLINE_S):
            while not so():
                self._stirred.clear()
                await self._stirred.wait()

    def reported(self, event: str, number: int) -> list[TriggerEvent]:
        """Return the events of a change under Gerrit's names."""
        return [
            one
            for one in self.events
            if one.happening is not None and one.happening.event == event and one.change.number == str(number)
        ]

    def kinds(self, number: int) -> list[EventKind]:
        return [one.kind for one in self.events if one.change.number == str(number)]


@asynccontextmanager
async def watched(forge: GerritForge, projects: Mapping[str, TenantProject], seen: Seen) -> AsyncIterator[None]:
    """Poll the present state and follow events inside the context."""
    forge.look_at(projects)

    async def watch() -> None:
        async for sighting in forge.sightings(seen.known, seen.heads, seen.refs):
            seen.take(sighting)

    task = asyncio.ensure_future(watch())
    try:
        waiting = asyncio.ensure_future(seen.until(lambda: all(project in seen.heads for project in projects)))
        await asyncio.wait({task, waiting}, return_when=asyncio.FIRST_COMPLETED)
        if task.done():
            task.result()
        await waiting
        yield
        if task.done():
            task.result()
    finally:
        task.cancel()
        await asyncio.wait({task})
