"""A project with a base job of its own, as sites have them, and one machine for its playbooks."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from msgspec.structs import replace

from headgate.config.model import Node, NodeGroup, Nodeset, Playbook
from headgate.gate.work import BuildOutcome
from headgate.ports.provider import HOST_KEY_VARIABLE
from headgate.ports.secrets import Secrets
from headgate.testing.servers.sshd import Lab
from tests.integration.builds.bench import Bench

NODES = Nodeset(nodes=(Node(("one",), "any"),), groups=(NodeGroup("web", ("one",)),))


class Stage:
    """With a `lab` the machine is reached over ssh; else it is this one."""

    def __init__(self, root: Path, lab: Lab | None = None, port: int = 0) -> None:
        self.root, self.lab = root, lab
        self.hosts = {"one": {"ansible_connection": "local"}}
        if lab is not None:
            self.hosts = {"one": {**lab.properties(port), HOST_KEY_VARIABLE: lab.host_key}}
        self.bench = self.opened()

    @property
    def is_far(self) -> bool:
        return self.lab is not None

    def opened(self, keys: Secrets | None = None) -> Bench:
        place = self.root / ("keys" if keys else "plain")
        place.mkdir()
        self.bench = Bench(place, "bwrap", keys=keys)
        return self.bench

    def book(self, name: str, text: str, *, trusted: bool = False, **more: Any) -> Playbook:
        return replace(self.bench.script(name, text), trusted=trusted, **more)

    def file(self, name: str, text: str) -> None:
        """Of the project."""
        self.bench.script(name, text)

    async def build(self, *, spec: dict[str, Any] | None = None, **job: Any) -> BuildOutcome:
        """Of a job that succeeds."""
        nodes = {"nodeset": NODES, "spec": {"hosts": self.hosts, **(spec or {})}}
        outcome = await self.bench.start(**nodes, **job)
        assert outcome.result == "SUCCESS", f"{outcome.error}\n{self.log}"
        return outcome

    @property
    def log(self) -> str:
        return self.bench.log
