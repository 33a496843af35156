"""Test components of two versions at once: a new format is written only after all running processes know it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from typing import Any

import msgspec
import pytest

from headgate.map.places import Map
from headgate.map.records import Formats
from headgate.recipes import codec
from headgate.recipes.codec import Newer, decode, encode
from headgate.recipes.mirror import Mirror
from headgate.services.context import Context, ProcessSettings
from headgate.services.membership import Membership, TooOld, agree_on_format, refuse_formats, written_format
from headgate.store.memory import MemoryBackend
from headgate.store.store import Session, Store
from headgate.store.types import Put
from headgate.testing.clock import run_virtual

PLACE = Map().system.formats


class Note(msgspec.Struct, frozen=True):
    """A record that was a string, and became a list of strings."""

    lines: tuple[str, ...]

    def to_format(self, number: int) -> object:
        return self if number >= 2 else {"text": "\n".join(self.lines)}

    @classmethod
    def of_format(cls, number: int, plain: bytes) -> Note:
        if number >= 2:
            return msgspec.json.decode(plain, type=cls)
        return cls(tuple(msgspec.json.decode(plain)["text"].split("\n")))


NOTE, GOLDEN = Note(("one", "two")), {1: b'{"text":"one\\ntwo"}', 2: b'{"format":2,"lines":["one","two"]}'}


class SimulatedMachines:
    """Simulate processes on one tree."""

    def __init__(self) -> None:
        self.backend = MemoryBackend()
        self.ends: dict[str, BaseException | None] = {}

    @asynccontextmanager
    async def process(self, kind: str, knows: int) -> AsyncIterator[Context]:
        """Run a process for as long as the block lasts; a scheduler agrees with the others."""
        store = Store(self.backend)
        context = Context(store, Mirror(store, Map().path), lambda: 0, ProcessSettings(f"{kind}{knows}"), knows=knows)
        member, stop = Membership(context, kind), asyncio.Event()

        async def body(session: Session) -> None:
            if kind == "scheduler":
                await agree_on_format(context)
            await asyncio.Event().wait()

        watching, serving = asyncio.ensure_future(context.mirror.run()), asyncio.ensure_future(member.serve(body, stop))
        await asyncio.sleep(1)
        try:
            yield context
        finally:
            stop.set()
            (end,) = await asyncio.gather(serving, return_exceptions=True)
            self.ends[context.settings.hostname] = end
            watching.cancel()
            await asyncio.gather(watching, return_exceptions=True)


def virtual(main: Callable[[SimulatedMachines], Coroutine[Any, Any, None]]) -> None:
    run_virtual(main(SimulatedMachines()))


@pytest.fixture
def two_known(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(codec, "FORMAT", 2)


def test_a_new_format_is_used_only_after_the_last_process_that_does_not_know_it_has_ended(two_known: None) -> None:
    async def main(simulated: SimulatedMachines) -> None:
        async with simulated.process("scheduler", 2) as new:
            assert written_format(new) == 2, "alone, it knows itself"
        simulated.backend = MemoryBackend()
        async with simulated.process("scheduler", 1) as one, simulated.process("scheduler", 2) as new:
            async with simulated.process("executor", 1) as old:
                await asyncio.sleep(60)
                assert [written_format(context) for context in (one, new, old)] == [1, 1, 1]
                await new.store.commit([], [Put("/zuul/note", encode(NOTE, written_format(new)))])
            await asyncio.sleep(60)
            assert written_format(new) == 1, "the old scheduler lives"
            entry = await one.store.get("/zuul/note")
            assert entry is not None and entry.value == GOLDEN[1]
        async with simulated.process("scheduler", 2) as new, simulated.process("scheduler", 2):
            assert written_format(new) == 2, "now all know it"
        assert set(simulated.ends.values()) == {None}

    virtual(main)


def test_a_process_that_does_not_know_the_new_format_ends(two_known: None) -> None:
    async def main(simulated: SimulatedMachines) -> None:
        async with simulated.process("scheduler", 2) as new:
            async with simulated.process("executor", 1):
                await asyncio.sleep(60)
                assert written_format(new) == 2
            names = [entry.path for entry in await new.store.list("/zuul/components")]
            assert len(names) == 1 and "scheduler" in names[0]
        end = simulated.ends["executor1"]
        assert isinstance(end, TooOld) and "records in format 2" in str(end) and "upgrade" in str(end)

    virtual(main)


def test_an_announced_format_is_withdrawn_while_an_older_process_runs(two_known: None) -> None:
    async def main(simulated: SimulatedMachines) -> None:
        async with simulated.process("executor", 1) as old:
            await old.store.commit([], [PLACE.put(Formats(1, 2))])  # by a scheduler that has died since
            async with simulated.process("scheduler", 2) as new:
                assert await _formats(new) == Formats(1)
            async with simulated.process("executor", 1):
                pass
        async with simulated.process("scheduler", 2) as new:
            assert await _formats(new) == Formats(2)
        assert set(simulated.ends.values()) == {None}

    virtual(main)


def test_a_process_that_joins_while_a_format_is_announced_waits(two_known: None) -> None:
    async def main(simulated: SimulatedMachines) -> None:
        await Store(simulated.backend).commit([], [PLACE.put(Formats(1, 2))])
        async with simulated.process("executor", 1) as old:
            assert "about to be written" in (await _problem(old))
            await old.store.commit([], [PLACE.put(Formats(1))])
            await asyncio.sleep(60)
            assert [e.path for e in await old.store.list("/zuul/components/executor")]
        assert simulated.ends == {"executor1": None}

    virtual(main)


async def _formats(context: Context) -> Formats:
    entry = await context.store.get(PLACE.path)
    return PLACE.decode(entry.value) if entry else Formats(1)


async def _problem(context: Context) -> str:
    members = await context.store.list("/zuul/components/executor")
    return "" if members else "about to be written"


def test_each_format_is_encoded_as_before(two_known: None) -> None:
    for number, golden in GOLDEN.items():
        assert encode(NOTE, number) == golden and decode(golden, Note) == NOTE


def test_data_of_a_newer_format_is_not_misread() -> None:
    with pytest.raises(Newer, match="format 2; this Headgate knows those up to 1: upgrade it"):
        decode(GOLDEN[2], Note)
    with pytest.raises(Newer):
        decode(b'{"format":7}', Formats)


def test_a_store_in_a_newer_format_is_refused() -> None:
    refuse_formats(Formats(2), 2)
    with pytest.raises(TooOld, match="Nothing was written"):
        refuse_formats(Formats(3), 2)
