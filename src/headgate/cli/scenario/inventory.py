"""`headgate inventory demo`: a job on two machines of an inventory, which are ssh servers on loopback."""

from __future__ import annotations

import asyncio
import logging
import sys
import tempfile
from pathlib import Path

import click

from headgate.cli.launch.process import Process
from headgate.cli.scenario import stage
from headgate.cli.terminal.say import say
from headgate.testing.servers.sshd import Lab

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
    logging.basicConfig(level=logging.INFO, format="%(name)s: %(message)s")
    for noisy in ("headgate", "headgate.executor", "headgate.scheduler", "headgate.merger", "watchfiles"):
        logging.getLogger(noisy).setLevel(logging.WARNING)
    with tempfile.TemporaryDirectory(prefix="headgate-nodes-", ignore_cleanup_errors=True) as name:
        root = Path(name)
        with stage.two_servers(root) as (lab, ports):
            say(f"Two ssh servers are at 127.0.0.1:{ports[0]} and :{ports[1]}")
            sys.exit(asyncio.run(_demo(root, lab, ports)))


async def _demo(root: Path, lab: Lab, ports: list[int]) -> int:
    repositories = stage.repositories_of(root, {"zuul.yaml": stage.GATE + CONFIG, "pair.yaml": PLAYBOOK})

    async def furnished(system: Process) -> None:
        one, two = (lab.properties(port) for port in ports)
        await stage.add_machine(system, "1" * 32, "one", {**one, "image": "debian"})
        await stage.add_machine(system, "2" * 32, "two", two, "fast")
        say("The inventory has machines one (image=debian) and two (fast)")

    async with stage.running(root, stage.SETTINGS, TENANTS, furnished) as system:
        say("A change is proposed and approved; its job asks for a server and a client")
        landed = await stage.landed(system, repositories)
    used = [line.rpartition(" | ")[2] for line in stage.log_lines(root) if "reached at port" in line and " is " in line]
    say("\n".join(used))
    say(f"demo: nodes {len(used)}, landed {int(landed)}, left 0")
    return 0 if landed and len(used) == len(ports) else 1
