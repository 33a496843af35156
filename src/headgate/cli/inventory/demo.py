"""`headgate inventory demo`: a job on two machines of an inventory, which are ssh servers on loopback."""

from __future__ import annotations

import asyncio
import logging
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

import click

from headgate.base.errors import UserError
from headgate.cli.inventory.faces import make_inventory
from headgate.cli.running.components import Process, add_everything, process
from headgate.cli.settings import read
from headgate.inventory.model import ADMIN, PROVIDER, Caller, Object, Partition
from headgate.services.inventory.draft import Create
from headgate.services.inventory.pool import MACHINE
from headgate.testing.repositories import Repositories, run_git
from headgate.testing.servers.sshd import Lab, program

DEADLINE_S = 120.0
SITE = "5" * 32
SETTINGS = """
[scheduler]
tenant_config = tenants.yaml
[connection local]
baseurl = hub
canonical_hostname = git.example
[web]
port = 0
[executor]
trusted_ro_paths = lab
"""
TENANTS = """
- tenant:
    name: demo
    max-nodes-per-project: 2
    labels:
      - {name: server, project: lab, search: "image=debian !reserved"}
      - {name: client, project: lab, search: "tag:fast"}
    source:
      local: {config-projects: [config], untrusted-projects: [app]}
"""
CONFIG = """
- pipeline:
    name: gate
    manager: dependent
    trigger: {local: [{event: change-approved}]}
    require: {local: {approved: true}}
    success: {local: {land: true}}
    failure: {local: {}}
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
PLAYBOOK = """
- hosts: all
  gather_facts: false
  tasks:
    - shell: |
        port=$(echo $SSH_CONNECTION | cut -d' ' -f4)
        echo {{ inventory_hostname }} is {{ headgate_machine }}, reached at port $port
"""


@click.command("demo")
def command() -> None:
    """Run a job on two labelled machines: ssh servers on loopback, claimed from an inventory, clean afterwards."""
    if program() is None:
        raise UserError("this needs sshd: apt-get install openssh-server")
    logging.basicConfig(level=logging.INFO, format="%(name)s: %(message)s")
    for noisy in ("headgate", "headgate.executor", "headgate.scheduler", "headgate.merger", "watchfiles"):
        logging.getLogger(noisy).setLevel(logging.WARNING)
    with (
        tempfile.TemporaryDirectory(prefix="headgate-nodes-", ignore_cleanup_errors=True) as name,
        ExitStack() as stack,
    ):
        lab = Lab(Path(name) / "lab")
        ports = [stack.enter_context(lab.server()) for _ in range(2)]
        click.echo(f"Two ssh servers are at 127.0.0.1:{ports[0]} and :{ports[1]}")
        sys.exit(asyncio.run(_demo(Path(name), lab, ports)))


async def _demo(root: Path, lab: Lab, ports: list[int]) -> int:
    repositories = Repositories(root)
    repositories.create("config", {"zuul.yaml": CONFIG, "pair.yaml": PLAYBOOK})
    repositories.create("app", {"README": "app\n"})
    (root / "headgate.conf").write_text(SETTINGS)
    (root / "tenants.yaml").write_text(TENANTS)
    stop, served = asyncio.Event(), asyncio.Event()
    async with process(read(root / "headgate.conf"), stop) as whole:
        await _furnish(whole, lab, ports)
        await add_everything(whole, lambda port: served.set())
        running = asyncio.ensure_future(whole.run())
        try:
            await served.wait()
            commit = repositories.propose("app", "greet", {"hello": "hi\n"})
            repositories.approve("app", "greet")
            click.echo("A change is proposed and approved; its job asks for a server and a client")
            landed = await _until(
                lambda: run_git("branch", "--contains", commit, "master", at=repositories.hub / "app")
            )
            nodes = whole.context.map.nodes.path
            clean = await _until(lambda: not whole.context.mirror.under(nodes))
        finally:
            stop.set()
            await running
    said = [line for log in root.glob("state/logs/*/job-output.txt") for line in log.read_text().splitlines()]
    used = [line.rpartition(" | ")[2] for line in said if "reached at port" in line and " is " in line]
    click.echo("\n".join(used))
    click.echo(f"demo: nodes {len(used)}, landed {int(landed)}, left {int(not clean)}")
    return 0 if landed and clean and len(used) == len(ports) else 1


async def _furnish(whole: Process, lab: Lab, ports: list[int]) -> None:
    """An inventory of one partition, with a provider and its machines."""
    inventory = make_inventory(whole.settings, whole.context.store)
    root = Caller("root", "lab", SITE, frozenset({ADMIN}))
    await inventory.begin()
    await inventory.admin.create_partition(root, Partition(SITE, "site"))
    provider = Object(SITE, PROVIDER, "", "6" * 32, "racks", {"kind": "static"})
    said = [{"provider": "racks", **lab.properties(port)} for port in ports]
    one = Object(SITE, MACHINE, "lab", "1" * 32, "one", {**said[0], "image": "debian"})
    two = Object(SITE, MACHINE, "lab", "2" * 32, "two", said[1], ("fast",))
    await inventory.apply(root, [Create(made) for made in (provider, one, two)])
    click.echo("The inventory has machines one (image=debian) and two (fast)")


async def _until(holds: Callable[[], object]) -> bool:
    """Looked at every moment, for what happens outside of the store; False when it takes too long."""
    end_s = time.monotonic() + DEADLINE_S
    while time.monotonic() < end_s:
        if await asyncio.to_thread(holds):
            return True
        await asyncio.sleep(0.1)
    return False
