"""Test that dependencies of a scheduler's works are computed once for each tenant file, however often something
changes."""

from __future__ import annotations

from typing import Any, cast

from headgate.config.operator.model import Tenant, TenantProject
from headgate.services.configuration import readers
from headgate.services.scheduler import scheduler as module
from headgate.services.scheduler.scheduler import Scheduler


class Tenancy:
    """Hold the tenants of a file that a test exchanges."""

    def __init__(self, *tenants: Tenant) -> None:
        self.known = {one.name: one for one in tenants}

    def tenants(self) -> dict[str, Tenant]:
        return dict(self.known)


def tenant(name: str, *projects: TenantProject) -> Tenant:
    return Tenant(name=name, projects=projects)


def project(name: str, connection: str = "git") -> TenantProject:
    return TenantProject(project=f"{connection}/{name}", name=name, connection=connection, trusted=False)


def test_nothing_is_worked_out_again_until_the_file_changes(monkeypatch: Any) -> None:
    calls = list[int]()
    monkeypatch.setattr(module, "readers", lambda tenants: calls.append(1) or readers(tenants))
    tenancy = Tenancy(tenant("a", project("one"), project("two")), tenant("b", project("one"), project("far", "hub")))
    runs = Scheduler(cast(Any, None), cast(Any, tenancy), {}, cast(Any, None))
    first = runs._rights()
    assert all(runs._rights() is first for _ in range(1_000)) and len(calls) == 1
    assert first.followed == {"a": {"git/one", "git/two"}, "b": {"git/one", "hub/far"}}
    assert first.sources("hub").keys() == {"hub/far"} and first.sources("git").keys() == {"git/one", "git/two"}
    assert first.readings("b").keys() == {"git/one", "hub/far"} and first.readings("b") is first.readings("b")
    tenancy.known["b"] = tenant("b", project("two"))
    assert runs._rights() is not first and runs._rights().followed["b"] == {"git/two"}
    assert len(calls) == 2
