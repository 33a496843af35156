"""Provide a cluster for each test, checked against Kubernetes' own description."""

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
    """Provide it; at the end, every request and answer must be one of Kubernetes'."""
    async with kubernetes(tmp_path / "cluster", plain=True) as found:
        found.judge = judge
        yield found
    assert found.wrong == []


@pytest.fixture
async def driver(cluster: FakeKubernetesServer) -> AsyncIterator[Kubernetes]:
    """Provide a driver for it whose clock stands still."""
    found = driver_of(cluster)
    yield found
    await found.close()
