"""Test that `headgate check --against` Headgate itself finds no difference between offline and running
configuration."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import httpx
import pytest

from headgate.cli.check.against import Only, ReferenceServer, compare_and_close
from headgate.cli.offline.reader import LoadedTenant, ReadingOptions
from headgate.store.memory import MemoryBackend
from headgate.testing.gate import gate
from headgate.testing.repositories import Repositories, run_git
from headgate.web.access import Access
from headgate.web.app import create_app
from tests.site import site_beside

from .conftest import PIPELINES, TENANTS

OWN = """
- secret: {name: key, data: {token: plain}}
- job: {name: first, parent: unit, nodeset: {nodes: [{name: [a, b], label: small}]}, vars: {x: {y: [1, é]}}, tags: t}
- job: {name: second, parent: first, dependencies: {name: first, soft: true}, voting: false, timeout: 60}
- project: {vars: {color: green}, check: {jobs: [second, first, noop]}, gate: {jobs: [first]}}
"""


@pytest.fixture
def repositories(tmp_path: Path) -> Repositories:
    found = Repositories(tmp_path)
    found.create("config", {"zuul.yaml": PIPELINES, "jobs/unit": "#!/bin/sh\nexit 0\n"})
    found.create("code/api", {"zuul.yaml": OWN})
    found.create("code/lib", {"README": "lib\n"})
    run_git("push", "-q", "origin", "HEAD:refs/heads/stable/1", at=found.work("code/api"))
    return found


@pytest.fixture
async def site(tmp_path: Path, repositories: Repositories) -> AsyncIterator[httpx.ASGITransport]:
    async with (
        gate(tmp_path, repositories.hub, MemoryBackend(), TENANTS) as running,
        site_beside(running, tmp_path, Access("")) as made,
    ):
        yield httpx.ASGITransport(create_app(made))


def loaded(tmp_path: Path, repositories: Repositories) -> dict[str, LoadedTenant]:
    (tmp_path / "tenants.yaml").write_text(TENANTS)
    return ReadingOptions(None, tmp_path / "tenants.yaml", repositories.hub, None).load().tenants


async def test_every_graph_is_the_same(site: httpx.ASGITransport, tmp_path: Path, repositories: Repositories) -> None:
    tenants = loaded(tmp_path, repositories)
    found = await compare_and_close(
        tenants, Only(), ReferenceServer("http://headgate.example", "", site), lambda done, of: None
    )
    assert [d for one in found.graphs for d in one.differences] == []
    assert sum(one.jobs for one in found.graphs) >= 8
    assert {one.place.branch for one in found.graphs} == {"master", "stable/1"} and not found.apart


async def test_a_local_difference_from_the_server_is_reported(
    site: httpx.ASGITransport, tmp_path: Path, repositories: Repositories
) -> None:
    tenants = loaded(tmp_path, repositories)
    ((name, one),) = tenants.items()
    project = one.tenant.find("code/api")
    assert project is not None
    changed = one.with_files({project.project: {"master": {"zuul.yaml": OWN.replace("timeout: 60", "timeout: 61")}}})
    found = await compare_and_close(
        {name: changed}, Only(), ReferenceServer("http://headgate.example", "", site), lambda done, of: None
    )
    assert [(d.path, d.old, d.new) for f in found.graphs for d in f.differences] == [("second.timeout", 61, 60)]
