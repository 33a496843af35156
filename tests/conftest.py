"""Real servers, started when a test first asks for one, and shared by the tests of one process."""

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

# how long an example takes, or takes to make, says nothing where many work
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
    """Collect tests without looking for garbage, and leave out of each later look what stays until the end: thousands
    of tests, and the modules that they have imported."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out what this tier does not run of tests that were not asked for by name."""
    if not is_named(config):
        chosen = in_share(sampled(items))
        config.hook.pytest_deselected(items=list({*items}.difference(chosen)))
        items[:] = chosen


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    """Say which of the long tests ran."""
    now = share_of_commit()
    if now is not None and not is_named(config):
        terminalreporter.write_line(f"of the long tests, share {now} of 0..{SHARES - 1} ran; LONG=all runs every one")


@pytest.hookimpl(wrapper=True)
def pytest_report_to_serializable() -> Generator[None, Any, Any]:
    """Escapes what is not a text in what a test says: a worker that cannot send it to who gathers the results ends."""
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
    """One that anybody may use without a login.  Take a node of your own: `chroot`."""
    with zookeeper(tmp_path_factory.mktemp("zookeeper")) as running:
        # Its root is ours, whatever others put beside it first.  In a thread: who asks may have a loop.
        with ThreadPoolExecutor(1) as thread:
            thread.submit(asyncio.run, chroot(running)).result()
        yield running


@pytest.fixture(scope="session")
def s3_server() -> Iterator[str]:
    """One that takes any key, by its URL.  Make a bucket of your own: `bucket`."""
    with s3() as url:
        yield url


@pytest.fixture(scope="session")
def etcd_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Etcd]:
    """One that anybody may use.  Take a prefix of your own."""
    with etcd(tmp_path_factory.mktemp("etcd")) as running:
        yield running


@pytest.fixture(scope="session")
def postgres_server() -> Iterator[str]:
    """One that anybody may use, by its URL.  Make a database of your own: `new_database`."""
    with postgres() as url:
        yield url


@pytest.fixture(scope="session")
def nova_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """One for all processes of the tests, by its URL.  Be a user of your own."""
    if missing():
        pytest.skip(missing())
    base = tmp_path_factory.getbasetemp()
    with nova((base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / "nova") as url:
        yield url
