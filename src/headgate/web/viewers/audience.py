"""Serve the viewers of a tenant: make what they are shown once for all of them, after each change."""

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
"""Factor of the pause after an update to the processor time that it took, which bounds its cost for the gate."""
REST_MAX_S = 2.0
LOOK_INTERVAL_S = 3.0
"""Interval between checks of the store's reachability and of viewers' permissions; neither reads the store."""
RIGHTS_INTERVAL_S = 1.0
RELAYED_BYTES = 65_536

DOCUMENT_AGE_MAX_MS = 1_000
"""Age of the times in a document, at most."""


class Shown(Protocol):
    """Declare what viewers are shown, apart from times."""

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
    """Serve viewers. `shot` returns the state of a tenant, rebuilt after changes. `may` says whether a viewer may
    stay. `moved` waits for more changes than the given number. `observe` gets the cost of a look, in seconds."""

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
        """Return the body of an answer that goes on for ever.  `take` has the connection, so that it need not pass
        through here.  Raise 503 when too many come at once."""
        if self.porter.full:
            raise HTTPException("too many come at once; try again in a moment", status_code=503)
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
        yield b""  # the head goes before the connection
        # Over TLS the connection cannot be handed over, as its keys are in this process: then the bytes are relayed.
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
            log.error("nobody can look on just now: %s", error)
            connection.close()
            self._gone(viewer)

    async def _feed(self, tenant: str, scene: WatchedTenant) -> None:
        """Show a tenant to its viewers as long as it has any."""

        def spent(seconds: float) -> None:
            scene.cost_s += seconds

        try:
            while scene.viewers:
                scene.cost_s = 0.0
                seen = await Measured(self._look(tenant, scene), spent)
                self.observe(scene.cost_s)
                with contextlib.suppress(TimeoutError):
                    # Rights end and the store goes away without any change in
                    # the mirror, so the wait for one is bounded.
                    async with asyncio.timeout(LOOK_INTERVAL_S):
                        await self.moved(seen)
                # The pause comes after the wait for a change: the first change after a quiet time is shown at once.
                await asyncio.sleep(min(REST_MAX_S, max(REST_MIN_S, REST * scene.cost_s)))
        except HTTPException as error:  # the tenant no longer exists
            log.info("nobody looks on at tenant %s any more: %s", tenant, error.detail)
        finally:
            self._end(tenant, scene)

    async def _look(self, tenant: str, scene: WatchedTenant) -> int:
        """Send the state if it differs from the last one; return the number of changes by then."""
        now_s = asyncio.get_running_loop().time()
        if now_s - scene.checked_s >= RIGHTS_INTERVAL_S:
            scene.checked_s = now_s
            may = dict[int, bool]()  # most viewers are nobody in particular
            for viewer, bearer in list(scene.viewers.items()):
                # Anonymous viewers share one answer, as all of them have the same bearer None.
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
            # The next process knows no state, so the present one must be sent again although it has not changed.
            scene.tag = ""
        self._tenant_of.clear()

    def _end(self, tenant: str, scene: WatchedTenant) -> None:
        if self._scenes.get(tenant) is scene:
            del self._scenes[tenant]
        for viewer in scene.viewers:
            self._tenant_of.pop(viewer, None)
        self.porter.close_scene(scene.number)
        # The process costs memory, so it runs only while anybody watches.
        if not self._scenes:
            self.porter.close()


@dataclass(slots=True)
class ViewerDocument:
    """Hold a document; `made_ms` is by the clock of its times."""

    tag: str
    made_ms: int
    text: bytes
    packing: asyncio.Future[bytes] | None = None


@dataclass(slots=True)
class Documents:
    """Keep the latest document of each tenant."""

    now_ms: Callable[[], int]
    _latest: dict[str, ViewerDocument] = field(default_factory=dict)

    async def of(self, tenant: str, shown: Shown, *, gzip: bool) -> bytes:
        """Return the document of a state."""
        now_ms, found = self.now_ms(), self._latest.get(tenant)
        # A clock that was set back makes the age negative: such a document is made again, too.
        if found is None or found.tag != shown.encoded.tag or not 0 <= now_ms - found.made_ms < DOCUMENT_AGE_MAX_MS:
            text = msgspec.json.encode(timed(shown.status, now_ms))
            found = self._latest[tenant] = ViewerDocument(shown.encoded.tag, now_ms, text)
        if not gzip:
            return found.text
        if found.packing is None:
            found.packing = asyncio.ensure_future(compressed(found.text))
        # Others wait for the same compression: a client that disconnects must not cancel it for them.
        return await asyncio.shield(found.packing)
