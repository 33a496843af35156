"""List the venues of `headgate demo`."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from headgate.base.errors import needing
from headgate.cli.scenario.plain import plain
from headgate.cli.scenario.venue import Venue
from headgate.cli.terminal.screen import Printing
from headgate.cli.terminal.text import Style

if TYPE_CHECKING:
    from headgate.cli.scenario.forges.host import Host, StandIn

Say = Printing | None
Opened = Callable[[Path, Say], AbstractAsyncContextManager[Venue]]


def _nothing(what: str, style: Style = "") -> None:
    """Print nothing."""


def _host(forge: str) -> Callable[[Path], Any]:  # the type of the module's `host`
    """Return a function that opens a forge below a directory; it imports the forge's module when called."""

    def opened(root: Path) -> Any:  # as above
        with needing(f"headgate demo --forge {forge}", "demo"):
            module = import_module(f"headgate.cli.scenario.forges.{forge}")
        return module.host(root)

    return opened


def _hosted(host: Callable[[Path], AbstractAsyncContextManager[Host]]) -> Opened:
    @asynccontextmanager
    async def opened(root: Path, say: Say) -> AsyncIterator[Venue]:
        async with host(root) as one:
            from headgate.cli.scenario.forges.demoforge import Hosted

            yield Hosted(one, say or _nothing)

    return opened


STAND_INS: Mapping[str, Callable[[Path], AbstractAsyncContextManager[StandIn]]] = {
    forge: _host(forge) for forge in ("gitea", "github", "gitlab", "pagure")
}
"""Name of a forge -> opens a stand-in for it below a directory."""
HOSTS: Mapping[str, Callable[[Path], AbstractAsyncContextManager[Host]]] = {**STAND_INS, "gerrit": _host("gerrit")}
"""The same, with forges that are real."""
VENUES: Mapping[str, Opened] = {"git": plain, **{name: _hosted(HOSTS[name]) for name in sorted(HOSTS)}}
"""Name of a venue -> opens it below a directory, and prints what happens there."""
