"""Define the faults of a fleet at work, and what must hold after any of them."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from headgate.testing.repositories import run_git
from tests.faults import late
from tests.faults.fleet import ENDED_S, PROJECTS, SESSION_S, Change, Component, Fleet
from tests.waiting import slow

Fault = Callable[[Fleet], Awaitable[str | None]]
"""Cause a fault; return what was tried, if its name does not say everything."""
BEFORE = 3
"""Number of changes that have ended when the fault comes, in the middle of the work."""
REST_S = 150.0
"""The safety net runs once a minute, and removes what it found twice."""


async def _kill(kind: str, fleet: Fleet) -> None:
    """Kill a component at once; start another in its place after a while."""
    victim = await fleet.busy(kind)
    await victim.kill()
    await slow(SESSION_S / 2)
    victim.start()


async def _kill_every(kind: str, fleet: Fleet) -> None:
    for victim in fleet.of(kind):
        await victim.kill()
    for victim in fleet.of(kind):
        victim.start()


async def _kill_leader(fleet: Fleet) -> None:
    await fleet.engine.kill_leader()
    await slow(2)
    await fleet.engine.mend()


async def _cut(kind: str, seconds: float, fleet: Fleet) -> None:
    await _away(await fleet.busy(kind), Component.cut, Component.mend, seconds)


async def _stall(kind: str, seconds: float, fleet: Fleet) -> None:
    """Lose all packets of a component without any error."""
    await _away(await fleet.busy(kind), Component.stall, Component.mend, seconds)


async def _full_disk(fleet: Fleet) -> None:
    """Fill an executor's disk: it stops accepting builds, others do its work, and later it accepts builds again."""
    victim = fleet.components[-1]
    assert victim.disk is not None, fleet.no_disk
    await asyncio.to_thread(victim.disk.fill)
    why = await fleet.accepts(victim, False)
    assert "disk" in why, why
    await slow(2)
    victim.disk.empty()
    assert await fleet.accepts(victim, True) == ""


async def _away(
    victim: Component, begin: Callable[[Component], None], end: Callable[[Component], None], seconds: float
) -> None:
    begin(victim)
    await slow(seconds)
    end(victim)


KIND_NAMES = ("scheduler", "merger", "executor")
LONG_S = 1.5 * SESSION_S
FAULTS: dict[str, Fault] = {
    "nothing": lambda fleet: asyncio.sleep(0),
    **{f"kill -9 of a {kind}": partial(_kill, kind) for kind in KIND_NAMES},
    **{f"kill -9 of every {kind}": partial(_kill_every, kind) for kind in KIND_NAMES},
    "kill -9 of the store's leader": _kill_leader,
    **{f"{kind} cut off for 2 s": partial(_cut, kind, 2.0) for kind in KIND_NAMES},
    **{f"{kind} cut off past its session": partial(_cut, kind, LONG_S) for kind in KIND_NAMES},
    **{f"{kind} stopped past its session": partial(late.freeze, kind) for kind in KIND_NAMES},
    "full disk on an executor": _full_disk,
    "packets of a scheduler lost past its session": partial(_stall, "scheduler", LONG_S),
}  # fmt: skip
SHORT = {
    "zookeeper": ("kill -9 of the store's leader", "full disk on an executor"),
    "etcd": ("kill -9 of the store's leader", "scheduler stopped past its session"),
}
"""Faults that `make test` tries on each kind of store, besides the kills of `tests/e2e/test_kill.py`; `make soak`
tries all."""


@dataclass(frozen=True, slots=True)
class Outcome:
    fault: str
    changes: int
    landed: int
    failed: int
    ended_s: float
    """Seconds from the last approval until the last change ended."""
    rest_s: float
    """Seconds from then on until no remains of the work were left."""
    left: tuple[str, ...]
    """Entries that were left last."""
    tried: str = ""
    """Details of what was tried."""
    untried: str = ""
    """Reason for which the fault was not tried."""


async def suffer(fleet: Fleet, name: str, count: int) -> Outcome:
    """Run a gate of this many changes, with the fault in the middle. Raise AssertionError if an invariant is
    violated."""
    if fleet.no_disk and FAULTS[name] is _full_disk:
        return Outcome(name, 0, 0, 0, 0.0, 0.0, (), untried=fleet.no_disk)
    merged = {project: len(fleet.merges(project)) for project in PROJECTS}
    changes = await fleet.propose(name.replace(" ", "-").replace("'", ""), count)
    begun_s = time.monotonic()
    try:
        async with asyncio.timeout(ENDED_S):
            await fleet.ended(changes, BEFORE)
            tried = await FAULTS[name](fleet) or ""
            await fleet.ended(changes)
    except TimeoutError:
        waiting = [change.topic for change in changes if not change.note]
        logs = "\n".join([*(f"--- {one.name}\n{fleet.log(one)}" for one in fleet.components), *fleet.engine.logs()])
        raise AssertionError(f"{name}: not ended in {ENDED_S} s: {waiting}\n{logs}") from None
    ended_s = time.monotonic()
    try:
        async with asyncio.timeout(REST_S):
            await fleet.at_rest()
    except TimeoutError:
        raise AssertionError(f"{name}: left behind: {fleet.left}") from None
    rest_s = time.monotonic()
    _hold(fleet, name, changes, merged)
    landed = sum(change.landed for change in changes)
    return Outcome(name, count, landed, count - landed, ended_s - begun_s, rest_s - ended_s, tuple(fleet.left), tried)


def _hold(fleet: Fleet, name: str, changes: list[Change], merged: dict[str, int]) -> None:
    """Assert that all landed or were rejected for a true reason, none twice, and that heads are green."""
    wrong = [c.topic for c in changes if c.landed == c.broken or (c.broken and not c.failed)]
    assert not wrong, f"{name}: {wrong}: {[c.note for c in changes if c.topic in wrong]}"
    for project in PROJECTS:
        merges = fleet.merges(project)
        assert len(merges) == len(set(merges)), f"{name}: {project} has a merge twice: {merges}"
        landed = sum(change.landed for change in changes if change.project == project)
        assert len(merges) - merged[project] == landed, f"{name}: {project}: {merges}"
        files = run_git("ls-tree", "--name-only", "master", at=fleet.repositories.hub / project).splitlines()
        assert "BROKEN" not in files, f"{name}: the head of {project} is not green"
        for change in changes:
            assert (f"{change.topic}.txt" in files) == (change.landed and change.project == project)


async def on_the_map(fleet: Fleet) -> None:
    """Assert that the store holds nothing that the map does not know."""
    url = fleet.engine.url(fleet.engine.ports)
    command = [str(Path(sys.executable).with_name("headgate")), "map", "check", "--store", url]
    checked = await asyncio.to_thread(subprocess.run, command, capture_output=True, text=True, check=False)
    assert checked.returncode == 0, checked.stdout + checked.stderr
