"""Test that changes are accepted under their displayed names everywhere."""

from __future__ import annotations

import asyncio

import pytest

from .conftest import TENANT, World, token

PROJECT = f"{TENANT}/project/code/api"


@pytest.mark.long
async def test_a_change_is_named_as_it_is_shown_wherever_one_is_named(world: World) -> None:
    job = await world.under_way("busy")
    (ref,) = job["item"]["refs"]
    commit = ref["patchset"]
    assert ref["id"].startswith("busy,") and ref["change"] == "busy" and len(commit) == 40
    names = ("busy", "master/busy", f"busy,{commit}", f"busy,{commit[:8]}", ref["id"], f"master/busy,{commit}")
    for name in (*names, commit, ref["ref"]):
        found = await world.get(f"T/status/change/{name}")
        assert [item["id"] for item in found] == [job["item"]["id"]], name
        quoted = await world.get(f"T/status/change/{name.replace('/', '%2F').replace(',', '%2C')}")
        assert quoted[0]["id"] == job["item"]["id"], name
    for name in ("busy,", "busy,1234567", f"busy,{commit[:3]}", "usy", f"other,{commit}"):
        assert await world.get(f"T/status/change/{name}") == [], name
    for name in names:
        for verb in ("dequeue", "enqueue"):
            body = {"pipeline": "check", "change": name}
            answer = await world.client.post(f"{PROJECT}/{verb}", json=body, headers=token())
            assert (answer.status_code, answer.text) == (200, "true"), f"{verb} {name}: {answer.text}"
        hold = {"job": "unit", "count": 1, "reason": "", "node_hold_expiration": None, "change": name, "ref": ""}
        answer = await world.client.post(f"{PROJECT}/autohold", json=hold, headers=token())
        assert (answer.status_code, answer.text) == (200, "true"), name
    filters = {one["ref_filter"] for one in await world.get("T/autohold")}
    assert len(filters) == 1, "all of them mean the same change"


@pytest.mark.long
async def test_a_change_is_promoted_as_it_is_shown(world: World) -> None:
    world.running.runner.hold = asyncio.Event()
    for topic in ("one", "two", "three"):
        await world.proposed(topic)
        world.repositories.approve("code/api", topic)
        await world.in_pipeline(topic, "gate")
    (ref,) = (await world.get("T/status/change/three"))[0]["refs"]
    for name in (ref["id"], f"two,{(await world.get('T/status/change/two'))[0]['refs'][0]['patchset']}"):
        answer = await world.client.post(
            f"{TENANT}/promote", json={"pipeline": "gate", "changes": [name]}, headers=token()
        )
        assert (answer.status_code, answer.text) == (200, "true"), answer.text
    status = await world.get("T/status")
    (gate,) = (one for one in status["pipelines"] if one["name"] == "gate")
    order = [item["refs"][0]["change"] for queue in gate["change_queues"] for head in queue["heads"] for item in head]
    assert order == ["two", "three", "one"]


async def test_an_autohold_is_requested_with_the_words_of_either_client(world: World) -> None:
    body = {"job": "unit", "count": 1, "reason": "", "node_hold_expiration": None}
    for key in ("ref", "ref_filter"):
        more = {key: "refs/heads/.*"}
        answer = await world.client.post(f"{PROJECT}/autohold", json={**body, **more}, headers=token())
        assert answer.status_code == 200, answer.text
    assert [one["ref_filter"] for one in await world.get("T/autohold")] == ["refs/heads/.*"] * 2


async def test_omitted_values_of_an_autohold_come_from_the_settings(world: World) -> None:
    answer = await world.client.post(f"{PROJECT}/autohold", json={"job": "unit", "count": 2}, headers=token())
    assert (answer.status_code, answer.text) == (200, "true")
    (hold,) = await world.get("T/autohold")
    assert (hold["reason"], hold["node_expiration"], hold["max_count"]) == (None, 86_400, 2)
    for wrong in (
        {"job": "unit"},
        {"count": 1},
        {"job": "unit", "count": "1"},
        {"job": "unit", "count": 1, "x": 1},
        [],
    ):
        refused = await world.client.post(f"{PROJECT}/autohold", json=wrong, headers=token())
        assert refused.status_code == 400, wrong


@pytest.mark.long
async def test_a_ref_is_enqueued_with_the_body_that_clients_send(world: World) -> None:
    body = {"pipeline": "by-hand", "ref": "refs/heads/master", "oldrev": "", "newrev": None, "parameters": None}
    url = f"{TENANT}/project/code/lib/enqueue"
    answer = await world.client.post(url, json=body, headers=token())
    assert (answer.status_code, answer.text) == (200, "true")
    refused = await world.client.post(url, json={**body, "parameters": {"level": 1}}, headers=token())
    assert refused.status_code == 400 and "level" in refused.json()["description"]
    for wrong in ({"pipeline": "none"}, {"ref": "refs/heads/none"}):
        answer = await world.client.post(url, json={**body, **wrong}, headers=token())
        assert answer.status_code == 404, answer.text


async def test_the_state_of_a_tenant_is_set_and_answered_with_null(world: World) -> None:
    url, words = f"{TENANT}/state", {"reason": "because", "info": "see there"}
    answer = await world.client.post(url, json={"trigger_queue_paused": True, **words}, headers=token())
    assert (answer.status_code, answer.text) == (200, "null")
    state = (await world.get("T/status"))["state"]
    assert state["trigger_queue_paused"] and not state["result_queue_paused"] and state["reason"] == "because"
    assert (await world.client.post(url, json={"result_queue_paused": True}, headers=token())).text == "null"
    state = (await world.get("T/status"))["state"]
    assert state["trigger_queue_paused"] and state["result_queue_paused"], "flags that are left out stay"
    assert (state["reason"], state["info"]) == (None, None), "words that are left out go"


async def test_permissions_of_the_bearer_have_the_form_that_the_dashboard_reads(world: World) -> None:
    authorizations = (await world.get("T/authorizations", headers=token()))["zuul"]
    assert (
        authorizations["admin"]
        and authorizations["scope"] == ["example"]
        and all(authorizations["permissions"].values())
    )
    assert {"enqueue", "dequeue", "promote", "autohold", "set-tenant-state"} <= set(authorizations["permissions"])
    stranger = (await world.get("T/authorizations", headers=token(zuul=None)))["zuul"]
    assert stranger == {"admin": False, "permissions": {"read": True}, "scope": ["example"]}
    root = (await world.get("/api/authorizations", headers={"Authorization": "Bearer operators"}))["zuul"]
    assert root["admin"] and root["scope"] == ["*"]
    for path in (f"{TENANT}/authorizations", "/api/authorizations"):
        assert (await world.client.get(path)).status_code == 401
    info = (await world.get("/api/info"))["info"]
    assert "tenant" not in info and info["stats"]["type"] == "graphite"
    auth = info["capabilities"]["auth"]
    assert auth["default_realm"] == "our-realm" and auth["realms"]["our-realm"]["driver"] == "HS256"
    assert auth["realms"]["our-realm"]["type"] == "JWT" and not auth["read_protected"]
