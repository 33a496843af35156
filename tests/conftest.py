"""Provide real servers, started on first use, and shared by the tests of one process."""

from __future__ import annotations

import asyncio
import gc
import os
from collections.abc import Generator, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

from headgate.testing.logstores import s3
from headgate.testing.servers.databases import Etcd, ZooKeeper, chroot, etcd, postgres, zookeeper
from headgate.testing.servers.nova import missing, nova
from tests.tiers import SHARES, SOAK, in_share, is_named, sampled, share, share_of_commit

# the time to run or shrink an example says nothing on a busy machine
settings.register_profile(
    "here",
    max_examples=share(100),
    deadline=None,
    derandomize=not SOAK,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.load_profile("here")


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, Any, Any]:
    """Collect tests without garbage collection, and exclude objects that live until the end from later collections:
    thousands of tests, and the modules that they have imported."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out tests that this tier does not run, except those that were named."""
    if not is_named(config):
        chosen = in_share(sampled(items))
        config.hook.pytest_deselected(items=list({*items}.difference(chosen)))
        items[:] = chosen


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    """Print which of the long tests ran."""
    now = share_of_commit()
    if now is not None and not is_named(config):
        terminalreporter.write_line(f"of the long tests, share {now} of 0..{SHARES - 1} ran; LONG=all runs every one")


@pytest.hookimpl(wrapper=True)
def pytest_report_to_serializable() -> Generator[None, Any, Any]:
    """Escape undecodable characters in messages of a test: a worker process that cannot send them ends."""
    return _sendable((yield))


def _sendable(value: Any) -> Any:
    match value:
        case str():
            return value.encode("utf-8", "backslashreplace").decode()
        case dict():
            return {_sendable(key): _sendable(inner) for key, inner in value.items()}
        case list() | tuple():
            return type(value)(_sendable(inner) for inner in value)
        case _:
            return value


@pytest.fixture(scope="session")
def zookeeper_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ZooKeeper]:
    """Provide a server that anybody may use without a login. Use your own node: `chroot`."""
    with zookeeper(tmp_path_factory.mktemp("zookeeper")) as running:
        # Its root is ours, whatever others put beside it. In a thread: the caller may have a loop.
        with ThreadPoolExecutor(1) as thread:
            thread.submit(asyncio.run, chroot(running)).result()
        yield running


@pytest.fixture(scope="session")
def s3_server() -> Iterator[str]:
    """Provide the URL of a server that accepts any key. Use your own bucket: `bucket`."""
    with s3() as url:
        yield url


@pytest.fixture(scope="session")
def etcd_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Etcd]:
    """Provide a server that anybody may use. Use your own prefix."""
    with etcd(tmp_path_factory.mktemp("etcd")) as running:
        yield running


@pytest.fixture(scope="session")
def postgres_server() -> Iterator[str]:
    """Provide the URL of a server that anybody may use. Use your own database: `new_database`."""
    with postgres() as url:
        yield url


@pytest.fixture(scope="session")
def nova_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Provide the URL of one server for all test processes. Use your own user."""
    if missing():
        pytest.skip(missing())
    base = tmp_path_factory.getbasetemp()
    with nova((base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / "nova") as url:
        yield url
