"""The story of machines: one is added, a pipeline burns it in, and once it has passed, builds are given it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

from rich.console import Console

from headgate.base.errors import UserError
from headgate.cli.running.components import Process, add_everything, process
from headgate.cli.settings import read
from headgate.inventory.model import ADMIN, PROVIDER, Caller, Object, Partition
from headgate.services.inventory.draft import Create
from headgate.services.inventory.pool import MACHINE
from headgate.services.scheduler.standings import Standings
from headgate.testing.repositories import Repositories, run_git
from headgate.testing.servers.sshd import Lab, program

DEADLINE_S = 120.0
SITE, GOOD, SHORT = "5" * 32, "1" * 32, "2" * 32
SETTINGS = """
[scheduler]
tenant_config = tenants.yaml
[connection local]
baseurl = hub
canonical_hostname = git.example
[connection lab]
driver = inventory
partition = site1
project = lab
[web]
port = 0
[executor]
trusted_ro_paths = lab
"""
TENANTS = """
- tenant:
    name: demo
    labels:
      - {name: new-machine, project: lab, search: "provider=racks", triggering: true}
      - {name: ready, project: lab, search: "burned-in=yes"}
    source:
      local: {config-projects: [config], untrusted-projects: [app]}
"""
CONFIG = """
- pipeline:
    name: burn-in
    manager: independent
    trigger:
      lab: {event: object-created, filter: "provider=racks !burned-in !broken", project: config}
    success:
      lab: {set: {burned-in: "yes"}}
    failure:
      lab: {set: {broken: "yes"}}
- pipeline:
    name: gate
    manager: dependent
    trigger: {local: [{event: change-approved}]}
    require: {local: {approved: true}}
    success: {local: {land: true}}
    failure: {local: {}}
- job: {name: base, parent: null, abstract: true}
- job:
    name: burn-in
    run: burn-in.yaml
    nodeset: {nodes: [{name: machine, label: new-machine}]}
- job:
    name: integration
    run: integration.yaml
    nodeset: {nodes: [{name: server, label: ready}]}
- project: {name: config, burn-in: {jobs: [burn-in]}}
- project: {name: app, gate: {jobs: [integration]}}
"""
BURN_IN = """
- hosts: machine
  gather_facts: false
  tasks:
    - shell: test "$(nproc)" -ge {{ zuul.trigger.object.properties.cores | quote }}
    - shell: dd if=/dev/zero bs=1M count=64 2> /dev/null | sha256sum
"""
INTEGRATION = """
- hosts: server
  gather_facts: false
  tasks:
    - shell: echo this ran on {{ headgate_machine }}
"""


def play(root: Path, console: Console) -> int:
    """Return the exit status: 0 only if all is as expected.  Raise UserError."""
    if program() is None:
        raise UserError("this needs sshd: apt-get install openssh-server")
    with ExitStack() as stack:
        lab = Lab(root / "lab")
        ports = [stack.enter_context(lab.server()) for _ in range(2)]
        return asyncio.run(_play(root, lab, ports, console))


async def _play(root: Path, lab: Lab, ports: list[int], console: Console) -> int:
    repositories = Repositories(root)
    texts = {"zuul.yaml": CONFIG, "burn-in.yaml": BURN_IN, "integration.yaml": INTEGRATION}
    repositories.create("config", texts)
    repositories.create("app", {"README": "app\n"})
    (root / "headgate.conf").write_text(SETTINGS)
    (root / "tenants.yaml").write_text(TENANTS)
    stop, served = asyncio.Event(), asyncio.Event()
    async with process(read(root / "headgate.conf"), stop) as whole:
        await _furnish(whole)
        await add_everything(whole, lambda port: served.set())
        running = asyncio.ensure_future(whole.run())
        try:
            await served.wait()
            marks = await _burned_in(whole, lab, ports, console)
            landed = await _landed(whole, repositories, console)
        finally:
            stop.set()
            await running
    said = [line for log in root.glob("state/logs/*/job-output.txt") for line in log.read_text().splitlines()]
    used = {line.rpartition(" ")[2] for line in said if "this ran on " in line and "echo" not in line}
    good = sum("burned-in" in mark for mark in marks)
    print(f"\ndemo: burned in {good}, broken {len(marks) - good}, landed {int(landed)}", flush=True)
    return 0 if landed and used == {"m1"} and marks == [{"burned-in": "yes"}, {"broken": "yes"}] else 1


async def _furnish(whole: Process) -> None:
    """A partition, and a provider of machines in it."""
    root = Caller("root", "lab", SITE, frozenset({ADMIN}))
    await whole.inventory.begin()
    await whole.inventory.admin.create_partition(root, Partition(SITE, "site1"))
    provider = Object(SITE, PROVIDER, "", "6" * 32, "racks", {"kind": "static"})
    await whole.inventory.apply(root, [Create(provider)])


async def _burned_in(whole: Process, lab: Lab, ports: list[int], console: Console) -> list[dict[str, str]]:
    """What each of two new machines is marked with."""
    root = Caller("root", "lab", SITE, frozenset({ADMIN}))
    taken = whole.context.map.cache.connection("lab").occasions.taken.path
    await _until(whole, lambda: bool(whole.context.mirror.under(taken)))
    for uuid, name, cores, port in ((GOOD, "m1", "1", ports[0]), (SHORT, "m2", "4096", ports[1])):
        said = {"provider": "racks", "cores": cores, **lab.properties(port)}
        await whole.inventory.apply(root, [Create(Object(SITE, MACHINE, "lab", uuid, name, said))])
        console.print(f"[bold]»[/] {name} is added, sold with {cores} cores; nobody may claim it yet")
    found = []
    for uuid in (GOOD, SHORT):
        marks = dict[str, str]()
        async with asyncio.timeout(DEADLINE_S):
            while not marks:
                revision = whole.inventory.journal.revision
                object, _ = await whole.inventory.get(root, uuid)
                marks = {key: value for key, value in object.properties.items() if key in ("burned-in", "broken")}
                if not marks:
                    await whole.inventory.journal.passed(revision)
        console.print(f"[bold]»[/] {object.name} {'is burned in' if 'burned-in' in marks else 'is broken'}")
        found.append(marks)
    return found


async def _landed(whole: Process, repositories: Repositories, console: Console) -> bool:
    """Whether a change landed whose job needs a machine that is burned in."""
    commit = repositories.propose("app", "greet", {"hello": "hi\n"})
    repositories.approve("app", "greet")
    console.print("[bold]»[/] a change is approved; its job asks for a machine that is ready")
    standings = Standings(whole.context.map, whole.context.mirror, ("local",))
    await _until(whole, lambda: any(known.landed for known in standings.now().values()))
    landed = bool(run_git("branch", "--contains", commit, "master", at=repositories.hub / "app"))
    await _until(whole, lambda: not whole.context.mirror.under(whole.context.map.nodes.path))
    console.print("[bold]»[/] it ran on m1, and landed; the machine is clean again")
    return landed


async def _until(whole: Process, holds: Callable[[], bool]) -> None:
    """As the mirror shows it."""
    async with asyncio.timeout(DEADLINE_S):
        while not holds():
            await whole.context.mirror.moved(whole.context.mirror.moves)
