"""Stop a process in the middle of a commit until its session is over, and check its late request and its first
actions."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from contextlib import aclosing
from functools import partial

from headgate.store.types import Backend, Entry, EntryChanged, EntryGone, Snapshot
from tests.faults.fleet import LOOK_S, SESSION_S, Component, Fleet
from tests.waiting import nothing_happens, slow, until

CATCH_S = 5.0
"""Longest wait for a commit under a lock: the work may end before one is sent."""
WORK = {"scheduler": b"/item/", "merger": b"/zuul/merger/", "executor": b"/zuul/executor/"}
"""Part of the data that is sent to the store for the work under a lock."""


async def freeze(kind: str, fleet: Fleet) -> str:
    """Freeze a component; return what was tried, for people. Neither its earlier requests nor its actions until it
    has joined again may change the store: all others are stopped meanwhile, so every change is its own."""
    backend = await fleet.engine.open()
    try:
        victim = await fleet.busy(kind)
        caught = await _caught(victim, WORK[kind])
        victim.freeze()
        earlier = await _own(backend, victim)
        await until("its session is over", partial(_away, backend, victim), every_s=LOOK_S)
        await slow(SESSION_S / 4)  # others take over
        others = [component for component in fleet.components if component is not victim]
        for other in others:
            other.freeze()
        try:
            late, joined = await _late(backend, victim)
        finally:
            for other in others:
                other.thaw()
        assert not late, f"{victim.name} wrote although its session was over: {late}"
        assert joined not in earlier, f"{victim.name} went on with a session that was over: {fleet.log(victim)}"
        return f"{'a commit' if caught else 'nothing'} under way; none took effect late"
    finally:
        for line in victim.lines:
            line.restore()
        victim.thaw()
        await backend.close()


async def _away(backend: Backend, component: Component) -> bool:
    """Return whether no entry of the registry is the component's own."""
    return not await _own(backend, component)


async def _own(backend: Backend, component: Component) -> set[str]:
    """Return the paths of the component's entries of the registry: each session has another one."""
    listed = await backend.list(f"/zuul/components/{component.kind}")
    return {entry.path for entry in listed if _of(component, entry)}


def _of(component: Component, entry: Entry) -> bool:
    return entry.path.startswith(f"/zuul/components/{component.kind}/") and (
        json.loads(entry.value)["pid"] == component.pid
    )


async def _caught(victim: Component, work: bytes) -> bool:
    """Return whether data for its work has left the component, and has not arrived."""
    try:
        async with asyncio.timeout(CATCH_S):
            while not any(work in line.withheld for line in victim.lines):
                for line in victim.lines:
                    line.restore()
                await slow(0.01)
                for line in victim.lines:
                    line.mute()
                await until("a commit is withheld", lambda: any(line.withheld for line in victim.lines), every_s=0.01)
    except TimeoutError:
        return False
    return True


async def _late(backend: Backend, victim: Component) -> tuple[list[str], str]:
    """Return the changes from the arrival of its commit until it has joined again, and its new entry of the
    registry."""
    before: Sequence[Entry] = ()

    async def still() -> bool:
        nonlocal before
        before, last = await backend.list("/zuul"), before
        return before == last

    async def written() -> list[str]:
        return _written(before, await backend.list("/zuul"))

    await until("what others had sent has come", still, every_s=LOOK_S)
    for line in victim.lines:
        line.restore()
    await until("it arrives", lambda: not any(line.withheld for line in victim.lines), every_s=0.01)
    await nothing_happens(written, for_s=LOOK_S)
    leased = {entry.path for entry in before if entry.lease}
    found = list[str]()
    watch = backend.watch("/zuul")
    async with aclosing(watch):  # type: ignore[type-var]  # an async generator behind its protocol
        async for change in watch:
            match change:
                case Snapshot(entries):
                    found += _written(before, entries)
                    victim.thaw()
                case EntryChanged(entry) if _of(victim, entry):
                    return found, entry.path
                case EntryChanged(entry):
                    found.append(entry.path)
                case EntryGone(path) if path not in leased:
                    found.append(path)
    raise AssertionError("a watch ends with an error")


def _written(before: Sequence[Entry], after: Sequence[Entry]) -> list[str]:
    """Return the paths that differ; ignore sessions of stopped components that end meanwhile."""
    gone = [entry.path for entry in set(before) - set(after) if not entry.lease]
    return sorted({*gone, *(entry.path for entry in set(after) - set(before))})
