"""What the description says is what is answered, whatever is asked: no other status, type or shape, and no fault."""

from __future__ import annotations

import asyncio

import pytest
import yaml

from headgate.web.app import ROUTES

from ..described import Caller
from .conftest import World, token

LEFT_OUT = ("/events", "/health/ready", "/key/{project}.pub")
"""Ends of paths: what does not end, what is not ready, as no process is, and keys, of which there are none here."""
KNOWN = {
    "tenant": ["example", "example", "none"],
    "project": ["code/api", "config", "git.example/code/lib", "x"],
    "pipeline": ["gate", "check", "x"],
    "branch": ["master", "x"],
    "job": ["unit", "base", "x"],
    "change": ["done", "x"],
}
"""Values of which some lead somewhere."""


async def test_whatever_is_asked_is_answered_as_described(world: World) -> None:
    landed = await world.landed("done")
    known = {**KNOWN, "uuid": [landed["uuid"], landed["buildset"]["uuid"]], "build": [landed["uuid"]]}
    answer = await world.client.get("/openapi.yaml")
    caller = Caller(world.client, asyncio.get_running_loop())
    for values in (known, {}):
        await caller.ask_all(yaml.safe_load(answer.text), values, ({}, token()), LEFT_OUT)
    assert not caller.wrong, caller.report()
    reads = {name: seen for name, seen in caller.statuses.items() if name.startswith("get ")}
    assert len(reads) > 50 and sum(200 in seen for seen in reads.values()) > 0.6 * len(reads), reads


@pytest.mark.parametrize("path", ["/openapi.yaml", "/openapi/openapi.json"])
async def test_every_route_and_what_it_may_be_asked_is_described(world: World, path: str) -> None:
    answer = await world.client.get(path)
    described = yaml.safe_load(answer.text)
    served = {
        (method.lower(), part)
        for route in ROUTES
        if getattr(route, "include_in_schema", None) is not False
        for method in getattr(route, "http_methods", ())
        for part in [min(route.paths).partition("{rest")[0].replace(":str}", "}")]
    }
    for method, part in served:
        assert any(name.startswith(part) and method in item for name, item in described["paths"].items()), (
            method,
            part,
        )
    assert not any("{rest}" in name and "/api/" in name for name in described["paths"])
    builds = described["paths"]["/api/tenant/{tenant}/builds"]["get"]
    asked = {one["name"] for one in builds["parameters"] if one["in"] == "query"}
    assert {"project", "pipeline", "change", "branch", "patchset", "ref", "newrev", "uuid", "job_name", "voting",
            "nodeset", "result", "final", "held", "complete", "limit", "skip", "idx_min", "idx_max",
            "exclude_result"} <= asked, "the reference's filters"  # fmt: skip
    control = described["paths"]["/api/tenant/{tenant}/project/{project}/enqueue"]["post"]
    assert control["requestBody"]["content"]["application/json"]["schema"]["anyOf"]
