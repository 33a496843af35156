"""What the description says is what is answered, whatever is asked: no other status, type or shape, and no fault."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import pytest
import schemathesis
import yaml
from hypothesis import HealthCheck, Phase, given, settings
from schemathesis.checks import CHECKS

from headgate.web.app import ROUTES

from .conftest import World, token

EXAMPLES = 5
"""Requests of each operation: by a stranger and an administrator, for what there is and for what is made up."""
CHECKED = ("not_a_server_error", "status_code_conformance", "content_type_conformance", "response_schema_conformance")
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


@dataclass(slots=True)
class Caller:
    """Asks from a thread of its own, as what makes up requests knows no event loop."""

    world: World
    loop: asyncio.AbstractEventLoop
    statuses: dict[str, set[int]] = field(default_factory=dict)
    """Method and path -> what was answered."""
    wrong: dict[str, str] = field(default_factory=dict)

    def ask(self, operation: Any, headers: Mapping[str, str]) -> None:
        """Ask one operation in many ways."""

        @given(case=operation.as_strategy())
        @settings(
            max_examples=EXAMPLES,
            derandomize=True,
            database=None,
            deadline=None,
            phases=[Phase.generate],
            suppress_health_check=list(HealthCheck),
        )
        def one(case: Any) -> None:
            self._once(f"{operation.method} {operation.path}", case, headers)

        one()

    def _once(self, name: str, case: Any, headers: Mapping[str, str]) -> None:
        told = case.as_transport_kwargs(base_url="http://headgate.example")
        told = {**told, "headers": {**told["headers"], **headers}}
        told.pop("cookies", None)
        method, url = told.pop("method"), told.pop("url")
        sending = self.world.client.request(method, url, **told)
        answer = asyncio.run_coroutine_threadsafe(sending, self.loop).result()
        self.statuses.setdefault(name, set()).add(answer.status_code)
        try:
            case.validate_response(answer, checks=[CHECKS.get_one(name) for name in CHECKED])
        except BaseExceptionGroup as found:
            asked = {key: value for key, value in told.items() if key != "headers"}
            why = "; ".join(str(one) for one in found.exceptions)
            self.wrong[name] = f"{url} {asked}: {answer.status_code} {answer.text[:500]}: {why}"


async def test_whatever_is_asked_is_answered_as_described(world: World) -> None:
    landed = await world.landed("done")
    known = {**KNOWN, "uuid": [landed["uuid"], landed["buildset"]["uuid"]], "build": [landed["uuid"]]}
    answer, caller = await world.client.get("/openapi.yaml"), Caller(world, asyncio.get_running_loop())
    for values in (known, {}):
        described = yaml.safe_load(answer.text)
        for item in described["paths"].values():
            for operation in item.values():
                for one in operation["parameters"]:
                    if one["in"] == "path" and one["name"] in values:
                        one["schema"] = {"enum": values[one["name"]]}
        for found in schemathesis.openapi.from_dict(described).get_all_operations():
            asked = found.ok()
            if not asked.path.endswith(LEFT_OUT):
                for headers in ({}, token()):
                    await asyncio.to_thread(caller.ask, asked, headers)
    assert not caller.wrong, "\n\n".join(f"{name}: {what}" for name, what in caller.wrong.items())
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
