from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from headgate.testing.repositories import Repositories
from tests.integration.conftest import PIPELINES, TENANTS

from .headgate import Headgate

UNIT = """#!/bin/sh
echo "testing $ZUUL_PROJECT $ZUUL_CHANGE"
sleep 0.2
for i in 1 2 3; do echo "line $i"; done
test ! -e BROKEN
"""


@pytest.fixture
def headgate(tmp_path: Path) -> Iterator[Headgate]:
    repositories = Repositories(tmp_path)
    repositories.create("config", {"zuul.yaml": PIPELINES, "jobs/unit": UNIT})
    repositories.create("code/api", {"README": "api\n"})
    repositories.create("code/lib", {"README": "lib\n"})
    running = Headgate(repositories, TENANTS)
    running.start()
    yield running
    running.stop()
