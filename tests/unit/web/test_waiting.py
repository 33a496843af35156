"""Test the reasons shown for requested builds that wait."""

from __future__ import annotations

import asyncio

from headgate.map.inventory.nodes import NodeAnswer, NodeRequest
from headgate.map.places import Map
from headgate.map.records import ComponentFacts, ComponentRecord
from headgate.recipes.codec import encode
from headgate.recipes.mirror import Mirror
from headgate.recipes.requestforms import Request
from headgate.services.context import Context
from headgate.services.nodes.requester import IMAGE
from headgate.store.memory import MemoryBackend
from headgate.store.store import Store
from headgate.store.types import Put
from headgate.testing.clock import run_virtual
from headgate.web.itemshapes import awaited


def test_an_executor_then_nodes_then_nothing() -> None:
    async def main() -> None:
        store = Store(MemoryBackend())
        context = Context(store, Mirror(store, Map().path), lambda: 0)
        task = asyncio.ensure_future(context.mirror.run())
        await context.mirror.ready()
        for zone, id in (("", "one"), ("east", "two")):
            requests = context.zone(zone)
            await store.commit([], requests.submit(Request(id), b"{}"))
            await context.mirror.reached(f"{requests.places.requests}/{id}")
        assert awaited(context) == {
            "one": "an executor: none is running",
            "two": "an executor of zone east: none is running",
        }
        nodes = context.map.nodes
        async with store.session("executor") as session:
            found = context.builds.find("one", context.mirror)
            assert found is not None and await context.builds.claim(found, session, {}) is not None
            request = NodeRequest("r", "t", "p", "one", "unit", (("a", "big"), ("b", "small")), "here")
            (put,) = await store.commit([], [Put(nodes.requests("r").record.path, encode(request))])
            assert put is not None
            await context.mirror.reached(put.path, put.version)
            assert awaited(context) == {"one": "nodes: big, small", "two": "an executor of zone east: none is running"}
            (put,) = await store.commit([], [nodes.answers("r").record.put(NodeAnswer("r"))])
            assert put is not None
            await context.mirror.reached(put.path, put.version)
            assert awaited(context) == {"two": "an executor of zone east: none is running"}
        task.cancel()

    run_virtual(main())


def test_whether_an_executor_could_run_it_is_reported() -> None:
    async def main() -> None:
        store = Store(MemoryBackend())
        context = Context(store, Mirror(store, Map().path), lambda: 0)
        task = asyncio.ensure_future(context.mirror.run())
        await context.mirror.ready()
        async with store.session("executor") as session:
            record = ComponentRecord("here", "executor", data=ComponentFacts(zone="east"))
            path = f"{context.map.components.executor.path}/here-0000000001"
            (put,) = await store.commit([], [Put(path, encode(record), session.lease)])
            assert put is not None
            await context.mirror.reached(put.path, put.version)
            for zone, id, meta in (("", "one", {}), ("east", "two", {}), ("east", "three", {IMAGE: "debian"})):
                requests = context.zone(zone)
                await store.commit([], requests.submit(Request(id, meta=meta), b"{}"))
                await context.mirror.reached(f"{requests.places.requests}/{id}")
            assert awaited(context) == {
                "one": "an executor: none is running",
                "two": "an executor of zone east",
                "three": "an executor of zone east that runs containers, for the image debian: none is running",
            }
        task.cancel()

    run_virtual(main())
