"""Test what the API says of one change: where it is, when it lands, what keeps it, what it needs."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from headgate.store.memory import MemoryBackend
from headgate.testing.gate import Gate, gate
from headgate.testing.repositories import Repositories
from headgate.web.access import Access
from tests.site import client_of, site_beside
from tests.waiting import until

from .conftest import TENANTS

TENANT = "/api/tenant/example"


@pytest.fixture
async def running(tmp_path: Path, repositories: Repositories) -> AsyncIterator[Gate]:
    async with gate(tmp_path, repositories.hub, MemoryBackend(), TENANTS) as found:
        yield found


@pytest.fixture
async def client(tmp_path: Path, running: Gate) -> AsyncIterator[httpx.AsyncClient]:
    async with site_beside(running, tmp_path, Access("secret")) as site, client_of(site) as found:
        yield found


async def description_once(client: httpx.AsyncClient, topic: str, holds: Any) -> dict[str, Any]:
    """Return the description of the change once it `holds`."""

    async def description() -> dict[str, Any]:
        answer = await client.get(f"{TENANT}/change", params={"project": "code/api", "change": topic})
        found: dict[str, Any] = answer.json()
        return found if answer.status_code == 200 and holds(found) else {}

    return await until(f"{topic} is told as it is", description)


def gated(description: dict[str, Any]) -> dict[str, Any] | None:
    return next((place for place in description["places"] if place["pipeline"] == "gate"), None)


@pytest.mark.long
async def test_a_description_lists_unmet_requirements_places_and_dependencies_of_a_change(
    client: httpx.AsyncClient, running: Gate, repositories: Repositories
) -> None:
    running.runner.hold = asyncio.Event()
    repositories.propose("code/api", "first", {"a": "1\n"}, "Do this first")
    first = await description_once(client, "first", lambda description: description["places"])
    assert first["state"] == "open" and not first["approved"] and first["ref"]["subject"] == "Do this first"
    assert [one["pipeline"] for one in first["places"]] == ["check"]
    (lack,) = first["lacks"]
    assert lack["pipeline"] == "gate" and "is not approved" in " ".join(lack["lacks"])

    second = "Then that\n\nDepends-On: git.example/code/api/master/first\n"
    repositories.propose("code/api", "second", {"b": "1\n"}, second)
    repositories.approve("code/api", "first")
    description = await description_once(client, "first", gated)
    assert description["approved"] and description["lacks"] == [{"pipeline": "gate", "lacks": []}]
    repositories.approve("code/api", "second")
    behind = await description_once(
        client, "second", lambda description: "unit" in (gated(description) or {"basis": ""})["basis"]
    )
    place = gated(behind)
    assert place is not None and place["position"] == 2 and place["active"]
    assert place["remaining_time"] is None and "the remaining time is unknown for: unit" in place["basis"]
    (needed,) = behind["needs"]
    assert (needed["state"], needed["ref"]["topic"], needed["pipelines"]) == ("open", "first", ["check", "gate"])
    first = await description_once(client, "first", lambda description: description["needed_by"])
    assert [one["ref"]["topic"] for one in first["needed_by"]] == ["second"]

    every = (await client.get(f"{TENANT}/changes", params={"project": "code/api"})).json()
    assert [one["ref"]["topic"] for one in every] == ["first", "second"]
    rest = (await client.get(f"{TENANT}/changes", params={"limit": 1, "skip": 1})).json()
    assert [one["ref"]["topic"] for one in rest] == ["second"]
    assert (await client.get(f"{TENANT}/changes", params={"project": "code/lib"})).json() == []

    running.runner.hold.set()
    landed = await description_once(client, "second", lambda description: description["state"] == "landed")
    assert landed["lacks"] == [] and landed["needs"][0]["state"] == "landed"


async def test_changes_that_need_each_other_are_a_circle_without_their_other_dependencies(
    client: httpx.AsyncClient, running: Gate, repositories: Repositories
) -> None:
    needs = "Depends-On: git.example/code/api/master"
    repositories.propose("code/api", "below", {"b": "1\n"}, "Below")
    for topic, other in (("one", "two"), ("two", "three"), ("three", "one")):
        repositories.propose("code/api", topic, {topic: "1\n"}, f"{topic}\n\n{needs}/{other}\n{needs}/below\n")
    description = await description_once(client, "one", lambda description: len(description["circle"]) == 2)
    named = {one["key"]: one["ref"]["topic"] for one in description["needs"]}
    assert sorted(named.values()) == ["below", "three", "two"]
    assert sorted(named[key] for key in description["circle"]) == ["three", "two"]
    assert (await description_once(client, "below", lambda description: len(description["needed_by"]) == 3))[
        "circle"
    ] == []


async def test_invalid_requests_are_answered_with_a_reason(client: httpx.AsyncClient, running: Gate) -> None:
    await running.looked_at("git.example/code/api")
    for params, status, words in (
        ({}, 400, "project and change"),
        ({"project": "none", "change": "x"}, 404, "no project"),
        ({"project": "code/api", "change": "\u202e%#?"}, 404, "no open or landed change"),
    ):
        answer = await client.get(f"{TENANT}/change", params=params)
        assert answer.status_code == status and words in answer.text
    assert (await client.get("/api/tenant/none/changes")).status_code == 404
    assert (await client.get(f"{TENANT}/changes", params={"limit": 100_000})).status_code == 400
