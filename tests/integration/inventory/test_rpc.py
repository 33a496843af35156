"""Test both services over gRPC: behaviour that only the complete service shows."""

from __future__ import annotations

import asyncio
import datetime
from collections.abc import Awaitable
from pathlib import Path
from typing import Any

import grpc
import jwt
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc

from headgate.adapters.identity.tokens import authenticator
from headgate.base.errors import UserError
from headgate.inventory.wire import inventory_pb2 as pb
from headgate.inventory.wire import runm_pb2
from headgate.testing.inventory.calls import fuzz
from headgate.web.inventory.identity import Verifying
from headgate.web.inventory.server import RUNM, V1
from tests.integration.inventory.authority import Authority
from tests.integration.inventory.served import Client, serve_at, served

SECRET = "only the tests know this secret, nobody else"


async def refusal(call: Awaitable[Any]) -> str:
    """The name of the status."""
    with pytest.raises(grpc.aio.AioRpcError) as refused:
        if hasattr(call, "__aiter__"):
            async for _ in call:
                pass
        else:
            await call
    assert refused.value.details()
    return str(refused.value.code().name)


async def a_site(client: Client) -> None:
    await client.SetPartition(partition=pb.Partition(name="site"))


def machine(name: str, *tags: str, **properties: str) -> pb.Step:
    return pb.Step(create=pb.Object(type="runm.machine", name=name, properties=properties, tags=tags))


async def test_the_additions_to_the_protocol_work() -> None:
    async with served() as client:
        await a_site(client)
        begun = (await client.Search()).revision
        made = await client.Apply(steps=[machine(f"m{n}", "fast", zone=f"z{n % 2}") for n in range(5)])
        first = made.objects[0]
        wanted = pb.Filter(require_tags=["fast"], require_items=[pb.Item(key="zone", value="z", prefix=True)])
        page = await client.Search(any=[wanted], limit=2, with_count=True)
        names = [o.name for o in page.objects]
        assert len(names) == 2 and page.count == 5 and not page.bounded
        patch = pb.Patch(uuid=first.uuid, expected_generation=first.generation, name="m9", remove_tags=["fast"])
        patch.set_properties["rack"] = "a/b"
        (changed,) = (await client.Apply(steps=[pb.Step(update=patch)])).objects
        assert changed.name == "m9" and not changed.tags and changed.properties["rack"] == "a/b"
        assert await refusal(client.Apply(steps=[pb.Step(update=patch)])) == "ABORTED"
        rest = await client.Search(any=[wanted], limit=9, with_count=True, page_token=page.next_page_token)
        assert sorted(names + [o.name for o in rest.objects]) == ["m0", "m1", "m2", "m3", "m4"]  # as it was then
        assert rest.revision == page.revision
        history = await client.History(uuid=first.uuid)
        assert [(c.kind, c.user, c.new.name) for c in history.changes] == [(1, "alice", "m0"), (2, "alice", "m9")]
        watching = client.Watch(revision=begun, any=[wanted])
        changes: list[tuple[int, str]] = []
        while len(changes) < 6:
            changes += [(c.kind, c.new.name or c.old.name) for c in (await watching.read()).changes]
        watching.cancel()
        assert changes == [*((1, f"m{n}") for n in range(5)), (3, "m0")]
        assert (await client.Apply(steps=[machine("x")], validate_only=True)).revision == 0
        batch = [machine("x"), machine("m9")]
        assert await refusal(client.Apply(steps=batch)) == "ALREADY_EXISTS"
        assert await refusal(client.GetObject(type="runm.machine", name="x")) == "NOT_FOUND"
        assert (await client.GetObject(type="runm.machine", name="m9")).generation == changed.generation


async def test_steps_are_done_in_parts() -> None:
    """Each step runs as if it were alone, in few commits; a refused step is reported by its number and changes
    nothing."""
    async with served() as client:
        await a_site(client)
        steps = [machine(f"m{n}", "fast", zone=f"z{n}") for n in range(300)]
        steps[7], steps[150] = machine("m8", zone="again"), machine("")
        answer = await client.Apply(steps=steps, in_parts=True)
        statuses = {one.step: one.status for one in answer.failures}
        assert statuses.keys() <= {7, 8, 150} and statuses[150] == "INVALID_ARGUMENT" and len(statuses) == 2
        assert set(statuses.values()) == {"INVALID_ARGUMENT", "ALREADY_EXISTS"}
        assert [n for n, one in enumerate(answer.objects) if not one.uuid] == sorted(statuses)
        page = await client.Search(limit=1_000)
        assert len(page.objects) == 298 and page.revision <= answer.revision + 1
        both = [pb.Step(delete=pb.Removal(uuid=page.objects[0].uuid)), pb.Step(update=pb.Patch(uuid="f" * 32))]
        gone = await client.Apply(steps=both, in_parts=True)
        assert [(one.step, one.status) for one in gone.failures] == [(1, "NOT_FOUND")]
        assert await refusal(client.Apply(steps=[machine("x")] * 1_001, in_parts=True)) == "INVALID_ARGUMENT"
        assert (
            await refusal(client.Apply(steps=[machine("x")], in_parts=True, validate_only=True)) == "INVALID_ARGUMENT"
        )


async def test_types_and_partitions_are_administered() -> None:
    async with served() as client:
        await a_site(client)
        await client.SetType(type=pb.Type(code="lab.switch", description="A switch"))
        types = (await client.ListTypes()).types
        assert {"lab.switch", "runm.machine", "runm.compute"} <= {one.code for one in types}
        definition = pb.Definition(schema='{"properties": {"properties": {"required": ["ports"]}}}')
        place = pb.Place(type="lab.switch", partition="site")
        stored = await client.SetDefinition(place=place, definition=definition)
        assert (await client.GetDefinition(place=place)).definition == stored.definition
        switch = pb.Object(type="lab.switch", name="s1")
        assert await refusal(client.Apply(steps=[pb.Step(create=switch)])) == "INVALID_ARGUMENT"
        await client.DeleteDefinition(place=place)
        await client.Apply(steps=[pb.Step(create=switch)])
        assert await refusal(client.DeleteType(code="lab.switch")) == "FAILED_PRECONDITION"
        assert await refusal(client.DeletePartition(partition="site")) == "FAILED_PRECONDITION"
        for name in ("p2", "p3"):
            await client.SetPartition(partition=pb.Partition(name=name))
        partitions, several, token = (await client.ListPartitions()).partitions, list[pb.Partition](), ""
        while len(several) < 4:
            answer = await client.ListPartitions(limit=2, page_token=token)
            several, token = [*several, *answer.partitions], answer.next_page_token
            if not token:
                break
        assert several == list(partitions) and len(partitions) == 3
        assert await refusal(client.ListPartitions(limit=1_001)) == "INVALID_ARGUMENT"
        assert await refusal(client.ListPartitions(page_token="x")) == "INVALID_ARGUMENT"
        partition = next(one for one in partitions if one.name == "site")
        renamed = pb.Partition(uuid=partition.uuid, name="place")
        assert (await client.SetPartition(partition=renamed)).name == "place"


async def test_a_session_without_a_partition_is_refused_and_a_stranger_sees_nothing() -> None:
    async with served() as client:
        await a_site(client)
        (made,) = (await client.Apply(steps=[machine("m")])).objects
        assert await refusal(client.like(partition="").Search()) == "FAILED_PRECONDITION"
        bob = client.like(user="bob", project="red")
        assert not (await bob.Search()).objects
        assert await refusal(bob.Search(any=[pb.Filter(project="blue")])) == "PERMISSION_DENIED"
        assert await refusal(bob.GetObject(uuid=made.uuid)) == "NOT_FOUND"
        assert await refusal(bob.object_delete_by_uuids(uuids=[made.uuid])) == "NOT_FOUND"


async def test_the_service_offers_health_checks_and_reflection() -> None:
    async with served() as client:
        for service in ("", RUNM.full_name, V1.full_name):
            answer = await health_pb2_grpc.HealthStub(client.channel).Check(
                health_pb2.HealthCheckRequest(service=service)
            )
            assert answer.status == health_pb2.HealthCheckResponse.SERVING
        request = reflection_pb2.ServerReflectionRequest(file_containing_symbol=RUNM.full_name)
        stub = reflection_pb2_grpc.ServerReflectionStub(client.channel)
        async for answer in stub.ServerReflectionInfo(iter([request])):
            assert answer.file_descriptor_response.file_descriptor_proto


async def test_a_deadline_ends_a_watch() -> None:
    async with served() as client:
        await a_site(client)
        request = pb.WatchRequest(session=pb.Session(user="alice", project="blue", partition="site"))
        watching = client.raw(V1, "Watch", request.SerializeToString(), 0.3)
        assert await refusal(watching) == "DEADLINE_EXCEEDED"


@pytest.mark.parametrize(
    ("method", "fields"),
    [
        ("GetObject", {}),
        ("GetObject", {"uuid": "no uuid"}),
        ("GetObject", {"uuid": "x" * 1_000_000}),
        ("GetObject", {"type": "runm.machine", "name": "n" * 1_000_000}),
        ("Apply", {}),
        ("Apply", {"steps": [pb.Step()]}),
        ("Apply", {"steps": [machine("")]}),
        ("Apply", {"steps": [machine("n" * 1_000_000)]}),
        ("Apply", {"steps": [machine("a\x00b")]}),
        ("Apply", {"steps": [machine("n", **{f"p{n}": "" for n in range(5_000)})]}),
        ("Apply", {"steps": [machine("n")] * 101}),
        ("Search", {"limit": 1_000_000}),
        ("Search", {"page_token": "none"}),
        ("Search", {"sort": [pb.Sort(field="colour")]}),
        ("Search", {"any": [pb.Filter()] * 1_000}),
        ("Search", {"any": [pb.Filter(any_keys=["k"] * 5_000)]}),
        ("SetPartition", {"partition": pb.Partition(uuid="../..", name="n")}),
        ("SetDefinition", {"place": pb.Place(type="runm.image"), "definition": pb.Definition(schema="[")}),
        ("SetDefinition", {"place": pb.Place(type="runm.image"), "definition": pb.Definition(schema='{"type": 7}')}),
        ("object_get_by_uuid", {"uuid": "no uuid"}),
        ("object_create", {"object": runm_pb2.Object(object_type="runm.image", name="n")}),
        ("object_find", {"options": runm_pb2.SearchOptions(marker="f" * 32)}),
    ],
)
async def test_an_invalid_request_is_answered_with_invalid_argument(method: str, fields: dict[str, Any]) -> None:
    async with served() as client:
        await a_site(client)
        assert await refusal(getattr(client, method)(**fields)) == "INVALID_ARGUMENT"


@pytest.mark.parametrize("noise", [b"\xff\xff\xff", b"\x0a\x03\x0a\x01\xff"])
async def test_bytes_that_are_no_message_are_an_invalid_argument(noise: bytes) -> None:
    async with served() as client:
        assert await refusal(client.raw(RUNM, "object_create", noise)) == "INVALID_ARGUMENT"


async def test_a_definition_of_a_type_there_is_not_is_unmet() -> None:
    async with served() as client:
        place = pb.Place(type="no.type")
        assert await refusal(client.SetDefinition(place=place, definition=pb.Definition())) == "FAILED_PRECONDITION"


def token(**claims: Any) -> dict[str, str]:
    now = int(datetime.datetime.now(datetime.UTC).timestamp())
    payload = {"iss": "us", "aud": "inventory", "sub": "alice", "iat": now, "exp": now + 60, **claims}
    return {"authorization": f"Bearer {jwt.encode(payload, SECRET, 'HS256')}"}


async def test_a_token_says_who_calls() -> None:
    issuer = authenticator("us", {"issuer_id": "us", "client_id": "inventory", "secret": SECRET}, Path("x.conf"))
    async with served(Verifying([issuer])) as client:
        operator = client.like(token(sub="root", projects=["blue"], roles=["operator"]), user="", partition="")
        await operator.SetPartition(partition=pb.Partition(name="site"))
        alice = client.like(token(projects=["blue", "red"], partitions=["site"]))
        await alice.Apply(steps=[machine("m")])
        assert len((await alice.like(user="", project="").Search()).objects) == 1
        assert not (await alice.like(project="red").Search()).objects
        assert await refusal(alice.like(project="green").Search()) == "PERMISSION_DENIED"
        assert await refusal(alice.like(user="bob").Search()) == "PERMISSION_DENIED"
        assert await refusal(alice.SetPartition(partition=pb.Partition(name="x"))) == "PERMISSION_DENIED"
        for bad in ({}, {"exp": 5}, {"aud": "others"}, {"iss": "others"}):
            metadata = token(**bad) if bad else {"authorization": "Bearer x.y.z"}
            assert await refusal(client.like(metadata).Search()) == "UNAUTHENTICATED"
        assert await refusal(client.Search()) == "UNAUTHENTICATED"


async def test_a_client_certificate_says_who_calls(tmp_path: Path) -> None:
    authority = Authority()
    tls = authority.files(tmp_path)
    certificate, key = authority.issue("alice", project="blue", role="operator")
    known = grpc.ssl_channel_credentials(authority.pem, key, certificate)
    async with served(Verifying(), tls=tls, credentials=known) as client:
        await a_site(client)
        await client.like(user="", project="").Apply(steps=[machine("m")])
        assert await refusal(client.like(project="red").Search()) == "PERMISSION_DENIED"
    nobody = grpc.ssl_channel_credentials(authority.pem)
    async with served(Verifying(), tls=tls, credentials=nobody) as client:
        assert await refusal(client.Search()) == "UNAVAILABLE"


async def test_many_concurrent_callers_are_answered() -> None:
    async with served() as client:
        await a_site(client)
        steps = [client.Apply(steps=[machine(f"m{n % 20}")]) for n in range(60)]
        ends = await asyncio.gather(*steps, return_exceptions=True)
        codes = [end.code().name if isinstance(end, grpc.aio.AioRpcError) else "OK" for end in ends]
        assert codes.count("OK") == 20 and set(codes) == {"OK", "ALREADY_EXISTS"}


@pytest.mark.long
async def test_any_message_is_answered_with_a_suitable_status() -> None:
    caller = await fuzz(1, 60, 1_500)
    assert caller.wrong == []
    assert {"OK", "INVALID_ARGUMENT", "NOT_FOUND", "FAILED_PRECONDITION"} <= set(caller.statuses)


async def test_a_port_that_another_program_uses_is_reported_without_the_words_of_grpc() -> None:
    async with served() as client:
        with pytest.raises(UserError, match=f"cannot listen on {client.target}: another program uses it") as refused:
            await serve_at(client.target)
        assert "GRPC" not in str(refused.value)
