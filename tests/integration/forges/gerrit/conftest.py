"""Provide one Gerrit for the tests of a process; each test has its own projects."""

from __future__ import annotations

import itertools
import os
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import AsyncExitStack
from pathlib import Path

import pytest

from headgate.adapters.forges.gerrit.api import GerritRest as Rest
from headgate.adapters.forges.gerrit.api import gerrit_client
from headgate.adapters.forges.gerrit.driver import GerritForge, git_connection
from headgate.adapters.forges.gerrit.server import Server
from headgate.adapters.forges.gerrit.watchlist import GerritPace
from headgate.adapters.git.engine import GitEngine
from headgate.testing.servers.gerrit import LocalGerrit, gerrit, missing
from headgate.testing.servers.gerritpeople import PASSWORD, Clone, ReviewingPeople

_NUMBERS = itertools.count(1)


@pytest.fixture(scope="session")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalGerrit]:
    if missing():
        pytest.skip(missing())
    with gerrit(tmp_path_factory.mktemp("gerrit")) as server:
        yield server


@pytest.fixture
def people(running: LocalGerrit) -> ReviewingPeople:
    return ReviewingPeople(running.url)


@pytest.fixture
def project(people: ReviewingPeople) -> str:
    name = f"code/{os.getpid()}-{next(_NUMBERS)}"
    people.project(name)
    return name


@pytest.fixture
def clone(people: ReviewingPeople, project: str, tmp_path: Path) -> Clone:
    """Provide alice's clone."""
    return Clone(people.alice, project, tmp_path / "alice")


@pytest.fixture
def past_review(people: ReviewingPeople, project: str, tmp_path: Path) -> Clone:
    """Provide the administrator's clone."""
    return Clone(people.admin, project, tmp_path / "admin")


@pytest.fixture
def server(running: LocalGerrit, tmp_path: Path) -> Callable[..., Server]:
    """Return the settings of the connection, with changes."""
    known = tmp_path / "known_hosts"
    known.write_text("".join(f"{line}\n" for line in running.host_keys))

    def of(**settings: str) -> Server:
        least = {
            "server": "127.0.0.1", "baseurl": running.url, "port": str(running.ssh_port), "user": "headgate",
            "password": PASSWORD, "sshkey": str(running.key), "known_hosts": str(known),
        }  # fmt: skip
        return Server.of("review", {**least, **settings})

    return of


@pytest.fixture
async def rest(server: Callable[..., Server]) -> AsyncIterator[Rest]:
    """Connect as Headgate's account."""
    async with gerrit_client(server()) as client:
        yield Rest(client, server())


Forge = Callable[..., Awaitable[GerritForge]]
QUICK = GerritPace(lately_s=0.5, all_s=3600.0, refs_s=0.5, refs_streamed_s=0.5, silent_s=20.0, retry_min_s=0.1)


@pytest.fixture
async def forge(server: Callable[..., Server], tmp_path: Path) -> AsyncIterator[Forge]:
    """Create a driver, with Headgate's account; `pace` and options of the settings may be given."""
    async with AsyncExitStack() as stack:

        async def of(pace: GerritPace = QUICK, program: str = "ssh", **settings: str) -> GerritForge:
            at = server(**settings)
            client = await stack.enter_async_context(gerrit_client(at))
            engine = GitEngine(tmp_path / f"git-{next(_NUMBERS)}", {at.name: git_connection(at)})
            return GerritForge(at, Rest(client, at), lambda: engine, pace=pace, program=program)

        yield of
