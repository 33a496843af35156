"""Provide a project with its own base job, as sites have them, and one machine for its playbooks."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from headgate.config.model import Node, NodeGroup, Nodeset, Playbook
from headgate.gate.state.works import BuildOutcome
from headgate.ports.clouds import HOST_KEY_VARIABLE
from headgate.ports.secrets import Secrets
from headgate.testing.clock import DEADLINE_S
from headgate.testing.servers.sshd import Lab
from tests.integration.builds.bench import Bench
from tests.integration.builds.imaged import Images

from .account import Account

NODES = Nodeset(nodes=(Node(("one",), "any"),), groups=(NodeGroup("web", ("one",)),))


class Stage:
    """With a `lab` the machine is reached over ssh, as its `user` or, without one, as the current user; with `images`
    it is a container; else it is this one."""

    def __init__(
        self, root: Path, lab: Lab | None = None, port: int = 0, user: Account | None = None,
        images: Images | None = None,
    ) -> None:  # fmt: skip
        self.root, self.lab, self.user, self.images = root, lab, user, images
        self.hosts: dict[str, dict[str, Any]] = {} if images else {"one": {"ansible_connection": "local"}}
        if lab is not None:
            self.hosts = {"one": {**lab.properties(port), HOST_KEY_VARIABLE: lab.host_key}}
        if user is not None:
            self.hosts["one"] |= {"ansible_user": user.name, "ansible_python_interpreter": user.python}
        self.bench = self.opened()

    @property
    def home(self) -> Path:
        """The home directory of the user on the machine that is reached over ssh."""
        return self.user.home if self.user else Path.home()

    def as_this_user(self) -> None:
        """Log in as the user who runs the tests."""
        if self.lab is not None:
            self.hosts["one"] |= self.lab.properties(int(self.hosts["one"]["ansible_port"]))

    @property
    def is_far(self) -> bool:
        """Return whether the machine is reached over ssh."""
        return self.lab is not None

    @property
    def is_here(self) -> bool:
        """Return whether the machine is the executor itself."""
        return self.lab is None and self.images is None

    def nodes(self, **spec: Any) -> dict[str, Any]:
        """Return the settings of a build on the machine."""
        hosts = {"hosts": self.hosts} if self.hosts else {}
        image = {"image": self.images.system} if self.images else {}
        return {"nodeset": NODES, "spec": {**hosts, **spec}, **image}

    def opened(self, keys: Secrets | None = None, **settings: Any) -> Bench:
        place = self.root / ("keys" if keys else "other" if settings else "plain")
        place.mkdir()
        if self.images is not None:
            self.bench = Bench(place, "container", keys=keys, images=self.images.supply, **settings)
        else:
            self.bench = Bench(place, "bwrap", keys=keys, **settings)
        return self.bench

    def book(self, name: str, text: str, *, trusted: bool = False, **more: Any) -> Playbook:
        return replace(self.bench.script(name, text), trusted=trusted, **more)

    def file(self, name: str, text: str) -> None:
        """Files of the project."""
        self.bench.script(name, text)

    async def build(self, *, spec: dict[str, Any] | None = None, **job: Any) -> BuildOutcome:
        """Return the log of a job that succeeds."""
        async with asyncio.timeout(DEADLINE_S):
            outcome = await self.bench.start(**self.nodes(**(spec or {})), **job)
        assert outcome.result == "SUCCESS", f"{outcome.error}\n{self.log}"
        return outcome

    @property
    def log(self) -> str:
        return self.bench.log
