"""Test that the repository state of a buildset is read once for all its builds, and again after a failure."""

from __future__ import annotations

import asyncio

import pytest

from headgate.gate.state.works import BuildOutcome, BuildSpec, RepoState
from headgate.map.places import Map
from headgate.ports.work import Contact
from headgate.recipes.codec import encode
from headgate.recipes.mirror import Mirror
from headgate.services.context import Context
from headgate.services.executor import Executor, ExecutorSettings
from headgate.store.memory import MemoryBackend
from headgate.store.store import Store
from headgate.store.types import Entry, Put, Unavailable

PATH = "/zuul/state"
STATE = RepoState(heads={"p": {"refs/heads/master": "c1"}})


class Runner:
    async def run(self, spec: BuildSpec, state: RepoState, cancel: asyncio.Event, contact: Contact) -> BuildOutcome:
        return BuildOutcome(build=spec.build)


class Away(MemoryBackend):
    """Answer reads on request, and fail them while unreachable."""

    def __init__(self) -> None:
        super().__init__()
        self.away = True
        self.requested, self.may_answer = asyncio.Event(), asyncio.Event()

    async def get(self, path: str) -> Entry | None:
        self.requested.set()
        await self.may_answer.wait()
        if self.away:
            raise Unavailable("away")
        return await super().get(path)


async def an_executor() -> tuple[Executor, Away]:
    backend = Away()
    await backend.commit([], [Put(PATH, encode(STATE))])
    store = Store(backend)
    return Executor(Context(store, Mirror(store, Map().path), lambda: 0), Runner(), ExecutorSettings(1)), backend


async def test_a_reading_that_fails_fails_those_who_wait_and_no_later_build() -> None:
    executor, backend = await an_executor()
    waiting = [asyncio.ensure_future(executor._state(PATH)) for _ in range(2)]
    await backend.requested.wait()
    backend.may_answer.set()
    for one in waiting:
        with pytest.raises(Unavailable):
            await one
    backend.away = False
    assert await executor._state(PATH) == STATE


async def test_a_reading_that_fails_after_its_only_build_was_cancelled_fails_no_later_build() -> None:
    executor, backend = await an_executor()
    waiting = asyncio.ensure_future(executor._state(PATH))
    await backend.requested.wait()
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    (reading,) = executor._states.values()
    backend.may_answer.set()
    await asyncio.wait([reading])
    backend.away = False
    assert await executor._state(PATH) == STATE
