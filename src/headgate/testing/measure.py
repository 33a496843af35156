"""Measure what one change costs: store requests and bytes, from its approval until it has landed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from headgate.store.memory import MemoryBackend
from headgate.store.types import Backend, Entry
from headgate.testing.gate import gate
from headgate.testing.repositories import Repositories

TENANTS = """
- tenant:
    name: bench
    source:
      local:
        config-projects: [config]
        untrusted-projects: [code]
"""
_CONFIG = """
- pipeline:
    name: gate
    manager: dependent
    window: WINDOW
    trigger: {local: [{event: change-approved}]}
    require: {local: {approved: true}}
    success: {local: {land: true}}
    failure: {local: {}}
- job: {name: base, parent: null, run: jobs/unit}
"""


@dataclass(frozen=True, slots=True)
class ItemCost:
    """Sum up the cost of one item: events, merging, builds on both sides, landing, history."""

    jobs: int
    commits: int
    reads: int
    written_bytes: int

    @property
    def requests(self) -> int:
        return self.commits + self.reads


def configuration(jobs: int, window: int = 20) -> str:
    """Return a configuration. `window` is the number of items of the queue under test at a time."""
    names = [f"job{n}" for n in range(jobs)]
    defined = "".join(f"- job: {{name: {name}}}\n" for name in names)
    pipeline = _CONFIG.replace("WINDOW", str(window))
    return f"{pipeline}{defined}- project: {{name: code, gate: {{jobs: [{', '.join(names)}]}}}}\n"


async def cost_of_item(
    root: Path, jobs: int, backend: Backend | None = None, mark: Callable[[], None] = lambda: None
) -> ItemCost:
    """Land one change with this many jobs that take no time. `mark` is called where counting begins and ends."""
    repositories = Repositories(root)
    repositories.create("config", {"zuul.yaml": configuration(jobs), "jobs/unit": "#!/bin/sh\n"})
    repositories.create("code", {"README": "x\n"})
    async with gate(root, repositories.hub, backend or MemoryBackend(), TENANTS) as running:
        counts, mirror = running.context.store.counts, running.context.mirror
        repositories.propose("code", "one", {"a": "1\n"})
        place = running.context.map.cache.connection("local").cache.path
        while not mirror.under(place):
            await mirror.moved(mirror.moves)
        mark()
        before = (counts.commits, counts.reads, counts.written_bytes)
        repositories.approve("code", "one")
        await running.history.result_of("one", "gate")
        root_of_events = running.context.map.events.path
        while mirror.under(running.context.map.history.queue.path) or _waiting(mirror.under(root_of_events)):
            await mirror.moved(mirror.moves)
        mark()
        after = (counts.commits, counts.reads, counts.written_bytes)
        commits, reads, written = (b - a for a, b in zip(before, after, strict=True))
        return ItemCost(jobs, commits, reads, written)


def _waiting(entries: Sequence[Entry]) -> bool:
    return any("/election" not in entry.path for entry in entries)
