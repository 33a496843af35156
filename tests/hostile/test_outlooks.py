"""Test that a change's page shows only its own tenant, and costs a gate little, however often it is requested."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import httpx

from headgate.adapters.sql.history import SqlHistory
from headgate.recipes.mirrorpart import MirrorPart
from headgate.store.memory import MemoryBackend
from headgate.testing.gate import gate
from headgate.testing.repositories import Repositories
from headgate.web.access import Access
from tests.site import client_of, site_of
from tests.waiting import until

PIPELINES = """
- pipeline:
    name: gate
    manager: dependent
    trigger: {local: [{event: change-approved}]}
    require: {local: {approved: true}}
    success: {local: {land: true}}
    failure: {local: {}}
- project: {name: ^code/.*, gate: {jobs: [noop]}}
"""
TENANTS = """
- tenant:
    name: example
    source: {local: {config-projects: [config], untrusted-projects: [code/open]}}
- tenant:
    name: other
    source: {local: {config-projects: [config], untrusted-projects: [code/secret]}}
"""


async def description_of(
    client: httpx.AsyncClient, tenant: str, project: str, topic: str, needs: int
) -> dict[str, Any]:
    """Return the description of a change once this many dependencies in both directions are known."""

    async def description() -> dict[str, Any]:
        answer = await client.get(f"/api/tenant/{tenant}/change", params={"project": project, "change": topic})
        found: dict[str, Any] = answer.json()
        return found if answer.status_code == 200 and len(found["needs"]) + len(found["needed_by"]) >= needs else {}

    return await until(f"{topic} is told with {needs} others", description)


async def test_a_change_reveals_nothing_of_changes_of_another_tenant(tmp_path: Path, monkeypatch: Any) -> None:
    repositories = Repositories(tmp_path)
    repositories.create("config", {"zuul.yaml": PIPELINES})
    for name in ("code/open", "code/secret"):
        repositories.create(name, {"README": "here\n"})
    begun = list[MirrorPart]()
    monkeypatch.setattr(MirrorPart, "__init__", _counted(MirrorPart.__init__, begun))
    history = SqlHistory(f"sqlite:///{tmp_path / 'history.db'}")
    async with gate(tmp_path, repositories.hub, MemoryBackend(), TENANTS) as run:
        site = site_of(run.context, run.scheduler.tenants, history, tmp_path / "logs", Access("secret"))
        async with client_of(site) as client, client_of(site) as another:
            base = "Depends-On: git.example/{}\n"
            repositories.propose("code/secret", "deepest", {"a": "1\n"}, "hush")
            deeper = "hush\n\n" + base.format("code/secret/master/deepest")
            repositories.propose("code/secret", "named", {"b": "1\n"}, deeper)
            probe = "Look\n\n" + base.format("code/secret/master/named")
            repositories.propose("code/open", "probe", {"c": "1\n"}, probe)
            behind = "hush\n\n" + base.format("code/open/master/probe")
            repositories.propose("code/secret", "behind", {"d": "1\n"}, behind)

            own = await description_of(client, "other", "code/secret", "behind", 1)
            assert [one["state"] for one in own["needs"]] == ["unknown"], "what that needs is not told, either"
            inner = await description_of(client, "other", "code/secret", "named", 1)
            assert [one["ref"]["topic"] for one in inner["needs"]] == ["deepest"], "to whom it belongs it is told"
            description = await description_of(client, "example", "code/open", "probe", 1)
            (needed,) = description["needs"]
            assert (needed["state"], needed["ref"]) == ("unknown", None)
            assert (needed["key"], description["needed_by"]) == ("git.example/code/secret/master/named", [])

            counted, real = list[str](), history.reset_costs

            async def costs(tenant: str, *arguments: Any) -> Any:
                counted.append(tenant)
                return await real(tenant, *arguments)

            monkeypatch.setattr(history, "reset_costs", costs)
            monkeypatch.setattr("headgate.web.routes.changes.COSTS_MS", 1 << 40)
            count = len(begun)
            for _ in range(20):
                await another.get("/api/tenant/example/change", params={"project": "code/open", "change": "probe"})
                (listed,) = (await another.get("/api/tenant/example/changes")).json()
            assert counted == ["example"], "the history is asked once for all who ask within a minute"
            assert len(begun) == count, "nothing stays of what was asked"
            assert not {"files", "message", "needs", "needed_by"} & listed.keys(), (
                "a list is as long as its changes are many"
            )
    history.close()


def _counted(init: Any, begun: list[MirrorPart]) -> Any:
    def made(self: MirrorPart, *given: Any) -> None:
        begun.append(self)
        init(self, *given)

    return made
