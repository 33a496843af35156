"""Send the stand-in's webhooks, signed, logged and in order; lose, double or delay them when a test wants it."""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import itertools
import uuid
from collections.abc import Callable
from dataclasses import dataclass, field, replace

import aiohttp
import msgspec

from headgate.base.tasks import end
from headgate.testing.forges.github.model import Clock
from headgate.testing.forges.github.views import Shown

PATIENCE_S = 10.0
"""Time that GitHub waits for an answer."""


@dataclass(slots=True)
class Delivery:
    """Hold one delivery of an event to a webhook, and its result."""

    id: int
    guid: str
    event: str
    action: str | None
    body: bytes
    url: str
    secret: str
    app_id: int
    installation: int | None
    repository: int | None
    at_s: float
    redelivery: bool = False
    status: str = "pending"
    status_code: int = 0
    duration_s: float = 0.0

    def headers(self) -> dict[str, str]:
        """Return the headers of the delivery."""
        found = {
            "Content-Type": "application/json",
            "User-Agent": "GitHub-Hookshot/stand-in",
            "X-GitHub-Event": self.event,
            "X-GitHub-Delivery": self.guid,
            "X-GitHub-Hook-ID": str(self.app_id),
            "X-GitHub-Hook-Installation-Target-ID": str(self.app_id),
            "X-GitHub-Hook-Installation-Target-Type": "integration",
        }
        if self.secret:
            for header, digest in (("X-Hub-Signature", "sha1"), ("X-Hub-Signature-256", "sha256")):
                mac = hmac.new(self.secret.encode(), self.body, digest).hexdigest()
                found[header] = f"{digest}={mac}"
        return found


@dataclass(slots=True)
class Mail:
    """Deliver webhooks, as reliably as a test wants."""

    clock: Clock
    log: list[Delivery] = field(default_factory=list)
    """Deliveries as the forge lists them; oldest first."""
    judge: Callable[[str, str | None, Shown], None] | None = None
    """Checks every payload; raises if GitHub would not send such a payload."""
    wrong: list[str] = field(default_factory=list)
    """Errors that the judge found."""
    _waiting: asyncio.Queue[Delivery] = field(default_factory=asyncio.Queue)
    _held: list[Delivery] | None = None
    _lost: int = 0
    _failed: int = 0
    _doubled: int = 0
    _ids: itertools.count[int] = field(default_factory=lambda: itertools.count(1))

    def lose(self, count: int) -> None:
        """Drop the next deliveries without logging them."""
        self._lost = count

    def fail(self, count: int) -> None:
        """Log the next deliveries as failed without sending them."""
        self._failed = count

    def double(self, count: int) -> None:
        """Send the next deliveries twice, with the same GUID."""
        self._doubled = count

    def hold(self) -> None:
        """Hold back all deliveries from now on."""
        self._held = [] if self._held is None else self._held

    def release(self, order: Callable[[list[Delivery]], list[Delivery]] = list) -> None:
        """Send the deliveries that were held back, in an order that the test chooses, such as `reversed`."""
        held, self._held = self._held or [], None
        for one in order(held):
            self._send(one)

    def post(self, one: Delivery) -> None:
        """Accept a delivery for sending."""
        if self.judge is not None:
            try:
                self.judge(one.event, one.action, msgspec.json.decode(one.body))
            except Exception as error:
                self.wrong.append(str(error))
        if not one.url:
            return
        # Lost before it is logged: at GitHub, too, an event may be lost before any delivery is made of it.
        if self._lost:
            self._lost -= 1
            return
        self.log.append(one)
        if self._failed:
            self._failed -= 1
            one.status, one.status_code = "failed to connect to host", 502
            return
        twice = self._doubled > 0
        self._doubled -= twice
        for _ in range(1 + twice):
            if self._held is not None:
                self._held.append(one)
            else:
                self._send(one)

    def make(self, event: str, action: str | None, payload: Shown, url: str, secret: str, app_id: int) -> Delivery:
        """Return a delivery of a payload."""
        body = msgspec.json.encode(payload)
        installation = payload.get("installation", {}).get("id")
        repository = payload.get("repository", {}).get("id")
        guid, now_s = str(uuid.uuid4()), self.clock.now_s()
        return Delivery(
            next(self._ids), guid, event, action, body, url, secret, app_id, installation, repository, now_s
        )

    def again(self, one: Delivery) -> None:
        """Send a past delivery again, as somebody requests in the settings or over the API."""
        # The GUID stays the same, as at GitHub: by it, a receiver recognises the repetition.
        copy = replace(one, id=next(self._ids), at_s=self.clock.now_s(), redelivery=True, status="pending")
        self.log.append(copy)
        self._send(copy)

    def forged(self, body: bytes, headers: dict[str, str], like: Delivery) -> tuple[bytes, dict[str, str]]:
        """Return a delivery as a sender without the secret would forge it."""
        mac = hashlib.sha256(body).hexdigest()
        return body, {**like.headers(), "X-Hub-Signature-256": f"sha256={mac}", **headers}

    def _send(self, one: Delivery) -> None:
        self._waiting.put_nowait(one)

    async def delivered(self) -> None:
        """Wait until everything sent so far was answered."""
        await self._waiting.join()

    async def run(self) -> None:
        """Deliver, one after the other."""
        timeout = aiohttp.ClientTimeout(PATIENCE_S)
        async with aiohttp.ClientSession(timeout=timeout, trust_env=False) as client:
            while True:
                one = await self._waiting.get()
                try:
                    await self._deliver(client, one)
                finally:
                    # Also after a failure: `delivered` waits until each delivery is done.
                    self._waiting.task_done()

    async def _deliver(self, client: aiohttp.ClientSession, one: Delivery) -> None:
        begun_s = asyncio.get_running_loop().time()
        try:
            async with client.post(one.url, data=one.body, headers=one.headers()) as answer:
                one.status_code, one.status = answer.status, "OK" if answer.ok else answer.reason or "failed"
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            one.status_code, one.status = 502, f"failed to connect to host: {error}"
        one.duration_s = asyncio.get_running_loop().time() - begun_s


class Postman:
    """Deliver while the forge runs."""

    def __init__(self, mail: Mail) -> None:
        self._mail = mail

    async def __aenter__(self) -> Postman:
        self._task = asyncio.ensure_future(self._mail.run())
        return self

    async def __aexit__(self, *_: object) -> None:
        await end(self._task)
