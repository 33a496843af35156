"""Serve the viewers of a tenant: after a change, compute the new status once for all of them."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import logging
import socket
from collections.abc import AsyncGenerator, Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any, Protocol

import msgspec

from headgate.rest import HTTPException
from headgate.web.access import Bearer
from headgate.web.answers import compressed
from headgate.web.peers.requests import Measured
from headgate.web.shapes import StatusShape
from headgate.web.shots import EncodedStatus
from headgate.web.status import timed
from headgate.web.viewers.porter import Porter

log = logging.getLogger("headgate.web")

REST_MIN_S = 0.1
"""Shortest interval between two updates of a tenant."""
REST = 40
"""Ratio of the pause after an update to the processor time that it took, which limits the cost for the gate."""
REST_MAX_S = 2.0
LOOK_INTERVAL_S = 3.0
"""Interval between checks of the store's reachability and of viewers' permissions; neither reads the store."""
RIGHTS_INTERVAL_S = 1.0
RELAYED_BYTES = 65_536

DOCUMENT_AGE_MAX_MS = 1_000
"""Limit on the age of the times in a document."""


class Shown(Protocol):
    """Declare the state that viewers are shown, without times."""

    @property
    def status(self) -> StatusShape: ...
    @property
    def encoded(self) -> EncodedStatus: ...
    @property
    def moves(self) -> int: ...


@dataclass(slots=True)
class WatchedTenant:
    """Represent a tenant that has viewers."""

    number: int
    viewers: dict[int, Bearer | None] = field(default_factory=dict)
    feeding: asyncio.Task[None] | None = None
    tag: str = ""
    """Tag of the last state that was sent."""
    cost_s: float = 0.0
    checked_s: float = 0.0


@dataclass(slots=True)
class Audience:
    """Serve viewers. `shot` returns the current state of a tenant. `may` tells whether a viewer may stay. `moved` waits
    until there are more changes than the given number. `observe` receives the cost of an update, in seconds."""

    shot: Callable[[str], Awaitable[Shown]]
    may: Callable[[str, Bearer | None], bool]
    moved: Callable[[int], Awaitable[Any]]
    now_ms: Callable[[], int]
    observe: Callable[[float], None]
    porter: Porter = field(init=False)
    _scenes: dict[str, WatchedTenant] = field(default_factory=dict)
    _tenant_of: dict[int, str] = field(default_factory=dict)
    """Viewer -> tenant."""
    _numbers: itertools.count[int] = field(default_factory=lambda: itertools.count(1))

    def __post_init__(self) -> None:
        self.porter = Porter(self._gone, self._lost)

    def stream(
        self,
        tenant: str,
        bearer: Bearer | None,
        peer: str,
        take: Callable[[], socket.socket | None] | None,
        *,
        gzip: bool,
    ) -> AsyncGenerator[bytes, None]:
        """Return the endless body of a response.  If `take` returns the connection, the viewers' process sends the body
        instead.  Raise 503 if too many viewers arrive at the same time."""
        if self.porter.full:
            raise HTTPException("too many viewers arrive at the same time; try again in a moment", status_code=503)
        return self._stream(tenant, bearer, peer, take, gzip=gzip)

    async def _stream(
        self,
        tenant: str,
        bearer: Bearer | None,
        peer: str,
        take: Callable[[], socket.socket | None] | None,
        *,
        gzip: bool,
    ) -> AsyncGenerator[bytes, None]:
        yield b""  # sends the head before the connection is handed over
        # A TLS connection cannot be handed over, as its keys are in this process: its bytes are relayed instead.
        own = take() if take is not None else None
        if own is not None:
            self._enter(tenant, bearer, own, peer, gzip=gzip, chunked=True)
            return
        ours, its = socket.socketpair()
        with ours:
            ours.setblocking(False)
            self._enter(tenant, bearer, its, peer, gzip=gzip, chunked=False)
            while data := await asyncio.get_running_loop().sock_recv(ours, RELAYED_BYTES):
                yield data

    def _enter(
        self, tenant: str, bearer: Bearer | None, connection: socket.socket, peer: str, *, gzip: bool, chunked: bool
    ) -> None:
        scene = self._scenes.get(tenant)
        if scene is None:
            scene = self._scenes[tenant] = WatchedTenant(next(self._numbers))
        viewer = next(self._numbers)
        scene.viewers[viewer], self._tenant_of[viewer] = bearer, tenant
        if scene.feeding is None:
            scene.feeding = asyncio.get_running_loop().create_task(self._feed(tenant, scene))
        try:
            self.porter.enter(viewer, scene.number, connection, peer, gzip=gzip, chunked=chunked)
        except OSError as error:
            log.error("cannot serve a viewer at the moment: %s", error)
            connection.close()
            self._gone(viewer)

    async def _feed(self, tenant: str, scene: WatchedTenant) -> None:
        """Send updates of a tenant while it has viewers."""

        def spent(seconds: float) -> None:
            scene.cost_s += seconds

        try:
            while scene.viewers:
                scene.cost_s = 0.0
                seen = await Measured(self._look(tenant, scene), spent)
                self.observe(scene.cost_s)
                with contextlib.suppress(TimeoutError):
                    # Permissions may end, and the store may become unreachable,
                    # without any change in the mirror: so the wait is limited.
                    async with asyncio.timeout(LOOK_INTERVAL_S):
                        await self.moved(seen)
                # The pause follows the wait, so that the first change after a quiet period is collected together with
                # those that follow immediately.
                await asyncio.sleep(min(REST_MAX_S, max(REST_MIN_S, REST * scene.cost_s)))
        except HTTPException as error:  # the tenant no longer exists
            log.info("viewers of tenant %s are disconnected: %s", tenant, error.detail)
        finally:
            self._end(tenant, scene)

    async def _look(self, tenant: str, scene: WatchedTenant) -> int:
        """Send the state if it differs from the last one; return the number of changes that it includes."""
        now_s = asyncio.get_running_loop().time()
        if now_s - scene.checked_s >= RIGHTS_INTERVAL_S:
            scene.checked_s = now_s
            may = dict[int, bool]()
            for viewer, bearer in list(scene.viewers.items()):
                # Most viewers are anonymous: they share one check, as their bearer is the same None.
                if id(bearer) not in may:
                    may[id(bearer)] = self.may(tenant, bearer)
                if not may[id(bearer)]:
                    self.porter.leave(viewer)
        shot = await self.shot(tenant)
        if shot.encoded.tag != scene.tag:
            scene.tag = shot.encoded.tag
            self.porter.tell(scene.number, self.now_ms(), shot.encoded.text, shot.encoded.items)
        return shot.moves

    def _gone(self, viewer: int) -> None:
        scene = self._scenes.get(self._tenant_of.pop(viewer, ""))
        if scene is not None:
            scene.viewers.pop(viewer, None)

    def _lost(self) -> None:
        for scene in self._scenes.values():
            scene.viewers.clear()
            # The next process has no state, so the current one must be sent again although it has not changed.
            scene.tag = ""
        self._tenant_of.clear()

    def _end(self, tenant: str, scene: WatchedTenant) -> None:
        if self._scenes.get(tenant) is scene:
            del self._scenes[tenant]
        for viewer in scene.viewers:
            self._tenant_of.pop(viewer, None)
        self.porter.close_scene(scene.number)
        # The process uses memory, so it runs only while there are viewers.
        if not self._scenes:
            self.porter.close()


@dataclass(slots=True)
class ViewerDocument:
    """Hold a status document; its times are as of `made_ms`."""

    tag: str
    made_ms: int
    text: bytes
    packing: asyncio.Future[bytes] | None = None


@dataclass(slots=True)
class Documents:
    """Cache the latest status document of each tenant."""

    now_ms: Callable[[], int]
    _latest: dict[str, ViewerDocument] = field(default_factory=dict)

    async def of(self, tenant: str, shown: Shown, *, gzip: bool) -> bytes:
        """Return the status document of a state, with times that are at most a second old."""
        now_ms, found = self.now_ms(), self._latest.get(tenant)
        # If the clock was set back, the age is negative: then the document is encoded again, too.
        if found is None or found.tag != shown.encoded.tag or not 0 <= now_ms - found.made_ms < DOCUMENT_AGE_MAX_MS:
            text = msgspec.json.encode(timed(shown.status, now_ms))
            found = self._latest[tenant] = ViewerDocument(shown.encoded.tag, now_ms, text)
        if not gzip:
            return found.text
        if found.packing is None:
            found.packing = asyncio.ensure_future(compressed(found.text))
        # Requests share the compression: a client that disconnects must not cancel it for the others.
        return await asyncio.shield(found.packing)
