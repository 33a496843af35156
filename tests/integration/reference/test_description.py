"""Test that answers match the description for any request: no other status, type or shape, and no fault."""

from __future__ import annotations

import asyncio

import pytest
import yaml

from headgate.map.records import ZoneLabels
from headgate.web.app import ROUTES

from ..described import Caller
from .conftest import TENANT, World, token

LEFT_OUT = ("/events", "/health/ready", "/key/{project}.pub", "/key/{project}")
"""Ends of paths without an answer here: endless ones, readiness, and keys."""
KNOWN = {
    "tenant": ["example", "example", "none"],
    "project": ["code/api", "config", "git.example/code/lib", "x"],
    "pipeline": ["gate", "check", "by-hand", "x"],
    "branch": ["master", "x"],
    "job": ["unit", "base", "x"],
    "change": ["done", "x"],
}
"""Values, some of which exist."""
BODIES = {
    "tenant": ["example"],
    "project": ["code/lib", "code/api"],
    "pipeline": ["by-hand", "gate"],
    "ref": ["refs/heads/master"],
    "change": [None, ""],
    "oldrev": [None, ""],
    "newrev": [None, ""],
    "parameters": [None, {}, {"level": "high"}],
    "unapproved": [False],
    "ref_filter": [None],
    "node_hold_expiration": [None, 0, 60],
    "count": [1, 0, 7],
    "queue": [""],
    "projects": [[], ["code/api"]],
    "reason": ["because"],
    "state": ["hold", "running"],
}
"""Values for requests that change something."""
DONE = {
    *(f"post /api/tenant/{{tenant}}/{verb}" for verb in ("close", "open", "state", "reconfigure")),
    *(f"post /api/tenant/{{tenant}}/project/{{project}}/{verb}" for verb in ("enqueue", "autohold", "freeze-pipeline")),
    "post /api/tenant/{tenant}/build/{uuid}/cancel", "delete /api/tenant/{tenant}/autohold/{id}",
    "post /api/zone/{zone}/forget",
}  # fmt: skip
"""Operations that change something and must succeed at least once; the others have no objects here, or a separate
test."""
FREEZE = "post /api/tenant/{tenant}/project/{project}/freeze-pipeline"
"""Operations that change nothing, although their method could."""
OPERATOR = {"Authorization": "Bearer operators"}


@pytest.mark.long
async def test_every_request_is_answered_as_described(world: World) -> None:
    landed = await world.landed("done")
    hold = {"job": "unit", "count": 1, "reason": "r", "node_hold_expiration": None}
    assert (await world.client.post(f"{TENANT}/project/code/api/autohold", json=hold, headers=token())).json() is True
    (held,) = await world.get("T/autohold")
    known = {**KNOWN, "uuid": [landed["uuid"], landed["buildset"]["uuid"]], "build": [landed["uuid"]]}
    description = (await world.client.get("/openapi/openapi.json")).json()
    caller = Caller(world.client, asyncio.get_running_loop())
    await caller.ask_all(description, known, ({}, token()), LEFT_OUT)
    await caller.ask_all(description, {}, ({}, OPERATOR), LEFT_OUT)
    reads = {name: seen for name, seen in caller.statuses.items() if name.startswith("get ")}
    assert len(reads) > 50 and sum(200 in seen for seen in reads.values()) > 0.6 * len(reads), reads
    busy = await world.under_way("busy")
    context = world.running.context
    await context.store.commit([], [context.map.executor.zones("far").labels.put(ZoneLabels(("arm",)))])
    doing = {**BODIES, "uuid": [busy["uuid"]], "id": [held["id"]], "job": ["unit"], "zone": ["far"], "do": ["retry"]}
    writes = {
        **description,
        "paths": {
            path: {m: one for m, one in item.items() if m != "get"} for path, item in description["paths"].items()
        },
    }
    await caller.ask_all(writes, doing, ({}, OPERATOR), LEFT_OUT)
    assert not caller.wrong, caller.report()
    assert caller.succeeded() >= DONE, sorted(DONE - caller.succeeded())
    assert {name for name in caller.open if not name.startswith("get ")} == {FREEZE}, "nothing is done for strangers"


@pytest.mark.long
async def test_every_route_and_its_parameters_are_described(world: World) -> None:
    described = (await world.client.get("/openapi/openapi.json")).json()
    for path in ("/openapi.yaml", "/openapi/openapi.yaml"):
        assert yaml.load((await world.client.get(path)).text, yaml.CSafeLoader) == described, path
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
    assert not any("{path}" in name and "/api/" in name for name in described["paths"])
    builds = described["paths"]["/api/tenant/{tenant}/builds"]["get"]
    parameters = {one["name"] for one in builds["parameters"] if one["in"] == "query"}
    assert {"project", "pipeline", "change", "branch", "patchset", "ref", "newrev", "uuid", "job_name", "voting",
            "nodeset", "result", "final", "held", "complete", "limit", "skip", "idx_min", "idx_max",
            "exclude_result"} <= parameters, "the reference's filters"  # fmt: skip
    control = described["paths"]["/api/tenant/{tenant}/project/{project}/enqueue"]["post"]
    assert control["requestBody"]["content"]["application/json"]["schema"]["$ref"].endswith("/ForChange")
    refused = {name: one["responses"] for name, one in described["paths"]["/api/tenant/{tenant}/patch"].items()}
    assert {"304", "401", "404", "502", "503"} <= refused["get"].keys()
    files = described["paths"]["/t/{tenant}/logs/{build}/{path}"]["get"]["responses"]
    assert {"200", "206", "304", "404", "416"} <= files.keys()
