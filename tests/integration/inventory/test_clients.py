"""Test programs with our client against the service; the page of the inventory has those with generated code."""

from __future__ import annotations

import asyncio

import pytest

from headgate.inventory.wire import inventory_pb2 as pb
from headgate.stock import Stock, StockRefused
from tests.integration.inventory.served import ALICE, served


async def test_the_client_searches_changes_watches_and_leases() -> None:
    async with served() as client:
        await client.SetPartition(partition=pb.Partition(name="site"))
        await asyncio.to_thread(_walk, client.target)


def _walk(address: str) -> None:
    with Stock.connect(address, **ALICE) as stock, Stock.connect(address, **{**ALICE, "user": "bob"}) as other:
        for number in range(30):
            tags = ("gpu",) if number == 7 else ()
            stock.create("runm.machine", f"m{number:02}", {"memory": str(number)}, tags)
        assert sorted(one.name for one in stock.search("memory>=28", "name=m03")) == ["m03", "m28", "m29"]
        by_number = stock.search("type=runm.machine", sort=["-numbers.memory"], limit=2)
        assert [one.name for one in by_number] == ["m29", "m28"]
        with pytest.raises(StockRefused, match="ALREADY_EXISTS") as refused:
            stock.create("runm.machine", "m01")
        assert refused.value.number == 6
        with stock.lease("tag:gpu", hours=0.5, note="a test") as lease:
            assert (lease.name, lease.state) == ("m07", pb.Lease.HELD)
            with pytest.raises(TimeoutError, match="not available within 1 s"), other.lease("tag:gpu", wait_s=1):
                raise AssertionError("nobody has what another has")
            assert len(other.call("ListLeases").leases) == 1, "who gave up waits no longer"
        with other.lease("tag:gpu") as lease:
            assert lease.user == "bob"
        assert not stock.call("ListLeases").leases
        event = next(stock.watch(revision=1))
        assert event.changes[0].new.name == "m00"
        with pytest.raises(StockRefused, match="at most 100"):
            next(stock.watch(any=[pb.Filter(name="x")] * 101))
