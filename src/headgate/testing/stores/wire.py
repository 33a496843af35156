"""Measure the requests on the wire for single steps: of all processes that take part, without keep-alives."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass

from headgate.base.ids import fresh
from headgate.gate.state.works import BuildEnded, BuildOutcome
from headgate.map.places import Map
from headgate.recipes.mirror import Mirror
from headgate.recipes.requestforms import Owner, Request
from headgate.recipes.stream import consumed
from headgate.services.contact import ClaimContact, results
from headgate.services.context import Context
from headgate.store.etcd.backend import EtcdBackend
from headgate.store.store import Session, Store
from headgate.store.types import At, Delete, Put
from headgate.store.zookeeper.backend import ZooKeeperBackend
from headgate.testing.servers.databases import Etcd, ZooKeeper, chroot
from headgate.testing.servers.faults import proxy

Networked = ZooKeeperBackend | EtcdBackend
Open = Callable[[int], Awaitable[Networked]]
"""Opens a backend through the port of the server, or of a proxy in front of it; the tree is the same each time."""
META = {"tenant": "t", "pipeline": "gate", "buildset": "set", "job": "job"}
PARAMS = b"{}" * 2_000
IDLE_S = 3.0
REFERENCE = {
    "build, both sides": 49,
    "event, written and consumed": 6,
    "semaphore of a playbook, taken": 9,
    "semaphore of a playbook, released": 5,
    "nothing to do": 87,
    "mirror of 200 requests, loaded": 1_221,
    "mirror of 200 requests, after a TCP drop": 1_215,
}
"""Step -> number of requests in Zuul. There, `nothing to do` is one pass for one tenant with five pipelines; here it is
IDLE_S seconds of two processes.
"""
WAITING = 200


async def steps_on_zookeeper(server: ZooKeeper) -> dict[str, int]:
    """Map each step of REFERENCE to its number of requests, in a separate tree."""
    root = await chroot(server)
    return await _steps(lambda port: ZooKeeperBackend.open(f"zookeeper://127.0.0.1:{port}{root}"), server.port)


async def steps_on_etcd(server: Etcd) -> dict[str, int]:
    """Measure the same steps as on ZooKeeper."""
    root = fresh()
    return await _steps(lambda port: EtcdBackend.open(f"etcd://127.0.0.1:{port}/{root}"), server.port)


@dataclass(slots=True)
class Side:
    """Represent one process: its backend, its store, its mirror."""

    backend: Networked
    context: Context

    async def seen(self, path: str, there: bool) -> None:
        mirror = self.context.mirror
        with mirror.part(path) as part:
            while (mirror.get(path) is not None) is not there:
                await part.moved(part.moves)


@asynccontextmanager
async def _side(open: Open, port: int) -> AsyncIterator[Side]:
    backend = await open(port)
    store = Store(backend)
    context = Context(store, Mirror(store, Map().path), lambda: 0)
    watching = asyncio.ensure_future(context.mirror.run())
    try:
        await context.mirror.ready()
        yield Side(backend, context)
    finally:
        watching.cancel()
        await asyncio.gather(watching, return_exceptions=True)
        await backend.close()


async def _steps(open: Open, port: int) -> dict[str, int]:
    found: dict[str, int] = {}
    async with AsyncExitStack() as stack:
        one, two = [await stack.enter_async_context(_side(open, port)) for _ in range(2)]
        session = await stack.enter_async_context(two.context.store.session("two"))

        async def count(step: str, work: Awaitable[None]) -> None:
            before = one.backend.traffic.requests + two.backend.traffic.requests
            await work
            found[step] = one.backend.traffic.requests + two.backend.traffic.requests - before

        await _build(one, two, session)  # the first of all makes what the others find
        await count("build, both sides", _build(one, two, session))
        await count("event, written and consumed", _event(one, two))
        await _semaphores(one, two, session, count)
        await count("nothing to do", asyncio.sleep(IDLE_S))
    found.update(await _mirrors(open, port))
    return found


async def _build(one: Side, two: Side, session: Session) -> None:
    """Request a build in one process and perform it in the other; the first one consumes the answer."""
    claim_of, id = two.context.builds, fresh()
    path = f"{claim_of.places.requests}/{id}"
    await one.context.store.commit([], one.context.builds.submit(Request(id, meta=META), PARAMS))
    await two.seen(path, True)
    found = claim_of.find(id, two.context.mirror)
    assert found is not None, "it was seen"
    claim = await claim_of.claim(found, session, Owner("two"))
    assert claim is not None, "nobody else wants it"
    await claim.params(two.context.mirror)
    answer = BuildEnded("set", "job", BuildOutcome(build=id, result="SUCCESS"))
    await claim.complete(results(two.context, META).append(answer))
    await one.seen(path, False)
    await _consumed(one, two)


async def _event(one: Side, two: Side) -> None:
    answer = BuildEnded("set", "job", BuildOutcome(build="b", result="SUCCESS"))
    await two.context.store.commit([], results(two.context, META).append(answer))
    await _consumed(one, two)


async def _consumed(one: Side, two: Side) -> None:
    stream, mirror = results(one.context, META), one.context.mirror
    with mirror.part(stream.queue, stream.data) as part:
        while not (waiting := stream.waiting(mirror, limit=10)):
            await part.moved(part.moves)
    await one.context.store.commit([At(waiting[0].entry, _version(one, waiting[0].entry))], consumed(waiting))
    for side in (one, two):
        await side.seen(waiting[0].entry, False)
        await side.seen(waiting[0].body, False)


def _version(side: Side, path: str) -> int:
    entry = side.context.mirror.get(path)
    assert entry is not None, "it was seen"
    return entry.version


async def _semaphores(
    one: Side, two: Side, session: Session, count: Callable[[str, Awaitable[None]], Awaitable[None]]
) -> None:
    builds, id = two.context.builds, fresh()
    place = two.context.map.semaphores("t").semaphore("printer").record
    path = f"{builds.places.requests}/{id}"
    await two.context.store.commit([], builds.submit(Request(id, meta=META), PARAMS))
    await two.seen(path, True)
    found = builds.find(id, two.context.mirror)
    assert found is not None, "it was seen"
    claim = await builds.claim(found, session)
    assert claim is not None, "nobody else wants it"
    contact = ClaimContact(two.context, claim, asyncio.Event(), {"printer": 1}, lambda data, _: data)

    async def shows(holders: int) -> None:
        for side in (one, two):
            mirror = side.context.mirror
            with mirror.part(place.path) as part:
                while (e := mirror.get(place.path)) is None or len(place.decode(e.value).holders) != holders:
                    await part.moved(part.moves)

    held = contact.holding(["printer"], contact.cancel, 60)

    async def take() -> None:
        assert await held.__aenter__()
        await shows(1)

    async def give() -> None:
        await held.__aexit__(None, None, None)
        await shows(0)

    await count("semaphore of a playbook, taken", take())
    await count("semaphore of a playbook, released", give())
    await claim.complete([])
    for side in (one, two):
        await side.seen(path, False)


async def _mirrors(open: Open, port: int) -> dict[str, int]:
    """Connect a late process over a network that breaks; meanwhile one request is made and another one ends. Return the
    number of requests that the mirror needs."""
    found: dict[str, int] = {}
    async with _side(open, port) as one, proxy(port) as line:
        builds, store = one.context.builds, one.context.store
        ids = [fresh() for _ in range(WAITING)]
        for id in ids:
            await store.commit([], builds.submit(Request(id, meta=META), PARAMS))
        async with _side(open, line.port) as late:
            traffic = late.backend.traffic
            assert len(builds.open(late.context.mirror)) == WAITING, "it has them all"
            found["mirror of 200 requests, loaded"] = traffic.requests
            line.refuse()
            more = Request(fresh(), meta=META)
            await store.commit([], [*builds.submit(more, PARAMS), *_gone(one, ids[0])])
            line.restore()
            await late.seen(f"{builds.places.requests}/{more.id}", True)
            await late.seen(f"{builds.places.requests}/{ids[0]}", False)
            found["mirror of 200 requests, after a TCP drop"] = (
                traffic.requests - found["mirror of 200 requests, loaded"]
            )
    return found


def _gone(side: Side, id: str) -> list[Put | Delete]:
    places = side.context.builds.places
    return [Delete(f"{places.requests}/{id}"), Delete(f"{places.params}/{id}")]
