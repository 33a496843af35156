"""Where `headgate demo` can play."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path

from headgate.cli.scenario.forges import gerrit, gitea, github, gitlab, pagure
from headgate.cli.scenario.forges.demoforge import Hosted
from headgate.cli.scenario.forges.host import Host, StandIn
from headgate.cli.scenario.plain import plain
from headgate.cli.scenario.venue import Venue

Say = Callable[[str], None]
Opened = Callable[[Path, Say], AbstractAsyncContextManager[Venue]]


def _hosted(host: Callable[[Path], AbstractAsyncContextManager[Host]]) -> Opened:
    @asynccontextmanager
    async def opened(root: Path, say: Say) -> AsyncIterator[Venue]:
        async with host(root) as one:
            yield Hosted(one, say)

    return opened


STAND_INS: Mapping[str, Callable[[Path], AbstractAsyncContextManager[StandIn]]] = {
    "gitea": gitea.host,
    "github": github.host,
    "gitlab": gitlab.host,
    "pagure": pagure.host,
}
"""Name of a forge -> what opens a stand-in for it, below a directory."""
HOSTS: Mapping[str, Callable[[Path], AbstractAsyncContextManager[Host]]] = {**STAND_INS, "gerrit": gerrit.host}
"""With those that are the forge itself."""
VENUES: Mapping[str, Opened] = {"git": plain, **{name: _hosted(HOSTS[name]) for name in sorted(HOSTS)}}
"""Name -> what opens it, below a directory, and prints what happens there."""
