"""A project with a base job of its own, as sites have them, and one machine for its playbooks."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from headgate.config.model import Node, NodeGroup, Nodeset, Playbook
from headgate.gate.work import BuildOutcome
from headgate.ports.provider import HOST_KEY_VARIABLE
from headgate.ports.secrets import Secrets
from headgate.testing.deadline import DEADLINE_S
from headgate.testing.servers.sshd import Lab
from tests.integration.builds.bench import Bench

from .account import Account

NODES = Nodeset(nodes=(Node(("one",), "any"),), groups=(NodeGroup("web", ("one",)),))


class Stage:
    """With a `lab` the machine is reached over ssh, as its `user` or, without one, as this; else it is this one."""

    def __init__(self, root: Path, lab: Lab | None = None, port: int = 0, user: Account | None = None) -> None:
        self.root, self.lab, self.user = root, lab, user
        self.hosts = {"one": {"ansible_connection": "local"}}
        if lab is not None:
            self.hosts = {"one": {**lab.properties(port), HOST_KEY_VARIABLE: lab.host_key}}
        if user is not None:
            self.hosts["one"] |= {"ansible_user": user.name, "ansible_python_interpreter": user.python}
        self.bench = self.opened()

    @property
    def home(self) -> Path:
        """Of who logs in to the machine that is reached over ssh."""
        return self.user.home if self.user else Path.home()

    def as_this_user(self) -> None:
        """Log in as who runs the tests."""
        if self.lab is not None:
            self.hosts["one"] |= self.lab.properties(int(self.hosts["one"]["ansible_port"]))

    @property
    def is_far(self) -> bool:
        return self.lab is not None

    def opened(self, keys: Secrets | None = None, **settings: Any) -> Bench:
        place = self.root / ("keys" if keys else "other" if settings else "plain")
        place.mkdir()
        self.bench = Bench(place, "bwrap", keys=keys, **settings)
        return self.bench

    def book(self, name: str, text: str, *, trusted: bool = False, **more: Any) -> Playbook:
        return replace(self.bench.script(name, text), trusted=trusted, **more)

    def file(self, name: str, text: str) -> None:
        """Of the project."""
        self.bench.script(name, text)

    async def build(self, *, spec: dict[str, Any] | None = None, **job: Any) -> BuildOutcome:
        """Of a job that succeeds."""
        nodes = {"nodeset": NODES, "spec": {"hosts": self.hosts, **(spec or {})}}
        async with asyncio.timeout(DEADLINE_S):
            outcome = await self.bench.start(**nodes, **job)
        assert outcome.result == "SUCCESS", f"{outcome.error}\n{self.log}"
        return outcome

    @property
    def log(self) -> str:
        return self.bench.log
