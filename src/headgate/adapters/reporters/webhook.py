"""Send reports as calls of a webhook, with signed JSON.

Only the operator chooses the URL.  No redirection is followed, so that not even the server can choose which machine
Headgate connects to, and nothing from the environment (proxies, `.netrc`) is used.
"""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import ssl
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import httpx

from headgate.adapters.reporters.registry import ReporterOptions
from headgate.adapters.responses import cautious_client
from headgate.map.outbox import OutboxMessage
from headgate.ports.reporter import Reporter, ReporterAway, ReportRefused

TIMEOUT_S = 20.0
CALL_MAX_S = 120.0
"""Time limit for a request and its complete response, however slowly that arrives."""
ANSWER_MAX_BYTES = 2_000
"""Number of bytes of a response that are read."""
WAIT_MAX_S = 3_600.0
PATIENCE = frozenset({408, 425, 429})
"""Status codes 4xx after which another attempt may succeed."""


@dataclass(frozen=True, slots=True)
class Webhook:
    """Hold the URL to call."""

    url: str
    secret: str = field(default="", repr=False)
    """Key that signs the calls; empty: calls are not signed."""

    @classmethod
    def of(cls, options: Mapping[str, str]) -> Webhook:
        """Read the section of the settings."""
        return cls(options["url"], options.get("secret", ""))


def signature(secret: str, at_s: int, body: bytes) -> str:
    """Return the header `X-Headgate-Signature`: a signature of time and body, so that neither can be replaced."""
    return "sha256=" + hmac.new(secret.encode(), str(at_s).encode() + b"." + body, hashlib.sha256).hexdigest()


class WebhookReporter:
    """Call the webhook; see `ports.reporter.Reporter`.  A report has the same id however often it is sent."""

    def __init__(self, client: httpx.AsyncClient, hook: Webhook, now_s: Callable[[], float] = time.time) -> None:
        """Take a `client` from `webhook_client`."""
        self._client, self._hook, self._now_s = client, hook, now_s

    async def tell(self, outgoing: OutboxMessage) -> None:
        """Send the report. Raise ReporterAway, ReportPutOff or ReportRefused."""
        # Each attempt has the current time, so a receiver can reject old calls and still accept a late repetition.
        body, at_s = outgoing.report.document(), int(self._now_s())
        headers = {
            "Content-Type": "application/json",
            "User-Agent": "headgate",
            "X-Headgate-Event": "report",
            "X-Headgate-Delivery": outgoing.key or outgoing.report.id,
            "X-Headgate-Timestamp": str(at_s),
        }
        if self._hook.secret:
            headers["X-Headgate-Signature"] = signature(self._hook.secret, at_s, body)
        try:
            async with (
                asyncio.timeout(CALL_MAX_S),
                self._client.stream("POST", self._hook.url, content=body, headers=headers) as answer,
            ):
                # The body of a successful response is not read, because nothing needs it.
                if answer.is_success:
                    return
                text = await beginning(answer)
        except (httpx.HTTPError, httpx.InvalidURL, TimeoutError) as error:
            raise ReporterAway(str(error) or type(error).__name__) from error
        judged(answer, text)


def judged(answer: httpx.Response, text: str) -> None:
    """Raise ReporterAway or ReportRefused for an error response, with its text."""
    why = f"it answered {answer.status_code}{f': {text}' if text else ''}"
    # Refused, not retried: only the operator can correct the URL, and other reports would wait behind this one.
    if answer.is_redirect:
        raise ReportRefused(f"{why}; redirections are not followed: set the final URL in the settings")
    if answer.status_code in PATIENCE or answer.status_code >= 500:
        wait = answer.headers.get("retry-after", "")
        raise ReporterAway(why, min(float(wait), WAIT_MAX_S) if wait.isascii() and wait.isdecimal() else 0.0)
    raise ReportRefused(why)


async def beginning(answer: httpx.Response) -> str:
    """Return the beginning of a response's body as one line."""
    found = b""
    # Raw, because a compressed response could grow to any size when it is decompressed.
    async for chunk in answer.aiter_raw():
        found += chunk[:ANSWER_MAX_BYTES]
        if len(found) >= ANSWER_MAX_BYTES:
            break
    return " ".join(found[:ANSWER_MAX_BYTES].decode("utf-8", "replace").split())[:300]


def webhook_client(tls: ssl.SSLContext | None = None) -> httpx.AsyncClient:
    """Return a client that calls only the given URL. `tls`: context with the certificates that it trusts; by default,
    the system's."""
    return cautious_client(TIMEOUT_S, tls if tls is not None else True)


async def connect(given: ReporterOptions) -> Reporter:
    """Return the reporter for the webhook of a connection."""
    client = await given.stack.enter_async_context(webhook_client(given.tls()))
    return WebhookReporter(client, Webhook.of(given.options))
