"""Test how often a change is handed over, from its approval to its landing."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

import pytest

from headgate.store.memory import MemoryBackend
from headgate.store.types import Append, At, Conflict, Entry, Op
from headgate.testing.backends import WrappedBackend
from headgate.testing.gate import MEASURED_TENANTS, gate, measured_configuration
from headgate.testing.repositories import Repositories
from tests.waiting import until

HANDED = re.compile(r"/zuul/((?:events/.+/queue|(?:merger|executor)/(?:.+/)?requests)/[^/]+)")
"""An event in the queue of another component, or a request that another one claims."""
LANDING = "merger/requests"


class Handovers(WrappedBackend):
    """Record what components hand to each other: each such place once, when it is first written."""

    def __init__(self) -> None:
        super().__init__(MemoryBackend())
        self.seen = dict[str, None]()

    async def commit(self, checks: Sequence[At], ops: Sequence[Op]) -> Sequence[Entry | None]:
        written = await super().commit(checks, ops)
        found = (HANDED.fullmatch(entry.path) for entry in written if entry is not None)
        self.seen.update((match[1], None) for match in found if match is not None)
        return written

    def after(self, before: int) -> list[str]:
        """Return the queues that something was handed to since the first `before` handovers."""
        return [path.rpartition("/")[0] for path in list(self.seen)[before:]]


class Raced(WrappedBackend):
    """Let another writer be faster, once, than the turn that ends a build."""

    raced = False

    async def commit(self, checks: Sequence[At], ops: Sequence[Op]) -> Sequence[Entry | None]:
        paths = {op.path for op in ops if not isinstance(op, Append)}
        if not self.raced and any("/gate/item/" in path and "/build/" in path for path in paths):
            self.raced = True
            raise Conflict(At("/zuul/other", 1))
        return await super().commit(checks, ops)


async def test_a_turn_that_loses_a_race_is_taken_again_without_a_message(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    raced, repositories = Raced(MemoryBackend()), Repositories(tmp_path)
    repositories.create("config", {"zuul.yaml": measured_configuration(1), "jobs/unit": "#!/bin/sh\n"})
    repositories.create("code", {"README": "x\n"})
    caplog.set_level("INFO", logger="headgate")
    async with gate(tmp_path, repositories.hub, raced, MEASURED_TENANTS) as running:
        repositories.propose("code", "one", {"a": "1\n"})
        repositories.approve("code", "one")
        assert (await running.history.result_of("one", "gate")).result == "SUCCESS"
    assert raced.raced and not [line for line in caplog.messages if "/zuul/" in line]


async def test_a_change_lands_after_at_most_nine_hops(tmp_path: Path) -> None:
    handovers, repositories = Handovers(), Repositories(tmp_path)
    repositories.create("config", {"zuul.yaml": measured_configuration(1), "jobs/unit": "#!/bin/sh\n"})
    repositories.create("code", {"README": "x\n"})
    async with gate(tmp_path, repositories.hub, handovers, MEASURED_TENANTS) as running:
        repositories.propose("code", "one", {"a": "1\n"})
        await until("it is proposed in the pipeline", lambda: "/pipelines/" in "".join(handovers.after(0)))
        before, head = len(handovers.seen), repositories.head("code")
        repositories.approve("code", "one")
        await running.history.result_of("one", "gate")
        assert repositories.head("code") != head
    hops = handovers.after(before)
    # The push is itself an event of the branch, which is handled separately.
    entered = next(n for n, queue in enumerate(hops) if queue.endswith("/gate/trigger/queue")) + 1
    hops = hops[:entered] + [
        queue for queue in hops[entered:] if "/connection/" not in queue and "/trigger/" not in queue
    ]
    assert hops.count(LANDING) == 2, "merged once for the test, and once to land"
    landed = len(hops) - hops[::-1].index(LANDING)
    assert len(hops[:landed]) + 1 <= 9, hops
