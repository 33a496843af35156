"""Requests have a share of the process's time and take turns in it; the rest belongs to the gate in the same
process.

The cost of requests is measured, not guessed. While all requests together stay within their share, none waits.
Beyond it they wait in lines, one for each peer and kind of question, and the lines are served in turn: so a peer
that repeats the most expensive question delays mostly itself.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine, Generator
from typing import Any, Generic, TypeVar, cast

from headgate.web.peers.admission import peer_of
from headgate.web.peers.requests import App, Message, Receive, Send

T = TypeVar("T")

SHARE_BESIDE, SHARE_ALONE = 0.25, 0.9
"""Shares of the processor's time for requests: beside a gate in the same process, and without one."""
BURST_S = 0.5
"""Processor time that requests may use at once after a quiet period."""
WAITING_MAX = 100
"""Limit on the waiting requests of one peer; more are refused."""
EXEMPT = ("/health", "/static/")
"""Paths that monitoring requests and that cost next to nothing: they do not wait."""
BUSY = b'{"error": "Service Unavailable", "description": "too many questions wait to be answered; ask again later"}'


class PeerTurns:
    """Decide which request may start."""

    def __init__(
        self,
        share: float,
        now_s: Callable[[], float] = time.monotonic,
        observe: Callable[[float], None] = lambda _: None,
    ) -> None:
        """Give requests this share of the time; `observe` receives the cost of each step."""
        self._share, self._now_s, self._observe = share, now_s, observe
        self._even_s = now_s() - BURST_S
        """Time at which the processor time that was used is within the share again."""
        self._lines: dict[tuple[str, str], deque[asyncio.Future[None]]] = {}
        """(peer, kind) -> its waiting requests; the first line is served next."""
        self._counts: dict[str, int] = {}
        self._timer: asyncio.TimerHandle | None = None

    def spent(self, seconds: float) -> None:
        """Count what a request cost."""
        # Unused time is saved only up to the burst; otherwise a quiet
        # night would permit minutes of uninterrupted requests.
        self._even_s = max(self._even_s, self._now_s() - BURST_S) + seconds / self._share
        self._observe(seconds)

    async def begin(self, peer: str, kind: str) -> bool:
        """Wait for a turn; False: too many of this peer wait already."""
        # Nobody overtakes: while a line waits, newcomers wait, too, even if time is left.
        if not self._lines and self._now_s() >= self._even_s:
            return True
        if self._counts.get(peer, 0) >= WAITING_MAX:
            return False
        turn = asyncio.get_running_loop().create_future()
        self._lines.setdefault((peer, kind), deque()).append(turn)
        self._counts[peer] = self._counts.get(peer, 0) + 1
        self._later()
        try:
            await turn
        finally:
            self._counts[peer] -= 1
            if not self._counts[peer]:
                del self._counts[peer]
        return True

    def _later(self) -> None:
        if self._timer is None and self._lines:
            wait_s = max(0.0, self._even_s - self._now_s())
            self._timer = asyncio.get_running_loop().call_later(wait_s, self._next)

    def _next(self) -> None:
        """Let one begin; its cost is known before the next one begins."""
        self._timer = None
        while self._lines and self._now_s() >= self._even_s:
            line = next(iter(self._lines))
            waiting = self._lines.pop(line)
            turn = waiting.popleft()
            if waiting:
                self._lines[line] = waiting  # behind the others
            if not turn.done():  # else whoever waited is gone
                turn.set_result(None)
                break
        self._later()


class Paced:
    """Wrap an application whose requests take turns."""

    def __init__(self, app: App, turns: PeerTurns) -> None:
        self._app, self._turns = app, turns

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        path = scope.get("path", "")
        if scope["type"] != "http" or path.startswith(EXEMPT):
            await self._app(scope, receive, send)
            return
        host = (scope.get("client") or ("", 0))[0]
        if not await self._turns.begin(peer_of(host), _kind(path)):
            headers = [(b"content-type", b"application/json"), (b"retry-after", b"5")]
            headers.append((b"access-control-allow-origin", b"*"))
            await send({"type": "http.response.start", "status": 503, "headers": headers})
            await send({"type": "http.response.body", "body": BUSY})
            return
        await Measured(self._app(scope, receive, send), self._turns.spent)


class Measured(Generic[T]):
    """Run a coroutine, and report the processor time of each of its steps."""

    def __init__(self, work: Awaitable[T], spent: Callable[[float], None]) -> None:
        self._work = cast(Coroutine[Any, Any, T], work)  # ASGI says Awaitable
        self._spent = spent

    def __await__(self) -> Generator[Any, None, T]:
        thrown: BaseException | None = None
        while True:
            # Processor time of this thread, not time that passed: waiting
            # for the store or a client costs the gate nothing.
            began = time.thread_time()
            try:
                waits = self._work.send(None) if thrown is None else self._work.throw(thrown)
            except StopIteration as ended:
                return cast(T, ended.value)
            finally:
                self._spent(time.thread_time() - began)
            thrown = None
            try:
                yield waits
            except GeneratorExit:
                self._work.close()
                raise
            except BaseException as error:  # a cancellation, say: it is the coroutine's to answer
                thrown = error


def _kind(path: str) -> str:
    """Return the kind of question of a request, whatever object it concerns."""
    words = path.split("/")
    # Without the tenant, so that one question asked of every tenant does not get a line for each of them.
    return words[4] if words[1:3] == ["api", "tenant"] and len(words) > 4 else "/".join(words[1:3])
