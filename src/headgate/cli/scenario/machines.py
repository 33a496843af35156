"""Show machines of an inventory: two for one job (`headgate inventory demo`), and two that are burned in."""

from __future__ import annotations

import asyncio
import logging
import sys
import tempfile
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator, Mapping
from contextlib import ExitStack, asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

import click

from headgate.base.errors import UserError
from headgate.cli.launch.components import add_everything
from headgate.cli.launch.process import Process, process
from headgate.cli.settings import read
from headgate.cli.terminal.say import say
from headgate.cli.terminal.screen import Terminal
from headgate.cli.terminal.text import Text
from headgate.inventory.model import ADMIN, PROVIDER, Caller, Object, Partition
from headgate.services.inventory.draft import Create
from headgate.services.inventory.pool import MACHINE
from headgate.services.scheduler.changestates import ChangeStates
from headgate.testing.repositories import Repositories, run_git
from headgate.testing.servers.sshd import Lab, program

Furnish = Callable[[Process], Coroutine[Any, Any, None]]

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


PAIR_TENANTS = """
- tenant:
    name: demo
    max-nodes-per-project: 2
    labels:
      - {name: server, project: lab, search: "image=debian !reserved"}
      - {name: client, project: lab, search: "tag:fast"}
    source:
      local: {config-projects: [config], untrusted-projects: [app]}
"""
PAIR_CONFIG = """
- job: {name: base, parent: null, abstract: true}
- job:
    name: pair
    run: pair.yaml
    nodeset:
      nodes:
        - {name: server, label: server}
        - {name: client, label: client}
- project: {name: app, gate: {jobs: [pair]}}
"""
PAIR = """
- hosts: all
  gather_facts: false
  tasks:
    - shell: |
        port=$(echo $SSH_CONNECTION | cut -d' ' -f4)
        echo {{ inventory_hostname }} is {{ headgate_machine }}, reached at port $port
"""
GOOD, SHORT = "1" * 32, "2" * 32
"""Ids of a machine with the cores that its record claims, and of one with fewer."""
LAB = """
[connection lab]
driver = inventory
partition = site1
project = lab
"""
BURN_IN_TENANTS = """
- tenant:
    name: demo
    labels:
      - {name: new-machine, project: lab, search: "provider=racks", triggering: true}
      - {name: ready, project: lab, search: "burned-in=yes"}
    source:
      local: {config-projects: [config], untrusted-projects: [app]}
"""
PIPELINE = """
- pipeline:
    name: burn-in
    manager: independent
    trigger:
      lab: {event: object-created, filter: "provider=racks !burned-in !broken", project: config}
    success:
      lab: {set: {burned-in: "yes"}}
    failure:
      lab: {set: {broken: "yes"}}
"""
JOBS = """\
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
BURN_IN_CONFIG = PIPELINE + GATE.lstrip() + JOBS
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


@contextmanager
def two_servers(root: Path) -> Iterator[tuple[Lab, list[int]]]:
    """Start two ssh servers; yield them and their ports. Raise UserError if there is no sshd."""
    if program() is None:
        raise UserError("this demonstration needs sshd: apt-get install openssh-server")
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
    """Run everything inside the context, which begins once the pages are served. Call `furnish` before anything
    runs."""
    (root / "headgate.conf").write_text(settings)
    (root / "tenants.yaml").write_text(tenants)
    stop, served = asyncio.Event(), asyncio.Event()
    async with process(read(root / "headgate.conf"), stop) as system:
        # Create the objects before the launcher starts, as in an inventory that already exists.
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


async def land_change(system: Process, repositories: Repositories) -> bool:
    """Propose a change to the application, approve it, and wait until its machines are clean again; return whether it
    landed."""
    commit = repositories.propose("app", "greet", {"hello": "hi\n"})
    repositories.approve("app", "greet")
    context = system.context
    change_states = ChangeStates(context.map, context.mirror, ("local",))
    await until(system, lambda: any(known.landed for known in change_states.now().values()))
    has = bool(run_git("branch", "--contains", commit, "master", at=repositories.hub / "app"))
    await until(system, lambda: not context.mirror.under(context.map.nodes.path))
    return has


async def until(system: Process, holds: Callable[[], bool]) -> None:
    """Wait until the condition holds in the mirror. Raise UserError if that takes too long."""
    try:
        async with asyncio.timeout(DEADLINE_S):
            while not holds():
                await system.context.mirror.moved(system.context.mirror.moves)
    except TimeoutError as error:
        raise UserError(f"demo: not finished after {DEADLINE_S:.0f} s") from error


def log_lines(root: Path) -> list[str]:
    """Return the lines of the logs of all builds."""
    return [line for log in root.glob("state/logs/*/job-output.txt") for line in log.read_text().splitlines()]


@click.command("demo")
def command() -> None:
    """Run a job on two labelled machines of an inventory: ssh servers on loopback, which are cleaned afterwards."""
    logging.basicConfig(level=logging.INFO, format="%(name)s: %(message)s")
    for noisy in ("headgate", "headgate.executor", "headgate.scheduler", "headgate.merger", "watchfiles"):
        logging.getLogger(noisy).setLevel(logging.WARNING)
    with tempfile.TemporaryDirectory(prefix="headgate-nodes-", ignore_cleanup_errors=True) as name:
        root = Path(name)
        with two_servers(root) as (lab, ports):
            say(f"Two ssh servers are at 127.0.0.1:{ports[0]} and :{ports[1]}")
            sys.exit(asyncio.run(_demo(root, lab, ports)))


async def _demo(root: Path, lab: Lab, ports: list[int]) -> int:
    repositories = repositories_of(root, {"zuul.yaml": GATE + PAIR_CONFIG, "pair.yaml": PAIR})

    async def furnished(system: Process) -> None:
        one, two = (lab.properties(port) for port in ports)
        await add_machine(system, "1" * 32, "one", {**one, "image": "debian"})
        await add_machine(system, "2" * 32, "two", two, "fast")
        say("The inventory has machines one (image=debian) and two (fast)")

    async with running(root, SETTINGS, PAIR_TENANTS, furnished) as system:
        say("A change is proposed and approved; its job asks for a server and a client")
        landed = await land_change(system, repositories)
    used = [line.rpartition(" | ")[2] for line in log_lines(root) if "reached at port" in line and " is " in line]
    say("\n".join(used))
    say(f"demo: nodes {len(used)}, landed {int(landed)}, left 0")
    return 0 if landed and len(used) == len(ports) else 1


def play(root: Path, terminal: Terminal) -> int:
    """Play the scenario in which machines are burned in, and return the exit status: 0 only if everything is as
    expected. Raise UserError."""
    with two_servers(root) as (lab, ports):
        return asyncio.run(_play(root, lab, ports, terminal))


async def _play(root: Path, lab: Lab, ports: list[int], terminal: Terminal) -> int:
    texts = {"zuul.yaml": BURN_IN_CONFIG, "burn-in.yaml": BURN_IN, "integration.yaml": INTEGRATION}
    repositories = repositories_of(root, texts)
    async with running(root, SETTINGS + LAB, BURN_IN_TENANTS, _nothing) as system:
        marks = await _burned_in(system, lab, ports, terminal)
        _step(terminal, "a change is approved; its job asks for a machine that is ready")
        landed = await land_change(system, repositories)
        _step(terminal, "the job ran on m1, and the change landed; the machine is clean again")
    used = {line.rpartition(" ")[2] for line in log_lines(root) if "this ran on " in line and "echo" not in line}
    good = sum("burned-in" in mark for mark in marks)
    print(f"\ndemo: burned in {good}, broken {len(marks) - good}, landed {int(landed)}", flush=True)
    return 0 if landed and used == {"m1"} and marks == [{"burned-in": "yes"}, {"broken": "yes"}] else 1


def _step(terminal: Terminal, text: str) -> None:
    terminal.print(Text("» ", "bold") + Text(text))


async def _nothing(_: Process) -> None:
    """Do nothing: the scenario adds its machines later."""


async def _burned_in(system: Process, lab: Lab, ports: list[int], terminal: Terminal) -> list[dict[str, str]]:
    """Add two new machines, and return the marks on each."""
    taken = system.context.map.cache.connection("lab").occasions.taken.path
    # Wait until the connection has its first position: an object that is added before that would start nothing.
    await until(system, lambda: bool(system.context.mirror.under(taken)))
    for uuid, name, cores, port in ((GOOD, "m1", "1", ports[0]), (SHORT, "m2", "4096", ports[1])):
        await add_machine(system, uuid, name, {"cores": cores, **lab.properties(port)})
        _step(terminal, f"{name} is added, with {cores} cores according to its vendor; no build may use it yet")
    found = []
    for uuid in (GOOD, SHORT):
        marks = dict[str, str]()
        async with asyncio.timeout(DEADLINE_S):
            while not marks:
                # Read the revision first: a change in between is then not missed.
                revision = system.inventory.journal.revision
                object, _ = await system.inventory.get(ROOT, uuid)
                marks = {key: value for key, value in object.properties.items() if key in ("burned-in", "broken")}
                if not marks:
                    await system.inventory.journal.passed(revision)
        _step(terminal, f"{object.name} {'is burned in' if 'burned-in' in marks else 'is broken'}")
        found.append(marks)
    return found
