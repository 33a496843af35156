"""Real servers, started when a test first asks for one, and shared by the tests of one process."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from hypothesis import settings

from headgate.testing.servers.etcd import Etcd, etcd
from headgate.testing.servers.zookeeper import ZooKeeper, zookeeper

settings.register_profile("here", deadline=None, derandomize=True)
settings.load_profile("here")


@pytest.fixture(scope="session")
def zookeeper_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ZooKeeper]:
    """One that anybody may use without a login.  Take a node of your own: `chroot`."""
    with zookeeper(tmp_path_factory.mktemp("zookeeper")) as running:
        yield running


@pytest.fixture(scope="session")
def etcd_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Etcd]:
    """One that anybody may use.  Take a prefix of your own."""
    with etcd(tmp_path_factory.mktemp("etcd")) as running:
        yield running
