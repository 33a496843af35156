"""Test made machines, and requests that wait, as clients of the API see and control them."""

from __future__ import annotations

import json
from typing import Any

import pytest
from click.testing import CliRunner

from headgate.cli.main import group
from headgate.map.inventory.nodes import MadeNode, NodeAnswer, NodeRequest, NodeWait
from headgate.map.records import ComponentFacts, ComponentRecord, OwnMachine
from headgate.recipes.codec import encode
from headgate.store.types import Put

from .conftest import TENANT, World, token

SETTINGS: dict[str, Any] = {"label": {"aliases": ["tiny"], "max-age": 60}, "image": {}, "flavor": {}, "provider": {}}
NODE = MadeNode(
    id="a" * 32, provider="p/main", connection="sky", label="small", state="ready", settings=SETTINGS, tenant="example",
    request="r1", node="box", build="b1", requested_ms=1_000, since_ms=61_000, external_id="i-1", why="",
    host={"ansible_host": "10.0.0.9", "ansible_user": "zuul", "ansible_connection": "ssh"},
    about={"az": "one", "public_ipv4": "192.0.2.9"}, uses={"instances": 1.0},
)  # fmt: skip
OTHERS = MadeNode(
    id="b" * 32, provider="p/main", connection="sky", label="small", settings=SETTINGS, tenant="other", request="r9"
)


async def furnished(world: World) -> None:
    """Provide two machines, one of another tenant, and one waiting request."""
    context = world.running.context
    nodes, store = context.map.nodes, context.store
    request = NodeRequest("r1", "example", "code/api", "b1", "unit", (("box", "small"), ("shed", "small")), "host1")
    wait = NodeWait("r1", "provider main: 2 of 2 instances are in use", 61_000, ("small at far: no host",),
                    {"shed": {"p/far": 1}})  # fmt: skip
    puts = [nodes.made(one.id).record.put(one) for one in (NODE, OTHERS)]
    puts += [Put(nodes.requests("r1").record.path, encode(request)), nodes.waits("r1").record.put(wait)]
    for entry in await store.commit([], puts):
        assert entry is not None
        await context.mirror.reached(entry.path, entry.version)


async def elsewhere(world: World) -> list[dict[str, Any]]:
    """Return the machines besides those of executors."""
    return [one for one in await world.get("T/nodes") if not str(one["provider"]).startswith("[executor]")]


async def test_machines_and_waiting_requests_are_listed(world: World) -> None:
    await furnished(world)
    (node,) = await elsewhere(world)
    assert (node["uuid"], node["type"], node["state"]) == ("a" * 32, ["small", "tiny"], "ready")
    assert (node["interface_ip"], node["public_ipv4"], node["az"], node["username"]) == (
        "10.0.0.9", "192.0.2.9", "one", "zuul"
    )  # fmt: skip
    assert (node["request_id"], node["lock_holder"], node["max_age"]) == ("r1", "host1", 60)
    assert node["state_time"] == "1970-01-01T00:01:01" and node["quota"] == {"instances": 1.0}
    (request,) = await world.get("T/nodeset-requests")
    assert (request["state"], request["position"], request["labels"]) == ("requested", 1, ["small", "small"])
    assert request["why"] == "provider main: 2 of 2 instances are in use"
    assert request["tried"] == ["small at far: no host"] and request["why_since"] == "1970-01-01T00:01:01"
    assert [(one["uuid"], one["failed_providers"]) for one in request["provider_node_data"]] == [
        ("a" * 32, []),
        (None, ["p/far"]),
    ]
    context = world.running.context
    (put,) = await context.store.commit([], [context.map.nodes.answers("r1").record.put(NodeAnswer("r1"))])
    assert put is not None
    await context.mirror.reached(put.path, put.version)
    assert [(one["state"], one["position"]) for one in await world.get("T/nodeset-requests")] == [("fulfilled", None)]


@pytest.mark.long
async def test_deleting_a_request_ends_the_wait_of_its_build(world: World) -> None:
    await furnished(world)
    job = await world.under_way("busy")
    context, url = world.running.context, f"{TENANT}/nodeset-requests"
    request = NodeRequest("r2", "example", "code/api", job["uuid"], "unit", (("box", "small"),), "host1")
    (put,) = await context.store.commit([], [Put(context.map.nodes.requests("r2").record.path, encode(request))])
    assert put is not None
    await context.mirror.reached(put.path, put.version)
    for path, who, status in (
        (f"{url}/r2", {}, 401),
        (f"{url}/r2", token(zuul=None), 403),
        (f"{url}/none", token(), 404),
        (f"{url}/r1", token(), 409),
        (f"{TENANT}//nodeset-requests/r2", token(), 204),
    ):
        answer = await world.client.delete(path, headers=who)
        assert (answer.status_code, bool(answer.content)) == (status, status != 204), answer.text
    assert (await world.get(f"T/build/{job['uuid']}"))["result"] == "CANCELED"
    done = [one for one in await world.get("T/actions") if one["verb"] == "modify-nodeset-request"]
    assert "done" in {one["outcome"] for one in done} and job["uuid"] in done[0]["subject"]


async def test_a_machine_is_held_and_deleted_by_people_with_the_permission(world: World) -> None:
    await furnished(world)
    url, context = f"{TENANT}/nodes/{'a' * 32}", world.running.context
    for body, status, who in (
        ({"state": "hold"}, 401, {}),
        ({"state": "hold"}, 403, token(zuul=None)),
        ({"state": "melt"}, 400, token()),
        ({"state": "hold", "hold_expiration": -1}, 400, token()),
        ({"state": "hold", "more": 1}, 400, token()),
    ):
        assert (await world.client.put(url, json=body, headers=who)).status_code == status, body
    others = await world.client.put(f"{TENANT}/nodes/{'b' * 32}", json={"state": "used"}, headers=token())
    assert others.status_code == 404, "what another tenant's build has"
    place = context.map.nodes.orders("a" * 32).record
    assert await context.store.get(place.path) is None
    body = {"state": "hold", "comment": "look at\nits disk", "hold_expiration": 60}
    answer = await world.client.put(url, json=body, headers=token())
    assert answer.status_code == 201, answer.text
    entry = await context.store.get(place.path)
    assert entry is not None
    order = place.decode(entry.value)
    assert (order.state, order.comment) == ("hold", "look at its disk") and order.until_ms > context.now_ms()
    assert order.hold_s == 60
    await context.mirror.reached(entry.path, entry.version)
    assert [one["next_state"] for one in await elsewhere(world)] == ["hold"]


class Canned:
    """Answer like the pages, and record requests."""

    def __init__(self, answers: dict[str, Any]) -> None:
        self.answers, self.requests = answers, list[tuple[str, dict[str, Any]]]()

    def get(self, path: str) -> Any:  # JSON
        return self.answers[path]

    def put(self, path: str, body: dict[str, Any]) -> None:
        self.requests.append((path, body))

    def of(self, tenant: str | None) -> str:
        return TENANT


async def test_the_command_prints_and_asks(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    await furnished(world)
    names = ("nodes", "nodeset-requests")
    canned = Canned({f"{TENANT}/{name}": await world.get(f"T/{name}") for name in names})
    canned.answers[f"{TENANT}/nodes"] = await elsewhere(world)
    monkeypatch.setattr("headgate.cli.nodes.pages", lambda config, url: canned)

    def output_of(*words: str) -> str:
        result = CliRunner().invoke(group, ["node", *words])
        assert result.exit_code == 0, result.output
        return result.output

    listed = output_of("list").splitlines()
    assert len(listed) == 2 and listed[1].split()[:4] == ["a" * 32, "small", "ready", "1970-01-01T00:01:01"]
    assert output_of("list", "--state", "hold") == "There are no machines.\n"
    assert json.loads(output_of("list", "--format", "json"))[0]["uuid"] == "a" * 32
    why = output_of("request", "list")
    assert "2 of 2 instances are in use (since 1970-01-01T00:01:01); tried: small" in why
    output_of("hold", "x/y", "--reason", "look", "--for", "60")
    output_of("delete", "z")
    assert canned.requests == [
        (f"{TENANT}/nodes/x%2Fy", {"state": "hold", "comment": "look", "hold_expiration": 60}),
        (f"{TENANT}/nodes/z", {"state": "used", "comment": ""}),
    ]


async def test_machines_of_executors_are_listed_but_not_controlled_here(world: World) -> None:
    context = world.running.context
    (own,) = [one for one in await world.get("T/nodes") if str(one["provider"]).startswith("[executor] of")]
    assert (own["connection_type"], own["state"]) == ("local", "ready"), "builds without machines run there"
    machines = (
        OwnMachine("m1", ("small",), "192.0.2.7", "ci"),
        OwnMachine("m2", ("small",), "192.0.2.8", "ci", "of another tenant"),
        OwnMachine("m3", ("large",), "192.0.2.9", held=True),
    )
    record = ComponentRecord("rack", "executor", data=ComponentFacts(machines=machines))
    path = f"{context.map.components.executor.path}/rack-0000000099"
    async with context.store.session("executor") as session:
        (put,) = await context.store.commit([], [Put(path, encode(record), session.lease)])
        assert put is not None
        await context.mirror.reached(put.path, put.version)
        listed = [one for one in await world.get("T/nodes") if one["provider"] == "[executor] nodes of rack"]
        assert [(one["id"], one["type"], one["state"], one["interface_ip"], one["username"]) for one in listed] == [
            ("m1", ["small"], "ready", "192.0.2.7", "ci"),
            ("m3", ["large"], "hold", "192.0.2.9", None),
        ]
        answer = await world.client.put(f"{TENANT}/nodes/{listed[0]['uuid']}", json={"state": "used"}, headers=token())
        assert answer.status_code == 409 and "m1, which is listed in [executor] nodes of rack" in answer.text
