"""Test permissions: every method, as every kind of caller."""

from __future__ import annotations

import datetime
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, NamedTuple

import grpc
import jwt
import pytest

from headgate.adapters.identity.tokens import authenticator
from headgate.base.ids import fresh
from headgate.inventory.wire import inventory_pb2 as v1
from headgate.inventory.wire import runm_pb2 as runm
from headgate.web.inventory.identity import Verifying
from headgate.web.inventory.server import RUNM, V1
from tests.integration.inventory.served import Client, served

SECRET = "only the tests know this secret, nobody else"
CALLERS: dict[str, dict[str, Any] | None] = {
    "nobody": None,
    "stranger": {"projects": ["blue"]},
    "visitor": {"projects": ["red"], "partitions": ["site"]},
    "member": {"projects": ["blue"], "partitions": ["site"]},
    "operator elsewhere": {"projects": ["blue"], "roles": ["operator@other", "admin@other"]},
    "operator there": {"projects": ["blue"], "roles": ["operator@site"]},
    "admin there": {"projects": ["red"], "roles": ["admin@site"]},
    "operator": {"projects": ["blue"], "roles": ["operator"]},
    "admin": {"projects": ["red"], "roles": ["admin"]},
}
"""Define the columns of the table. The objects belong to the project blue, in the partition site."""
STATUSES = {".": "OK", "u": "UNAUTHENTICATED", "d": "PERMISSION_DENIED", "n": "NOT_FOUND"}
ANYBODY = "u........"
"""Any known caller."""
INSIDE = "ud..d...."
"""Any caller with access to the partition."""
OWNERS = "udn.d...."
"""Owners of the object; others do not learn that it exists."""
MACHINES = "udndd...."
"""Like owners, but only operators of the partition may write the content."""
OPERATORS = "udddd...."
"""Operators of the partition, and of all."""
OPERATE = "udndd...."
"""Visible to owners, but only its requester and operators may change it."""
GLOBAL = "udddddd.."
"""Operators of all partitions."""


class World:
    """Provide a site and another partition, and the objects of the administrator of both."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self.root = self.like("admin", "blue")

    def like(self, caller: str, project: str = "") -> Client:
        claims = CALLERS[caller]
        metadata = {"x": "y"} if claims is None else token(sub="ada", **claims)
        project = project or (claims or {}).get("projects", ["blue"])[0]
        return self._client.like(metadata, user="ada", project=project, partition="site")

    async def begin(self) -> None:
        for name in ("site", "other"):
            await self.root.SetPartition(partition=v1.Partition(name=name))

    async def define(self) -> None:
        """Return all places where a definition of providers can be."""
        for partition in ("", "site"):
            for kind in ("", "runm.compute"):
                place = v1.Place(type="runm.provider", partition=partition, kind=kind)
                await self.root.SetDefinition(place=place, **DEFINED)

    async def machine(self) -> v1.Object:
        """Return an object of the project blue."""
        return await self._made(v1.Object(type="runm.machine", name=fresh(), project="blue"))

    async def provider(self) -> v1.Object:
        """Return an object without a project."""
        return await self._made(v1.Object(type="runm.provider", name=fresh(), properties={"prepare": "true"}))

    async def lease(self, user: str = "ada") -> v1.Lease:
        """Return a lease of the project blue, of ada unless another user is given."""
        await self._made(v1.Object(type="runm.provider", name=fresh(), properties={"space": "1000"}))
        who = self._client.like(token(sub=user, projects=["blue"], partitions=["site"]), user=user, project="blue")
        amounts = {"search": "type=runm.provider", "amounts": {"space": "1"}, "duration_s": 60}
        found: v1.Lease = await who.like(partition="site").AskLease(**amounts)
        assert found.state == v1.Lease.HELD
        return found

    async def others_lease(self) -> v1.Lease:
        return await self.lease("eve")

    async def quota(self) -> v1.Quota:
        found: v1.Quota = await self.root.SetQuota(quota=v1.Quota(name=fresh(), most="1000000"))
        return found

    async def site(self) -> v1.Partition:
        return next(one for one in (await self.root.ListPartitions()).partitions if one.name == "site")

    async def partition(self) -> v1.Partition:
        """Return an object that nobody needs."""
        found: v1.Partition = await self.root.SetPartition(partition=v1.Partition(name=fresh()))
        return found

    async def type(self) -> str:
        code = f"lab.{fresh()}"
        await self.root.SetType(type=v1.Type(code=code))
        return code

    async def _made(self, object: v1.Object) -> v1.Object:
        found: v1.Object = (await self.root.Apply(steps=[v1.Step(create=object)])).objects[0]
        return found


Fields = dict[str, Any]  # of any request


class Row(NamedTuple):
    """One method, its object, the answer to each caller, and the request, built again for each."""

    method: str
    what: str
    answers: str
    fields: Callable[[World], Awaitable[Fields]]


def row(method: str, what: str, answers: str, fields: Callable[[], Fields] = dict) -> Row:
    async def made(world: World) -> Fields:
        return fields()

    return Row(method, what, answers, made)


def about(
    method: str, what: str, answers: str, make: Callable[[World], Awaitable[Any]], fields: Callable[[Any], Fields]
) -> Row:
    """Use an object that is created for each caller."""

    async def made(world: World) -> Fields:
        return fields(await make(world))

    return Row(method, what, answers, made)


def step(**fields: Any) -> Fields:
    return {"steps": [v1.Step(**fields)]}


def new(type: str, **properties: str) -> Fields:
    return step(create=v1.Object(type=type, name=fresh(), properties=properties))


def original(type: str) -> Fields:
    return {"object": runm.Object(partition="site", object_type=type, name=fresh())}


def change(**properties: str) -> Callable[[v1.Object], Fields]:
    return lambda one: step(update=v1.Patch(uuid=one.uuid, set_properties=properties))


EVERYWHERE = v1.Place(type="runm.provider", kind="runm.compute")
THERE = v1.Place(type="runm.provider", partition="site", kind="runm.compute")
DEFINED = {"definition": v1.Definition(schema="{}")}
ORIGINAL = {"object_definition": runm.ObjectDefinition(schema="{}")}
COMPUTE = {"provider_type_code": "runm.compute"}

MATRIX = (
    about("partition_get_by_uuid", "", INSIDE, World.site, lambda one: {"uuid": one.uuid}),
    row("partition_get_by_name", "", INSIDE, lambda: {"name": "site"}),
    row("partition_find", "", INSIDE),
    row("partition_create", "", GLOBAL, lambda: {"partition": runm.Partition(name=fresh())}),
    row("object_type_get_by_code", "", INSIDE, lambda: {"code": "runm.image"}),
    row("object_type_find", "", INSIDE),
    row("provider_type_get_by_code", "", INSIDE, lambda: {"code": "runm.compute"}),
    row("provider_type_find", "", INSIDE),
    about("object_get_by_uuid", "", OWNERS, World.machine, lambda one: {"uuid": one.uuid}),
    about(
        "object_get_by_name", "", OWNERS, World.machine,
        lambda one: {"name": one.name, "object_type_code": one.type, "project": "blue"},
    ),
    row("object_find", "", INSIDE),
    row("object_create", "a machine", INSIDE, lambda: original("runm.machine")),
    row("object_create", "a provider", OPERATORS, lambda: original("runm.provider")),
    about("object_delete_by_uuids", "a machine", OWNERS, World.machine, lambda one: {"uuids": [one.uuid]}),
    about("object_delete_by_uuids", "a provider", OPERATORS, World.provider, lambda one: {"uuids": [one.uuid]}),
    row("provider_definition_get_global_default", "", INSIDE),
    row("provider_definition_get_by_partition", "", INSIDE, lambda: {"partition_uuid": "site"}),
    row("provider_definition_get_by_type", "", INSIDE, lambda: COMPUTE),
    row("provider_definition_get_by_partition_and_type", "", INSIDE, lambda: {"partition_uuid": "site", **COMPUTE}),
    row("provider_definition_set", "of all", GLOBAL, lambda: ORIGINAL),
    row("provider_definition_set", "of the partition", OPERATORS, lambda: {"partition_uuid": "site", **ORIGINAL}),
    about("GetObject", "a machine", OWNERS, World.machine, lambda one: {"uuid": one.uuid}),
    about("GetObject", "a provider", INSIDE, World.provider, lambda one: {"uuid": one.uuid}),
    row("Search", "", INSIDE),
    row("Apply", "create a machine", INSIDE, lambda: new("runm.machine", rack="1")),
    row("Apply", "create a machine for builds", OPERATORS, lambda: new("runm.machine", provider="racks")),
    row("Apply", "create a machine with an address", OPERATORS, lambda: new("runm.machine", ansible_host="x")),
    row("Apply", "create a provider", OPERATORS, lambda: new("runm.provider")),
    about("Apply", "change a machine", OWNERS, World.machine, change(rack="2")),
    about("Apply", "change an address", MACHINES, World.machine, change(ansible_host="x")),
    about("Apply", "change what is run", MACHINES, World.machine, change(prepare="sh")),
    about("Apply", "change what all run", OPERATORS, World.provider, change(prepare="sh")),
    about("Apply", "delete a machine", OWNERS, World.machine, lambda one: step(delete=v1.Removal(uuid=one.uuid))),
    about("Apply", "delete a provider", OPERATORS, World.provider, lambda one: step(delete=v1.Removal(uuid=one.uuid))),
    about("History", "a machine", OWNERS, World.machine, lambda one: {"uuid": one.uuid}),
    row("Watch", "", INSIDE, lambda: {"revision": 0}),
    row("AskLease", "", INSIDE, lambda: {"search": "type=runm.provider", "duration_s": 60, "amounts": {"space": "1"}}),
    about("GetLease", "of the project", OWNERS, World.lease, lambda one: {"id": one.id}),
    row("ListLeases", "", INSIDE),
    about("ExtendLease", "their own", OWNERS, World.lease, lambda one: {"id": one.id, "duration_s": 90}),
    about("ExtendLease", "of somebody else", OPERATE, World.others_lease, lambda one: {"id": one.id, "duration_s": 90}),
    about("EndLease", "their own", OWNERS, World.lease, lambda one: {"id": one.id}),
    about("EndLease", "of somebody else", OPERATE, World.others_lease, lambda one: {"id": one.id}),
    row("SetQuota", "", OPERATORS, lambda: {"quota": v1.Quota(name=fresh(), most="1000000")}),
    row("ListQuotas", "", INSIDE),
    about("DeleteQuota", "", OPERATORS, World.quota, lambda one: {"name": one.name}),
    about("ReportHealth", "", OPERATORS, World.machine, lambda one: {"uuid": one.uuid, "why": "no answer"}),
    about("GetHealth", "", OWNERS, World.machine, lambda one: {"uuid": one.uuid}),
    row("ListHealth", "", OPERATORS),
    row("ListPartitions", "", ANYBODY),
    row("SetPartition", "a new one", GLOBAL, lambda: {"partition": v1.Partition(name=fresh())}),
    about(
        "SetPartition", "its name", GLOBAL, World.partition,
        lambda one: {"partition": v1.Partition(uuid=one.uuid, name=fresh())},
    ),
    about("DeletePartition", "", GLOBAL, World.partition, lambda one: {"partition": one.uuid}),
    row("ListTypes", "", ANYBODY),
    row("SetType", "", GLOBAL, lambda: {"type": v1.Type(code=f"lab.{fresh()}")}),
    about("DeleteType", "", GLOBAL, World.type, lambda code: {"code": code}),
    row("GetDefinition", "of all", ANYBODY, lambda: {"place": EVERYWHERE}),
    row("GetDefinition", "of the partition", INSIDE, lambda: {"place": THERE}),
    row("SetDefinition", "of all", GLOBAL, lambda: {"place": EVERYWHERE, **DEFINED}),
    row("SetDefinition", "of the partition", OPERATORS, lambda: {"place": THERE, **DEFINED}),
    about("DeleteDefinition", "of all", GLOBAL, World.define, lambda _: {"place": EVERYWHERE}),
    about("DeleteDefinition", "of the partition", OPERATORS, World.define, lambda _: {"place": THERE}),
)  # fmt: skip


def test_the_table_has_every_method_and_everybody() -> None:
    assert {one.method for one in MATRIX} == {*RUNM.methods_by_name, *V1.methods_by_name}
    assert all(len(one.answers) == len(CALLERS) for one in MATRIX)


@pytest.mark.parametrize("row", MATRIX, ids=lambda one: f"{one.method} {one.what}".strip())
async def test_everybody_is_answered_as_the_table_says(row: Row) -> None:
    async with served(Verifying([issuer()])) as client:
        world = World(client)
        await world.begin()
        await world.define()
        await world.lease("somebody")
        found = {}
        for caller in CALLERS:
            fields = await row.fields(world)
            found[caller] = await status(getattr(world.like(caller), row.method)(**fields))
    assert found == {caller: STATUSES[sign] for caller, sign in zip(CALLERS, row.answers, strict=True)}


async def test_a_credential_shows_its_own_partitions() -> None:
    async with served(Verifying([issuer()])) as client:
        world = World(client)
        await world.begin()
        for caller, names in (("stranger", []), ("member", ["site"]), ("operator elsewhere", ["other"])):
            found = (await world.like(caller).ListPartitions()).partitions
            assert [one.name for one in found] == names
        member = world.like("member")
        last = await member.ListPartitions(limit=1)
        assert len(last.partitions) == 1 and not last.next_page_token, "it would say that there are others"
        assert [one.name async for one in member.partition_find()] == ["site"]
        assert await status(member.partition_get_by_name(name="other")) == "NOT_FOUND"
        for named in ("other", "nowhere"):
            assert await status(member.like(partition=named).Search()) == "PERMISSION_DENIED"


def issuer() -> Any:  # the adapter's
    return authenticator("us", {"issuer_id": "us", "client_id": "inventory", "secret": SECRET}, Path("x.conf"))


def token(**claims: Any) -> dict[str, str]:
    now = int(datetime.datetime.now(datetime.UTC).timestamp())
    payload = {"iss": "us", "aud": "inventory", "iat": now, "exp": now + 60, **claims}
    return {"authorization": f"Bearer {jwt.encode(payload, SECRET, 'HS256')}"}


async def status(call: Any) -> str:
    """Return the name of the status; of a stream, after it has begun or ended."""
    try:
        if hasattr(call, "__aiter__"):
            async for _ in call:
                break
            call.cancel()
        else:
            await call
    except grpc.aio.AioRpcError as error:
        return str(error.code().name)
    return "OK"
