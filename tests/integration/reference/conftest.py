"""Provide one gate with a landed change, one in progress, and everything that the API shows."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import jwt
import pytest

from headgate.adapters.identity.tokens import authenticator
from headgate.adapters.sql.history import SqlHistory
from headgate.config.operator.file import parse_tenant_file
from headgate.config.operator.model import Connection
from headgate.ports.history import HistoryQuery
from headgate.store.memory import MemoryBackend
from headgate.testing.gate import Gate, gate
from headgate.testing.repositories import Repositories, run_git
from headgate.web.access import Access, Realm, Rules
from headgate.web.app import create_app
from headgate.web.peers.requests import HeadApplication
from headgate.web.process import Vitals
from headgate.web.shapes import ConnectionShape
from headgate.web.site import Site, WebSettings
from tests.site import client_of, site_of
from tests.waiting import until

from ..conftest import TENANTS
from .configured import CONFIG, TENANT_MORE

TENANT = "/api/tenant/example"
SECRET = "a secret of thirty-two bytes, or more"
AXIOS = "application/json, text/plain, */*"
"""Media types that Zuul's dashboard accepts."""


def token(**claims: Any) -> dict[str, str]:
    """Return the header of an administrator of the tenant; `claims` with None are left out."""
    payload = {"iss": "issuer", "aud": "headgate", "sub": "ann", "exp": time.time() + 60}
    payload |= {"zuul": {"admin": ["example"]}, **claims}
    present = {name: value for name, value in payload.items() if value is not None}
    return {"Authorization": f"Bearer {jwt.encode(present, SECRET, 'HS256')}"}


@dataclass(frozen=True, slots=True)
class World:
    client: httpx.AsyncClient
    running: Gate
    history: SqlHistory
    repositories: Repositories
    logs: Path
    site: Site

    async def get(self, path: str, **more: Any) -> Any:  # JSON
        answer = await self.client.get(path.replace("T/", f"{TENANT}/", 1), **more)
        assert answer.status_code == 200, f"{path}: {answer.status_code} {answer.text}"
        return answer.json()

    async def landed(self, topic: str) -> dict[str, Any]:
        """Return the build of `unit` in the gate that landed a change, after the history has recorded all of the
        change."""
        self.repositories.propose("code/api", topic, {topic: "1\n"})
        self.repositories.approve("code/api", topic)
        query = HistoryQuery({"change": (topic,), "final": (True,), "complete": (True,)})

        async def known() -> bool:
            return len(await self.history.buildsets("example", query)) == 2 and not self._leaves()

        await until(f"the history has all of {topic}", known)
        (found,) = await self.get(f"T/builds?change={topic}&pipeline=gate&job_name=unit")
        return dict(found)

    def _leaves(self) -> bool:
        """Return whether anything waits to be recorded in the history."""
        return bool(self.running.context.map.history.stream.length(self.running.context.mirror))

    async def proposed(self, topic: str) -> None:
        """Propose a change; on return, it is in `check`."""
        self.repositories.propose("code/api", topic, {topic: "1\n"})
        await self.in_pipeline(topic, "check")

    async def in_pipeline(self, topic: str, pipeline: str) -> None:
        """Wait until a change is in a pipeline."""

        async def there() -> bool:
            status = await self.get("T/status")
            (found,) = (one for one in status["pipelines"] if one["name"] == pipeline)
            heads = [head for queue in found["change_queues"] for head in queue["heads"]]
            return any(ref["change"] == topic for head in heads for item in head for ref in item["refs"])

        await until(f"{topic} is in {pipeline}", there)

    async def under_way(self, topic: str) -> dict[str, Any]:
        """Return the job of a change that is tested and held, as the status shows it."""
        self.running.runner.hold = asyncio.Event()
        await self.proposed(topic)

        async def tested() -> list[dict[str, Any]]:
            items = await self.get(f"T/status/change/{topic}")
            return [{**job, "item": item} for item in items for job in item["jobs"] if job["start_time"]]

        return (await until(f"{topic} is tested", tested))[0]


@dataclass(frozen=True, slots=True)
class Near:
    """Imitate a reachable store."""

    away_since_ms: int | None = None
    away_why: str = ""


@pytest.fixture
async def world(tmp_path: Path, repositories: Repositories) -> AsyncIterator[World]:
    work = repositories.work("config")
    repositories.write("config", CONFIG)
    run_git("commit", "-q", "-m", "Configure", at=work)
    run_git("push", "-q", "origin", "master", at=work)
    text = TENANTS + TENANT_MORE
    history = SqlHistory(f"sqlite:///{tmp_path}/history.sqlite")
    file = parse_tenant_file(text, "tenants.yaml", {"local": Connection("local", "git.example")})
    section = {"issuer_id": "issuer", "client_id": "headgate", "secret": SECRET}
    realm = Realm(authenticator("ours", section, Path("headgate.conf")), "our-realm", override=True)
    access = Access("operators", [realm], lambda: Rules(file.rules, file.roles, file.api_root))
    async with (
        gate(tmp_path, repositories.hub, MemoryBackend(), text, recording=history) as running,
        running.context.store.session("web") as session,
    ):
        await running.scheduler.tenants["example"].loaded.wait()
        await running.looked_at("git.example/code/api", "git.example/code/lib")
        logs = tmp_path / "logs"
        local = ConnectionShape(name="local", driver="git", baseurl="", canonical_hostname="git.example")
        site = site_of(
            running.context,
            running.scheduler.tenants,
            history,
            logs,
            access,
            session,
            settings=WebSettings(connections=(local,)),
        )
        app = HeadApplication(create_app(site, Vitals(Near(), lambda: b"figures 1\n")))
        async with client_of(app) as client:
            yield World(client, running, history, repositories, logs, site)
    history.close()
