"""Where `headgate demo` can play."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path

from headgate.cli.scenario.forges import gitea, github, gitlab
from headgate.cli.scenario.forges.host import Host
from headgate.cli.scenario.forges.hosted import Hosted
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


VENUES: Mapping[str, Opened] = {
    "git": plain,
    "gitea": _hosted(gitea.host),
    "github": _hosted(github.host),
    "gitlab": _hosted(gitlab.host),
}
"""Name -> what opens it, below a directory."""
