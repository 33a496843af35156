from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Page, sync_playwright

from headgate.base.ids import fresh
from headgate.testing.repositories import Repositories
from headgate.testing.servers.databases import Etcd, ZooKeeper, chroot
from tests.e2e.browser import CHROMIUM, patient
from tests.integration.conftest import PIPELINES, TENANTS

from .headgate import Headgate

UNIT = """#!/bin/sh
echo "testing $ZUUL_PROJECT $ZUUL_CHANGE"
sleep 0.2
for i in 1 2 3; do echo "line $i"; done
while test -e HOLD && test "$ZUUL_PIPELINE" = gate; do sleep 0.1; done
test ! -e BROKEN
"""


@pytest.fixture
def store(request: pytest.FixtureRequest) -> str:
    """Return its URL; a file unless the test requests something else."""
    if getattr(request, "param", "sqlite") == "sqlite":
        return ""
    if request.param == "etcd":
        etcd: Etcd = request.getfixturevalue("etcd_server")
        return f"etcd://127.0.0.1:{etcd.port}/{fresh()}"
    server: ZooKeeper = request.getfixturevalue("zookeeper_server")
    return f"zookeeper://127.0.0.1:{server.port}{asyncio.run(chroot(server))}"


@pytest.fixture
def headgate(tmp_path: Path, store: str) -> Iterator[Headgate]:
    repositories = Repositories(tmp_path)
    repositories.create("config", {"zuul.yaml": PIPELINES, "jobs/unit": UNIT})
    repositories.create("code/api", {"README": "api\n"})
    repositories.create("code/lib", {"README": "lib\n"})
    running = Headgate(repositories, TENANTS, store)
    running.start()
    yield running
    running.stop()


@pytest.fixture
def page() -> Iterator[Page]:
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(**CHROMIUM)
        yield patient(browser.new_context(viewport={"width": 1200, "height": 800}).new_page())
        browser.close()
