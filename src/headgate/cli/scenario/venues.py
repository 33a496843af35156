"""List the venues of `headgate demo`, and play on plain git, where all results are read from git."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from headgate.base.errors import needing
from headgate.cli.launch.process import Process
from headgate.cli.scenario import files
from headgate.cli.scenario.play import DemoChange, Venue
from headgate.cli.terminal.screen import Printing
from headgate.cli.terminal.text import Style
from headgate.services.scheduler.changestates import ChangeStates
from headgate.testing.repositories import Repositories

if TYPE_CHECKING:
    from headgate.cli.scenario.forges.host import Host, StandIn

Say = Printing | None
Opened = Callable[[Path, Say], AbstractAsyncContextManager[Venue]]

SEEN_TIMEOUT_S = 10.0
PIPELINES = """\
- pipeline:
    name: check
    description: Every proposed change, merged with the head of its branch.
    manager: independent
    trigger:
      local:
        - event: change-proposed
    success:
      local: {{}}
    failure:
      local: {{}}

- pipeline:
    name: gate
    description: Approved changes, merged with everything ahead of them; what passes lands.
    manager: dependent
    trigger:
      local:
        - event: change-approved
    require:
      local:
        approved: true
    success:
      local:
        land: true{reports}
    failure:
      local: {{}}{reports}
    window: 20
"""
CONNECTION = """\
[connection local]
driver = git
baseurl = hub
canonical_hostname = demo.example
"""
QUEUE_REPORTS = "\n      told: {}"
"""Configuration that makes a pipeline report to the message queues, too."""
QUEUES = """\

[published_events]
{server}
[connection told]
driver = queue
{server}"""
TENANTS = """\
- tenant:
    name: demo
    source:
      local:
        config-projects:
          - config
        untrusted-projects:
          - core
          - api
          - app
"""


@dataclass(slots=True)
class PlainGit:
    """Run the demonstration with repositories of plain git; see `Venue`."""

    repositories: Repositories
    settings: str
    pipelines: str
    tenant: str = "demo"
    tenants: str = TENANTS
    _system: Process | None = None
    _commits: dict[DemoChange, str] = field(default_factory=dict)

    async def build(self) -> None:
        for name, content in (("config", files.config(self.pipelines)), *files.CODE.items()):
            await asyncio.to_thread(self.repositories.create, name, content)

    async def attend(self, system: Process) -> None:
        self._system = system

    async def propose(
        self, project: str, topic: str, content: Mapping[str, str], title: str, needs: DemoChange | None
    ) -> DemoChange:
        message = title if needs is None else f"{title}\n\nDepends-On: {needs.project}/master/{needs.topic}"
        made = DemoChange(project, topic)
        self._commits[made] = await asyncio.to_thread(self.repositories.propose, project, topic, content, message)
        return made

    async def checked(self, changes: Sequence[DemoChange]) -> None:
        """Return immediately: nobody waits for checks on plain git."""

    async def approve(self, change: DemoChange) -> None:
        await asyncio.to_thread(self.repositories.approve, change.project, change.topic)

    async def heard(self, change: DemoChange) -> None:
        assert self._system is not None, "Headgate runs by now"
        mirror, commit = self._system.context.mirror, self._commits[change]
        change_states = ChangeStates(self._system.context.map, mirror, tuple(self._system.settings.connections))
        # If the approval is not seen in time, the outcome shows it.
        with suppress(TimeoutError):
            async with asyncio.timeout(SEEN_TIMEOUT_S):
                while all(known.approved != commit for known in change_states.now().values()):
                    await mirror.moved(mirror.moves)

    async def look(self, change: DemoChange) -> tuple[str, str]:
        # Reading a note that has not changed takes less time than starting a thread.
        note = self.repositories.note(change.project, self._commits[change])
        _, found, gate = note.partition("Headgate (gate):")
        if not found:
            return "", ""
        outcome = "landed" if "Landed on master as " in gate else "rejected"
        return outcome, gate.split("\nHeadgate (")[0].strip()

    def clone(self, project: str) -> Path:
        return self.repositories.hub / project

    def next_steps(self) -> Sequence[str]:
        app = self.clone("app")
        return (
            "",
            "Your turn:",
            f"  git clone {app} mine && cd mine",
            "  echo hello > HELLO && git add HELLO && git commit -m 'Say hello'",
            "  git push origin HEAD:refs/for/master/hello         # proposes it",
            "  git push origin HEAD:refs/approved/master/hello    # approves it: it lands if it passes",
        )


@asynccontextmanager
async def plain(root: Path, say: Say) -> AsyncIterator[PlainGit]:
    """Provide plain git; with `say`, also a message server and a worker that prints events with it."""
    repositories = Repositories(root)
    if say is None:
        yield PlainGit(repositories, CONNECTION, PIPELINES.format(reports=""))
        return
    with needing("headgate demo --verbose", "demo"):
        from headgate.cli.scenario.audience import KEY, audience
    async with audience(root, lambda text: say(f"a worker received: {text}", "dim")) as url:
        queues = QUEUES.format(server=f"url = {url}\napp_key = {KEY}\n")
        yield PlainGit(repositories, CONNECTION + queues, PIPELINES.format(reports=QUEUE_REPORTS))


def _nothing(what: str, style: Style = "") -> None:
    """Print nothing."""


def _host(forge: str, module_name: str = "standins") -> Callable[[Path], Any]:  # the type of the module's function
    """Return a function that opens a forge below a directory, and imports the forge's module only then."""

    def opened(root: Path) -> Any:  # the type of the module's function
        with needing(f"headgate demo --forge {forge}", "demo"):
            module = import_module(f"headgate.cli.scenario.forges.{module_name}")
        return getattr(module, f"{forge}_host")(root)

    return opened


def _hosted(host: Callable[[Path], AbstractAsyncContextManager[Host]]) -> Opened:
    @asynccontextmanager
    async def opened(root: Path, say: Say) -> AsyncIterator[Venue]:
        async with host(root) as one:
            from headgate.cli.scenario.forges.host import Hosted

            yield Hosted(one, say or _nothing)

    return opened


STAND_INS: Mapping[str, Callable[[Path], AbstractAsyncContextManager[StandIn]]] = {
    forge: _host(forge) for forge in ("gitea", "github", "gitlab", "pagure")
}
"""Name of a forge -> function that opens a stand-in for it below a directory."""
HOSTS: Mapping[str, Callable[[Path], AbstractAsyncContextManager[Host]]] = {
    **STAND_INS,
    "gerrit": _host("gerrit", "gerrit"),
}
"""The same for real forges."""
VENUES: Mapping[str, Opened] = {"git": plain, **{name: _hosted(HOSTS[name]) for name in sorted(HOSTS)}}
"""Name of a venue -> function that opens it below a directory, and prints what happens there."""
