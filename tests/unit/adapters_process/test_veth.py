"""Test which numbers the networks of builds get."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Iterator
from contextlib import AsyncExitStack
from typing import Any

import pytest

from headgate.adapters.process.confinement.users import NumberClaim, claim_any
from headgate.adapters.process.network.veth import Veth
from headgate.adapters.process.processes import Errand, ProcessKeeper
from headgate.adapters.process.sandbox import NOWHERE_ELSE, Spaces


class Keeper(ProcessKeeper):
    """Make no network: record which interfaces there would be, and fail or wait on request."""

    def __init__(self) -> None:
        super().__init__()
        self.interfaces, self.fails = list[str](), False
        self.removing, self.go_on = threading.Event(), threading.Event()
        self.go_on.set()

    async def errand(self, spaces: Spaces = NOWHERE_ELSE, **request: Any) -> Errand:
        self.interfaces.append(request["out"]["name"])
        if self.fails:
            raise OSError("route: refused")
        return Errand("", os.open(os.devnull, os.O_RDONLY))

    def remove(self, name: str) -> None:
        self.removing.set()
        self.go_on.wait()
        self.interfaces.remove(name)


@pytest.fixture
def number() -> Iterator[NumberClaim]:
    found = claim_any("test-network", 0, 256)
    assert found is not None
    yield found
    found.close()


@pytest.fixture
def keeper() -> Keeper:
    return Keeper()


@pytest.fixture
async def veth(number: NumberClaim, keeper: Keeper) -> Veth:
    made = Veth(keeper, keeper.remove)
    made._claim = number
    return made


async def test_a_network_that_cannot_be_made_leaves_no_interface_to_the_next(veth: Veth, keeper: Keeper) -> None:
    keeper.fails = True
    with pytest.raises(OSError, match="refused"):
        async with veth.opened():
            pass
    assert not keeper.interfaces
    keeper.fails = False
    async with veth.opened():
        assert [name.partition("-")[2] for name in keeper.interfaces] == ["0"]


async def test_a_number_is_free_once_its_interface_is_deleted_however_often_that_is_cancelled(
    veth: Veth, keeper: Keeper
) -> None:
    leave, inside = asyncio.Event(), asyncio.Event()

    async def build() -> None:
        async with veth.opened():
            inside.set()
            await leave.wait()

    task = asyncio.ensure_future(build())
    await inside.wait()
    [used] = keeper.interfaces
    keeper.go_on.clear()
    leave.set()
    await asyncio.to_thread(keeper.removing.wait)
    for _ in range(2):
        task.cancel()
        await asyncio.wait({task}, timeout=0)
    assert not task.done()
    async with AsyncExitStack() as others:
        await others.enter_async_context(veth.opened())
        assert len(set(keeper.interfaces)) == 2, "the first one is still there"
        keeper.go_on.set()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert used not in keeper.interfaces
        await others.enter_async_context(veth.opened())
        assert used in keeper.interfaces
    assert not keeper.interfaces


async def test_a_network_that_was_made_for_a_cancelled_build_is_closed(veth: Veth, keeper: Keeper) -> None:
    open_before = len(os.listdir("/proc/self/fd"))

    async def build() -> None:
        async with veth.opened():
            raise AssertionError("it was cancelled before")

    task = asyncio.ensure_future(build())
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert not keeper.interfaces and len(os.listdir("/proc/self/fd")) == open_before
