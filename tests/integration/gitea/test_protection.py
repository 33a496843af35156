"""Test which branches are protected, as the driver reports them to tenants that want only those."""

from __future__ import annotations

import pytest

from headgate.adapters.forges import rest
from headgate.config.operator.model import Protection
from tests.integration.gitea.ground import PROJECT, Ground, watched


@pytest.fixture
def here(here: Ground) -> Ground:
    for branch in ("release/1", "release/2", "topic"):
        here.ada.push(here.repository, branch, {"b.txt": f"{branch}\n"})
    return here


def protection_of(*protected: str) -> Protection:
    return Protection(frozenset(protected), frozenset())


async def test_protections_and_their_changes_are_reported(here: Ground) -> None:
    """Gitea sends no delivery when a protection changes: the next full poll finds it."""
    here.hub.world.page_max = 2  # of three pages, so that a short page is not always the last
    here.hub.protect(here.repository, "release/*")
    _, here.forge = here.driver("often", every_s=0.3)
    here.gate.forge = here.forge
    async with watched(here, exclude_unprotected_branches=True) as gate:
        await gate.until(lambda: gate.protections)
        assert gate.protections[0] == protection_of("release/1", "release/2")
        assert gate.heads[PROJECT].keys() == {f"refs/heads/{n}" for n in ("main", "topic", "release/1", "release/2")}
        here.hub.protect(here.repository, "main")
        await gate.until(lambda: gate.protections[-1] == protection_of("main", "release/1", "release/2"))
    await here.forge.close()


async def test_protection_of_branches_is_not_requested_if_no_tenant_needs_it(here: Ground) -> None:
    here.hub.protect(here.repository)
    async with watched(here) as gate:
        pass
    assert gate.protections == []
    assert "/repos/{owner}/{repo}/branches" not in [one.template for one in here.hub.server.log]


async def test_more_branches_than_requested(here: Ground, monkeypatch: pytest.MonkeyPatch) -> None:
    """Anybody who may push could create so many that protected ones are on no requested page."""
    monkeypatch.setattr(rest, "PAGES_MAX", 1)
    here.hub.world.page_max = 2
    here.hub.protect(here.repository, "topic")
    async with watched(here, exclude_unprotected_branches=True) as gate:
        await gate.until(lambda: "too many branches to read" in gate.problems.get(PROJECT, ""))
        assert "refs/heads/topic" in gate.heads[PROJECT]
    assert gate.protections == []
