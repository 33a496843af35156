"""Test which numbers the networks of builds get."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest

from headgate.adapters.process.confinement.users import NumberClaim, claim_any
from headgate.adapters.process.network.veth import Veth
from headgate.adapters.process.processes import ProcessKeeper


class Keeper(ProcessKeeper):
    """Run no program: record created interfaces, and fail or wait on request."""

    def __init__(self) -> None:
        super().__init__()
        self.interfaces, self.fails = list[str](), ""
        self.removing, self.go_on = asyncio.Event(), asyncio.Event()
        self.go_on.set()

    async def program(self, spaces: Any, command: Any, stdin: str = "") -> str:
        words = stdin.split()
        if words[:2] == ["link", "del"]:
            self.removing.set()
            await self.go_on.wait()
            self.interfaces.remove(words[2])
        elif words[:2] == ["link", "add"]:
            self.interfaces.append(words[words.index("name") + 1])
        if self.fails and self.fails in stdin:
            raise OSError(f"{self.fails}: refused")
        return ""


@pytest.fixture
def number() -> Iterator[NumberClaim]:
    found = claim_any("test-network", 0, 256)
    assert found is not None
    yield found
    found.close()


@pytest.fixture
async def veth(number: NumberClaim) -> Veth:
    made = Veth(Keeper())
    made._claim = number
    return made


def keeper_of(veth: Veth) -> Keeper:
    assert isinstance(veth._keeper, Keeper)
    return veth._keeper


async def test_a_network_that_cannot_be_made_leaves_no_interface_to_the_next(veth: Veth) -> None:
    keeper = keeper_of(veth)
    keeper.fails = "route add"
    with pytest.raises(OSError, match="refused"):
        await veth.add(0)
    assert not keeper.interfaces
    keeper.fails = ""
    assert await veth.add(0) == 0


async def test_a_number_is_free_once_its_interface_is_deleted_however_often_that_is_cancelled(veth: Veth) -> None:
    keeper = keeper_of(veth)
    used = await veth.add(0)
    keeper.go_on.clear()
    task = asyncio.ensure_future(veth.remove(used))
    await keeper.removing.wait()
    for _ in range(2):
        task.cancel()
        await asyncio.wait({task}, timeout=0)
    assert not task.done() and await veth.add(0) != used
    keeper.go_on.set()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert await veth.add(0) == used and len(keeper.interfaces) == 2
