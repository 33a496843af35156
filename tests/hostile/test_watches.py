"""Test watchers of the inventory who lose their permission, or are slow on purpose."""

from __future__ import annotations

import asyncio
import json
import ssl
import time
from contextlib import suppress
from pathlib import Path

import grpc
import pytest

from headgate.inventory.definitions import check
from headgate.inventory.filters import Filter, PropertyConditions, PropertyFilter
from headgate.inventory.journal import ObjectChange
from headgate.inventory.model import Caller, Definition, ObjectType, Permission
from headgate.inventory.wire import inventory_pb2 as pb
from headgate.services.inventory.admin import DefinitionScope
from headgate.services.inventory.draft import Create, Update
from headgate.services.inventory.search import COMPARED_MAX
from headgate.testing.clock import DEADLINE_S
from headgate.web.inventory import v1
from headgate.web.inventory.identity import Verifying
from headgate.web.peers import connections
from tests.hostile.test_inventory import refusal
from tests.integration.inventory.authority import Authority
from tests.integration.inventory.served import served
from tests.integration.inventory.test_http import served as http_served
from tests.integration.inventory.test_matrix import issuer, token
from tests.unit.inventory.objects import PARTITIONS, an_object
from tests.unit.inventory.world import ADMIN, a_world
from tests.waiting import until

SECRET = "hunter2"
DAY_S = 86_400
WATCHERS, OBJECTS, FILTERS, TERMS = 20, 10, 5, 990


async def test_a_watch_ends_when_the_token_that_began_it_expires(monkeypatch: pytest.MonkeyPatch) -> None:
    """The watcher sends nothing more, and reads what others change for as long as the connection lasts."""
    monkeypatch.setattr(v1, "QUIET_S", 0.1)
    monkeypatch.setattr(v1, "ADMITTED_S", 0.0)
    async with served(Verifying([issuer()])) as client:
        root = client.like(token(sub="root", roles=["admin"]), user="root", project="blue", partition="site")
        await root.SetPartition(partition=pb.Partition(name="site"))
        short = token(sub="mallory", projects=["blue"], partitions=["site"], exp=int(time.time()) + 2)
        watch = client.like(short, user="mallory", project="blue").Watch()
        async with asyncio.timeout(DEADLINE_S):
            found = await refusal(watch)
    assert found[0] == "UNAUTHENTICATED" and "expired" in found[1]


@pytest.mark.parametrize("by", ["certificate", "certificate and token"])
async def test_a_connection_outlives_its_certificate_but_its_calls_and_watches_do_not(
    by: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """TLS checks a certificate once, when the connection is made; mallory never closes it."""
    monkeypatch.setattr(v1, "QUIET_S", 0.1)
    monkeypatch.setattr(v1, "ADMITTED_S", 0.0)
    authority, now_ms = Authority(), [1_000]
    tls = authority.files(tmp_path)
    certificate, key = authority.issue("mallory", project="blue", role="operator")
    known = grpc.ssl_channel_credentials(authority.pem, key, certificate)
    async with (
        served(Verifying([issuer()]), tls=tls, credentials=known, clock=lambda: now_ms[0]) as client,
        asyncio.timeout(DEADLINE_S),
    ):
        metadata = token(sub="mallory", projects=["blue"], roles=["admin"]) if "token" in by else {}
        mallory = client.like(metadata, user="mallory", project="blue", partition="site")
        await mallory.SetPartition(partition=pb.Partition(name="site"))
        watch = mallory.Watch()
        await anext(aiter(watch))
        now_ms[0] = int((time.time() + DAY_S) * 1_000)
        for found in (await refusal(watch), await refusal(mallory.Search())):
            assert found[0] == "UNAUTHENTICATED" and "certificate expired" in found[1]


async def test_a_watch_over_https_ends_with_a_reason_when_its_certificate_expires(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its status was sent long ago, so the last line states the reason."""
    monkeypatch.setattr(v1, "QUIET_S", 0.1)
    monkeypatch.setattr(v1, "ADMITTED_S", 0.0)
    authority, now_ms = Authority(), [1_000]
    tls = authority.files(tmp_path)
    (tmp_path / "mallory").write_bytes(b"".join(authority.issue("mallory", project="blue", role="operator")))
    shown = ssl.create_default_context(cafile=tls.client_ca)
    shown.check_hostname = False
    shown.load_cert_chain(tmp_path / "mallory")
    async with http_served(Verifying(), tls, lambda: now_ms[0]) as web, asyncio.timeout(DEADLINE_S):
        session = {"user": "mallory", "project": "blue", "partition": "site"}
        ask = web.with_tls(shown)
        assert (await ask("PUT", "/v1/partitions", {"session": session, "partition": {"name": "site"}}))[0] == 200
        lines = ask.lines("/v1/objects/watch", {"session": session})
        assert "status" not in await asyncio.to_thread(next, lines)
        now_ms[0] = int((time.time() + DAY_S) * 1_000)
        last = (await asyncio.to_thread(list, lines))[-1]
    assert last["status"] == "UNAUTHENTICATED" and "certificate expired" in last["detail"]


async def test_no_connection_outlives_its_certificate_for_long(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where `[tls] client_ca` keeps strangers out, streams of pages and queues ask for nothing more."""
    authority = Authority()
    tls = authority.files(tmp_path)
    (tmp_path / "mallory").write_bytes(b"".join(authority.issue("mallory")))
    shown = ssl.create_default_context(cafile=tls.client_ca)
    shown.check_hostname = False
    shown.load_cert_chain(tmp_path / "mallory")
    async with http_served(Verifying(), tls) as web, asyncio.timeout(DEADLINE_S):
        reader, writer = await asyncio.open_connection("127.0.0.1", int(web.root.rpartition(":")[2]), ssl=shown)
        writer.write(b"GET /openapi.json HTTP/1.1\r\nHost: localhost\r\n\r\n")
        assert await reader.readuntil(b" ") == b"HTTP/1.1 " and await reader.readuntil(b" ") == b"200 "
        monkeypatch.setattr(connections, "EXPIRED_MAX_S", -2 * DAY_S)  # as if the certificate had expired a day ago
        await reader.read()  # the rest of the answer, and then the end
        writer.close()


async def test_a_watcher_who_falls_behind_sees_no_property_that_was_hidden_meanwhile() -> None:
    """The property is hidden in one commit, and set in the next; the watcher reads neither until both are there."""
    async with a_world() as world:
        inventory = world.inventory
        await inventory.admin.set_object_type(ADMIN, ObjectType("box"))
        made = an_object(type="box", project="blue", partition=PARTITIONS[0], properties={"rack": "1"})
        await inventory.apply(ADMIN, [Create(made)])
        reader = Caller("mallory", "blue", PARTITIONS[0])
        watch = inventory.changes(reader, [], 0, quiet_s=DEADLINE_S)
        await anext(watch)
        rules = {"password": (Permission("", "", 0), Permission("", "admin", 3))}
        hiding = check(Definition("d" * 32, json.dumps({}), rules))
        await inventory.admin.set_definition(ADMIN, DefinitionScope("box", PARTITIONS[0], ""), hiding)
        change = Update(made.uuid, set_properties={"password": SECRET, "rack": "2"})
        written = await inventory.apply(ADMIN, [change])
        await inventory.journal.wait_for(written.revision)
        seen = list[ObjectChange]()
        with suppress(TimeoutError):
            async with asyncio.timeout(DEADLINE_S):
                while not seen:
                    seen += [one for one, _ in (await anext(watch))[0]]
        assert "rack" in str(seen) and SECRET not in str(seen)


async def test_a_crowd_of_watchers_with_large_filters_delays_nobody() -> None:
    """One commit wakes all of them; in between, others get a turn after a bounded number of comparisons."""
    async with a_world() as world:
        inventory = world.inventory
        await inventory.admin.set_object_type(ADMIN, ObjectType("box"))
        made = [
            an_object(type="box", project="blue", partition=PARTITIONS[0], uuid=f"{n:032x}", name=f"n{n}")
            for n in range(OBJECTS)
        ]
        await inventory.apply(ADMIN, [Create(one) for one in made])
        mallory, reached = Caller("mallory", "blue", PARTITIONS[0]), list[int]()
        wanted = PropertyConditions(any_items=tuple(PropertyFilter("x", str(n)) for n in range(TERMS)))
        broad = [Filter(types=("box",), name=f"n{n}", name_prefix=True, wanted=wanted) for n in range(FILTERS)]

        async def watch() -> None:
            async for _, revision in inventory.changes(mallory, broad, 0, quiet_s=DEADLINE_S):
                reached.append(revision)

        watching = [asyncio.ensure_future(watch()) for _ in range(WATCHERS)]
        await until("all are watching", lambda: len(reached) >= WATCHERS)
        written = await inventory.apply(mallory, [Update(one.uuid, add_tags=("new",)) for one in made])
        others = 0
        while sum(one >= written.revision for one in reached) < WATCHERS:
            await asyncio.sleep(0)
            others += 1
        for task in watching:
            task.cancel()
        await asyncio.gather(*watching, return_exceptions=True)
    compared = 2 * WATCHERS * OBJECTS * FILTERS * TERMS
    assert others > compared / (2 * COMPARED_MAX), "they took turns with others, and not all of them at once"
