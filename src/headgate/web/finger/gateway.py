"""Serve logs of builds over finger: the request is the id of a build and a newline; the answer is the bytes of the
log so far, and then new ones until the build has ended. There are no frames, and nothing marks the end.

Callers are anonymous: for them, builds of tenants that not everybody may read do not exist.
"""

from __future__ import annotations

import re
from collections.abc import AsyncGenerator, Callable, Mapping
from dataclasses import dataclass

from headgate.config.tenants import Tenant
from headgate.recipes.requestforms import Open
from headgate.services.context import Context
from headgate.web.access import Access
from headgate.web.buildlogs import BuildLogs
from headgate.web.logfiles import over
from headgate.web.remote import NoLogs

NOT_FOUND = b"Build not found"
NOT_STARTED = b"Build did not start yet"
FAILED = b"Internal streaming error"
ECHO_MAX = 64
"""Number of characters of an invalid id that the answer repeats."""

_ID = re.compile(rb"[0-9a-f]{1,64}", re.IGNORECASE)
_ODD = re.compile(rb"[^\x21-\x7e]")


@dataclass(frozen=True, slots=True)
class Gateway:
    """Answer finger requests. `tenants` are those of the current configuration."""

    context: Context
    tenants: Callable[[], Mapping[str, Tenant]]
    logs: BuildLogs
    """Logs of executors, in this process and in others; the log store is not searched."""

    async def answer(self, line: bytes) -> AsyncGenerator[bytes, None]:
        """Yield the answer to a request without its newline."""
        query = line.rstrip(b"\r\n")
        if _ID.fullmatch(query) is None:
            yield b"Invalid build UUID " + _ODD.sub(b"?", query[:ECHO_MAX])
            return
        build = query.decode()
        found = self._open(build)
        # The same words for both, so that nobody learns whether a private build exists.
        if found is None or not self._readable(found):
            yield NOT_FOUND
        elif not found.locked:
            yield NOT_STARTED
        else:
            async for piece in self._log(build, found):
                yield piece

    async def _log(self, build: str, found: Open) -> AsyncGenerator[bytes, None]:
        answered = False
        try:
            async for piece in self.logs.output(build, over(self.context, build), 0):
                if not self._readable(found):
                    return
                answered = True
                yield piece
        except NoLogs:
            if not answered:
                yield FAILED

    def _open(self, build: str) -> Open | None:
        opened = (one for queue in self.context.zones() for one in queue.open(self.context.mirror))
        return next((one for one in opened if one.request.id == build), None)

    def _readable(self, found: Open) -> bool:
        tenant = self.tenants().get(found.request.meta.get("tenant", ""))
        return tenant is not None and Access().may_read(None, tenant)
