"""The container of a build as a host of its playbooks, while one of them runs.

A command of ours holds its namespaces, and its supervisor starts what Ansible asks for at a socket, see `server`.  It
has the network, limits, filter and capabilities of untrusted programs in the container, whoever's playbook it is.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from headgate.adapters.process.confinement.server import HOLD
from headgate.adapters.process.confinement.spaces import Network
from headgate.adapters.process.containers.box import Container, boxed, served
from headgate.adapters.process.joblog import JobLog
from headgate.adapters.process.sandbox import Sandbox
from headgate.base.tasks import end

CONNECTION = "headgate_container"
"""Ansible's name of the connection plugin."""
NAME = "container"
"""Name of the host if the job's nodes have no other."""
# The playbook reaches its own limit first, and is what the log then names.
LONGER_S = 60.0
"""How much longer than the playbook the container may live."""


def host() -> dict[str, Any]:
    """Return Ansible's variables for the container. JSON."""
    return {"ansible_connection": CONNECTION, "ansible_user": "root"}


def replaced(hosts: Mapping[str, Mapping[str, Any]]) -> dict[str, dict[str, Any]]:
    """Return the hosts, with the container in place of this machine."""
    is_local = {name: found.get("ansible_connection") == "local" for name, found in hosts.items()}
    return {name: host() if is_local[name] else dict(found) for name, found in hosts.items()} or {NAME: host()}


@dataclass(frozen=True, slots=True)
class BuildNode:
    """Make the container of a build available as a host of its playbooks."""

    sandbox: Sandbox
    container: Container
    place: Path
    """Directory of the socket."""
    owner: int
    """User who may connect."""
    exposed: Sequence[Path]
    """Paths that are read-only in the container."""
    network: Network

    @asynccontextmanager
    async def running(
        self, start: Callable[..., Awaitable[int | str]], log: JobLog, cancel: asyncio.Event, timeout_s: float
    ) -> AsyncIterator[asyncio.Event]:
        """Run it for the context; `start` is `Keeper.run` with the arguments that all commands of the build share.
        Yield an event that is set when the playbook is to end: it was cancelled, or the container has reached a limit.
        Raises Exceeded, OSError."""
        found = boxed(
            self.sandbox, self.container, HOLD, self.network, writable=(), readable=self.exposed, directory=Path("/"),
            environment={},
        )  # fmt: skip
        # `enough` ends the container, which is cancelled by nothing else: its playbook has to end first.
        over, enough = asyncio.Event(), asyncio.Event()

        async def held() -> None:
            try:
                status = await start(
                    found.confined, environment={}, directory=Path("/"), cancel=enough, box=found.box,
                    timeout_s=timeout_s + LONGER_S,
                    serve=served(self.sandbox, self.container, self.place, self.owner),
                )  # fmt: skip
            # A playbook without its container would wait for its connection until its own limit.
            except BaseException:
                over.set()
                raise
            if not enough.is_set():
                log.say(f"The container has ended before the playbook: its {HOLD[0]} ended with {status}")

        async def cancelled() -> None:
            await cancel.wait()
            over.set()

        holding, waiting = asyncio.ensure_future(held()), asyncio.ensure_future(cancelled())
        try:
            yield over
            enough.set()
            # Raises Exceeded if the container reached a limit, in place of what the playbook made of that.
            await holding
        finally:
            await end(holding, waiting)
