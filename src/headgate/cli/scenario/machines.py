"""The scenario of machines: one is added, a pipeline burns it in, and once it has passed, builds may use it."""

from __future__ import annotations

import asyncio
from pathlib import Path

from headgate.cli.launch.process import Process
from headgate.cli.scenario import stage
from headgate.cli.terminal.screen import Terminal
from headgate.cli.terminal.text import Text
from headgate.testing.servers.sshd import Lab

GOOD, SHORT = "1" * 32, "2" * 32
LAB = """
[connection lab]
driver = inventory
partition = site1
project = lab
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
CONFIG = PIPELINE + stage.GATE.lstrip() + JOBS
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


def play(root: Path, terminal: Terminal) -> int:
    """Play the scenario, and return the exit status: 0 only if everything is as expected. Raise UserError."""
    with stage.two_servers(root) as (lab, ports):
        return asyncio.run(_play(root, lab, ports, terminal))


async def _play(root: Path, lab: Lab, ports: list[int], terminal: Terminal) -> int:
    texts = {"zuul.yaml": CONFIG, "burn-in.yaml": BURN_IN, "integration.yaml": INTEGRATION}
    repositories = stage.repositories_of(root, texts)
    async with stage.running(root, stage.SETTINGS + LAB, TENANTS, _nothing) as system:
        marks = await _burned_in(system, lab, ports, terminal)
        _step(terminal, "a change is approved; its job asks for a machine that is ready")
        landed = await stage.landed(system, repositories)
        _step(terminal, "it ran on m1, and landed; the machine is clean again")
    used = {line.rpartition(" ")[2] for line in stage.log_lines(root) if "this ran on " in line and "echo" not in line}
    good = sum("burned-in" in mark for mark in marks)
    print(f"\ndemo: burned in {good}, broken {len(marks) - good}, landed {int(landed)}", flush=True)
    return 0 if landed and used == {"m1"} and marks == [{"burned-in": "yes"}, {"broken": "yes"}] else 1


def _step(terminal: Terminal, text: str) -> None:
    terminal.print(Text("» ", "bold") + Text(text))


async def _nothing(_: Process) -> None:
    """Do nothing: there is no machine yet."""


async def _burned_in(system: Process, lab: Lab, ports: list[int], terminal: Terminal) -> list[dict[str, str]]:
    """Add two new machines, and return the marks on each."""
    taken = system.context.map.cache.connection("lab").occasions.taken.path
    # Wait until the connection has its first position: an object added before it would start nothing.
    await stage.until(system, lambda: bool(system.context.mirror.under(taken)))
    for uuid, name, cores, port in ((GOOD, "m1", "1", ports[0]), (SHORT, "m2", "4096", ports[1])):
        await stage.add_machine(system, uuid, name, {"cores": cores, **lab.properties(port)})
        _step(terminal, f"{name} is added, sold with {cores} cores; nobody may claim it yet")
    found = []
    for uuid in (GOOD, SHORT):
        marks = dict[str, str]()
        async with asyncio.timeout(stage.DEADLINE_S):
            while not marks:
                # The revision is taken before the look: a change in between is then not missed.
                revision = system.inventory.journal.revision
                object, _ = await system.inventory.get(stage.ROOT, uuid)
                marks = {key: value for key, value in object.properties.items() if key in ("burned-in", "broken")}
                if not marks:
                    await system.inventory.journal.passed(revision)
        _step(terminal, f"{object.name} {'is burned in' if 'burned-in' in marks else 'is broken'}")
        found.append(marks)
    return found
