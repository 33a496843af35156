"""A cluster for each test, held to Kubernetes' own description."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from headgate.adapters.nodes.clouds.kubernetes.driver import Kubernetes
from headgate.testing.servers.kubernetes.server import FakeKubernetesServer, kubernetes
from tests.integration.kubernetes.description import judge
from tests.integration.kubernetes.ground import driver_of


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[FakeKubernetesServer]:
    """Provide it; at the end nothing was asked or answered that Kubernetes would not."""
    async with kubernetes(tmp_path / "cluster", plain=True) as found:
        found.judge = judge
        yield found
    assert found.wrong == []


@pytest.fixture
async def driver(cluster: FakeKubernetesServer) -> AsyncIterator[Kubernetes]:
    """Provide a driver for it that is told how late it is by nobody: its clock stands."""
    found = driver_of(cluster)
    yield found
    await found.close()
