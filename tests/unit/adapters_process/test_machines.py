"""Machines of an executor's own."""

from __future__ import annotations

import asyncio

import pytest

from headgate.adapters.nodes.machines import Machine, Machines, NoNode
from headgate.config.model import Node, Nodeset

BIG, SMALL = Nodeset("big", (Node(("one",), "big"),)), Nodeset("small", (Node(("one",), "small"),))
TWO = Nodeset("two", (Node(("one", "other"), "small"),))


async def test_the_first_nodeset_that_the_machines_can_serve_is_taken() -> None:
    machines = Machines((Machine("m", ("small",)),))
    async with machines.take(BIG, TWO, SMALL) as taken:
        assert taken == (SMALL, {"one": {"ansible_host": "m"}}, ("m",))


async def test_a_nodeset_whose_machines_are_busy_is_waited_for() -> None:
    machines, order = Machines((Machine("b", ("big",)), Machine("s", ("small",)))), list[str]()

    async def one(name: str) -> None:
        async with machines.take(BIG, SMALL) as taken:
            order.append(f"{name} {taken.hosts['one']['ansible_host']}")
            await asyncio.sleep(0)

    await asyncio.gather(one("first"), one("second"))
    assert order == ["first b", "second b"]


async def test_when_no_nodeset_can_be_served_all_are_named() -> None:
    machines = Machines((Machine("m", ("tiny",)),))
    with pytest.raises(NoNode, match="labels of the nodeset: big; nor of small"):
        async with machines.take(BIG, TWO):
            pass


async def test_without_machines_every_node_is_this_one() -> None:
    async with Machines().take(BIG, SMALL) as taken:
        assert taken == (BIG, {"one": {"ansible_connection": "local"}}, ())


async def test_a_machine_that_is_kept_goes_to_nobody_until_it_is_given_back() -> None:
    machines = Machines((Machine("a", ("small",)), Machine("b", ("small",))))
    async with machines.take(SMALL) as taken:
        assert taken.machines == ("a",)
        await machines.keep(["a"])
    async with machines.take(SMALL) as other:
        assert other.machines == ("b",)

        async def next_one() -> tuple[str, ...]:
            async with machines.take(SMALL) as found:
                return found.machines

        waiting = asyncio.ensure_future(next_one())
        await asyncio.sleep(0)
        assert not waiting.done()
        await machines.keep([])
        assert await waiting == ("a",)
