"""Provide what demonstrations with machines need: `headgate run` in this process, with an inventory of ssh servers."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator, Mapping
from contextlib import ExitStack, asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

from headgate.base.errors import UserError
from headgate.cli.launch.components import add_everything
from headgate.cli.launch.process import Process, process
from headgate.cli.settings import read
from headgate.inventory.model import ADMIN, PROVIDER, Caller, Object, Partition
from headgate.services.inventory.draft import Create
from headgate.services.inventory.pool import MACHINE
from headgate.services.scheduler.changestates import ChangeStates
from headgate.testing.repositories import Repositories, run_git
from headgate.testing.servers.sshd import Lab, program

DEADLINE_S = 120.0
SITE = "5" * 32
ROOT = Caller("root", "lab", SITE, frozenset({ADMIN}))
SETTINGS = """
[scheduler]
tenant_config = tenants.yaml
[connection local]
baseurl = hub
canonical_hostname = git.example
[web]
port = 0
"""
GATE = """
- pipeline:
    name: gate
    manager: dependent
    trigger: {local: [{event: change-approved}]}
    require: {local: {approved: true}}
    success: {local: {land: true}}
    failure: {local: {}}
"""
Furnish = Callable[[Process], Coroutine[Any, Any, None]]


@contextmanager
def two_servers(root: Path) -> Iterator[tuple[Lab, list[int]]]:
    """Provide two ssh servers and their ports.  Raise UserError where there is no sshd."""
    if program() is None:
        raise UserError("this needs sshd: apt-get install openssh-server")
    with ExitStack() as stack:
        lab = Lab(root / "lab")
        yield lab, [stack.enter_context(lab.server()) for _ in range(2)]


def repositories_of(root: Path, config: Mapping[str, str]) -> Repositories:
    """Return the repositories: one with the configuration, and one with an application."""
    repositories = Repositories(root)
    repositories.create("config", dict(config))
    repositories.create("app", {"README": "app\n"})
    return repositories


@asynccontextmanager
async def running(root: Path, settings: str, tenants: str, furnish: Furnish) -> AsyncIterator[Process]:
    """Provide everything, once the pages are served; `furnish` is called before anything runs."""
    (root / "headgate.conf").write_text(settings)
    (root / "tenants.yaml").write_text(tenants)
    stop, served = asyncio.Event(), asyncio.Event()
    async with process(read(root / "headgate.conf"), stop) as system:
        # Objects are there before the launcher starts, as in an inventory that somebody has kept for long.
        await system.inventory.begin()
        await system.inventory.admin.create_partition(ROOT, Partition(SITE, "site1"))
        provider = Object(SITE, PROVIDER, "", "6" * 32, "racks", {"kind": "static"})
        await system.inventory.apply(ROOT, [Create(provider)])
        await furnish(system)
        await add_everything(system, lambda port: served.set())
        running = asyncio.ensure_future(system.run())
        try:
            await served.wait()
            yield system
        finally:
            stop.set()
            await running


async def add_machine(system: Process, uuid: str, name: str, properties: Mapping[str, str], *tags: str) -> None:
    """Put a machine into the inventory, in the project lab."""
    made = Object(SITE, MACHINE, "lab", uuid, name, {"provider": "racks", **properties}, tags)
    await system.inventory.apply(ROOT, [Create(made)])


async def landed(system: Process, repositories: Repositories) -> bool:
    """Propose a change of the application, approve it, and wait until its machines are clean again; return whether
    its branch has it."""
    commit = repositories.propose("app", "greet", {"hello": "hi\n"})
    repositories.approve("app", "greet")
    context = system.context
    change_states = ChangeStates(context.map, context.mirror, ("local",))
    await until(system, lambda: any(known.landed for known in change_states.now().values()))
    has = bool(run_git("branch", "--contains", commit, "master", at=repositories.hub / "app"))
    await until(system, lambda: not context.mirror.under(context.map.nodes.path))
    return has


async def until(system: Process, holds: Callable[[], bool]) -> None:
    """Wait until the condition holds in the mirror. Raise UserError when that takes too long."""
    try:
        async with asyncio.timeout(DEADLINE_S):
            while not holds():
                await system.context.mirror.moved(system.context.mirror.moves)
    except TimeoutError as error:
        raise UserError(f"demo: it is not done after {DEADLINE_S:.0f} s") from error


def log_lines(root: Path) -> list[str]:
    """Return the lines of the logs of all builds."""
    return [line for log in root.glob("state/logs/*/job-output.txt") for line in log.read_text().splitlines()]
