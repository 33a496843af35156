"""Share what stand-ins for forges have in common: answers, what is to go wrong, commits that people push."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any

import msgspec
from aiohttp import web

from headgate.testing.forges.github import hosts
from headgate.testing.forges.github.server import FakeGitHubFault
from headgate.testing.forges.github.state import FakeGitHubAccount
from headgate.testing.servers.program import free_ports


def as_json(status: int, answer: Any, headers: Mapping[str, str] | None = None) -> web.Response:
    """Return an answer of a call."""
    if answer is None:
        return web.Response(status=status, headers=headers)
    body = msgspec.json.encode(answer)
    return web.Response(status=status, body=body, headers=headers, content_type="application/json")


def fault_at(faults: Sequence[FakeGitHubFault], method: str, template: str) -> FakeGitHubFault | None:
    """Return what is to go wrong with a call, which is then one time fewer."""
    for one in faults:
        if one.times and one.method in ("", method) and one.template in ("", template):
            one.times -= 1
            return one
    return None


async def failed(fault: FakeGitHubFault) -> web.StreamResponse:
    """Answer as it goes wrong."""
    if fault.hangs:
        await fault.until.wait()
    return web.Response(status=fault.status, text="<html>Bad Gateway</html>", content_type="text/html")


def put(
    repository: hosts.Kept,
    branch: str,
    base: str,
    files: Mapping[str, str | None],
    message: str,
    who: FakeGitHubAccount,
    now_s: float,
    merges: str | None = None,
) -> str:
    """Put a commit on a branch, which begins at `base` when it is new; return it.  `merges`: another parent."""
    heads = hosts.heads(repository)
    parents = [one for one in (heads.get(branch) or heads.get(base), merges) if one]
    commit = hosts.commit(repository, parents, files, message, hosts.signature(who, now_s))
    hosts.point(repository, f"refs/heads/{branch}", commit)
    return commit


@asynccontextmanager
async def on_a_port(path: str, make: Callable[[str], web.Application]) -> AsyncIterator[str]:
    """Serve on a free port of 127.0.0.1 what `make` returns for an address, below `path`; provide the address."""
    port = free_ports(1)[0]
    url = f"http://127.0.0.1:{port}{path}"
    runner = web.AppRunner(make(url), access_log=None)
    await runner.setup()
    try:
        await web.TCPSite(runner, "127.0.0.1", port).start()
        yield url
    finally:
        await runner.cleanup()
