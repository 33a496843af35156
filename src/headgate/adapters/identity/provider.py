"""Query an OpenID provider: for its metadata, its keys, and its claims about people."""

from __future__ import annotations

import asyncio
import json
import logging
import ssl
import threading
import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass, field
from ipaddress import ip_address
from typing import Any
from urllib.parse import urlencode, urlsplit

import httpx
import jwt

from headgate.base.errors import IdentityError

log = logging.getLogger("headgate.web")

ASKING_MAX_S = 10.0
"""Time limit for the beginning of a response; the complete response may take twice as long."""
WAITING_MAX_S = 20.0
"""Time limit for a caller that waits for the provider's data."""
AGAIN_S = 10.0
"""Shortest interval between two requests for the keys, however many tokens name an unknown key."""
FRESH_S = 3_600.0
"""Age after which the keys are requested again."""
ANSWER_MAX_BYTES = 262_144
URL_MAX_CHARS = 2_000
WHY_MAX_CHARS = 300
KEYS_MAX = 100
SIGNED_BY = frozenset(("RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "ES512", "EdDSA"))
"""Algorithms with a public and a private key: no shared secrets, and never `none`."""
DISCOVERY = "/.well-known/openid-configuration"
Json = dict[str, Any]


class ProviderAway(IdentityError):
    """Report that the provider does not answer, or sends an invalid response; the text gives the reason."""


class NotBelieved(IdentityError):
    """Report that the provider does not vouch for a person; the text gives the reason."""


@dataclass(frozen=True, slots=True)
class ProviderMetadata:
    """Hold the metadata that a provider publishes."""

    authorization: str
    """URL where people log in."""
    token: str
    userinfo: str
    keys: Mapping[str, jwt.PyJWK]
    posts_secret: bool = False
    """Whether the client's secret is sent in the body, because the provider does not accept it in a header."""


@dataclass(slots=True)
class IdentityProvider:
    """Represent one issuer. A thread fetches its metadata, so that only callers that choose to wait are delayed."""

    issuer: str
    client_id: str
    secret: str = field(default="", repr=False)
    keys_url: str = ""
    """URL of its keys; empty: the URL that the provider publishes."""
    trust: ssl.SSLContext | bool = True
    now_s: Callable[[], float] = time.monotonic
    patience_s: float = ASKING_MAX_S
    _published: ProviderMetadata | None = None
    _requested_s: float = -AGAIN_S
    _known_s: float = 0.0
    _why: str = "no request was sent yet"
    _asking: Future[None] | None = None
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def get(self, key: str) -> jwt.PyJWK | None:
        """Return the key with this id if it is known; otherwise start a request for it and return None."""
        self.refresh(key)
        return self._key(key)

    def _key(self, key: str) -> jwt.PyJWK | None:
        keys = self._published.keys if self._published else {}
        # A token may omit the key id if the provider has a single key.
        return keys.get(key) or (next(iter(keys.values())) if not key and len(keys) == 1 else None)

    def refresh(self, key: str | None = None) -> Future[None] | None:
        """Start a request to the provider if one is necessary and none was sent recently. Return a future that is done
        when it ends, or None if the known data suffice or cannot be updated now. `key`: id of a key that is needed."""
        now = self.now_s()
        with self._lock:
            lacking = self._published is None or (key is not None and self._key(key) is None)
            if self._asking is not None and not self._asking.done():
                return self._asking if lacking else None
            # Anybody can send tokens with unknown key ids; without the interval, each would cause a request to the
            # provider.
            if not (lacking or now - self._known_s > FRESH_S) or now - self._requested_s < AGAIN_S:
                return None
            self._requested_s, self._asking = now, Future()
            self._asking.set_running_or_notify_cancel()
            # A separate thread, because `get` is called from code that cannot await, and must not block the event loop.
            threading.Thread(target=self._ask, args=(self._asking,), daemon=True, name="openid").start()
            return self._asking if lacking else None

    async def published(self, key: str | None = None) -> ProviderMetadata:
        """Return the provider's metadata, after a request if necessary. Raise ProviderAway."""
        if (waiting := self.refresh(key)) is not None:
            with suppress(TimeoutError):
                async with asyncio.timeout(WAITING_MAX_S):
                    await asyncio.shield(asyncio.wrap_future(waiting))
        if self._published is None:
            raise ProviderAway(f"{self.issuer} is unavailable now: {self._why}")
        return self._published

    def _ask(self, over: Future[None]) -> None:
        try:
            self._published = asyncio.run(self._read())
            self._known_s = self.now_s()
        except (ProviderAway, ValueError) as error:
            self._why = str(error)[:WHY_MAX_CHARS]
            log.warning("the OpenID provider %s is unavailable: %s", self.issuer, self._why)
        finally:
            over.set_result(None)

    async def _read(self) -> ProviderMetadata:
        """Read the metadata. Raise ProviderAway, ValueError."""
        metadata = await self._fetched(self.issuer.rstrip("/") + DISCOVERY)
        # OpenID Connect Discovery requires this check: otherwise another issuer could sign tokens with its own keys.
        if metadata.get("issuer") != self.issuer:
            raise ValueError(f"it calls itself the issuer {str(metadata.get('issuer'))[:200]!r}: set issuer_id to that")
        keys_url = self.keys_url or self._place(metadata, "jwks_uri")
        found = (await self._fetched(keys_url)).get("keys")
        if not isinstance(found, list):
            raise ValueError(f"{keys_url} is not a set of keys")
        ways = metadata.get("token_endpoint_auth_methods_supported", ["client_secret_basic"])
        return ProviderMetadata(
            self._place(metadata, "authorization_endpoint"),
            self._place(metadata, "token_endpoint"),
            self._place(metadata, "userinfo_endpoint") if metadata.get("userinfo_endpoint") else "",
            usable(found),
            isinstance(ways, list) and "client_secret_basic" not in ways and "client_secret_post" in ways,
        )

    def _place(self, metadata: Json, name: str) -> str:
        """Return an address from the metadata. Raise ValueError for an unusable one."""
        url = metadata.get(name)
        if not isinstance(url, str) or not safe(url):
            raise ValueError(f"its {name} is {str(url)[:100]!r}, which is not an https address")
        return url

    def login(self, published: ProviderMetadata, parameters: Mapping[str, str]) -> str:
        """Return the URL where a person logs in; the provider sends them back from there with a code."""
        query = {"response_type": "code", "client_id": self.client_id, **parameters, "code_challenge_method": "S256"}
        return f"{published.authorization}{'&' if '?' in published.authorization else '?'}{urlencode(query)}"

    async def exchanged(self, published: ProviderMetadata, code: str, verifier: str, redirect: str) -> tuple[str, str]:
        """Return the identity token and the access token for this code. Raise ProviderAway, NotBelieved."""
        body = {
            "grant_type": "authorization_code",
            "code": code,
            "redirect_uri": redirect,
            "client_id": self.client_id,
            "code_verifier": verifier,
        }
        secret = httpx.BasicAuth(*(_quoted(one) for one in (self.client_id, self.secret))) if self.secret else None
        if self.secret and published.posts_secret:
            body, secret = {**body, "client_secret": self.secret}, None
        status, answer = await self._request("POST", published.token, data=body, auth=secret)
        token, access = answer.get("id_token"), answer.get("access_token")
        if status != 200 or not isinstance(token, str):
            why = answer.get("error_description") or answer.get("error") or f"it returned status {status}"
            raise NotBelieved(f"{self.issuer} does not accept the code: {str(why)[:200]}")
        return token, access if isinstance(access, str) else ""

    async def userinfo(self, published: ProviderMetadata, access: str) -> Json:
        """Return further claims about a person. Raise ProviderAway."""
        headers = {"Authorization": f"Bearer {access}"}
        status, answer = await self._request("GET", published.userinfo, headers=headers)
        if status != 200:
            raise ProviderAway(f"{self.issuer} does not identify this person: it returned status {status}")
        return answer

    async def _fetched(self, url: str) -> Json:
        """Fetch JSON. Raise ProviderAway."""
        status, answer = await self._request("GET", url)
        if status != 200:
            raise ProviderAway(f"{url} returned status {status}")
        return answer

    async def _request(self, method: str, url: str, **more: Any) -> tuple[int, Json]:  # arguments of httpx
        """Return the status and the content of the response. Raise ProviderAway."""
        # Without this, a few compressed kilobytes could become gigabytes before a limit on the body applies.
        plain = {"Accept-Encoding": "identity"}
        try:
            async with (
                # The client's own timeout applies to each piece, so a provider that sends byte by byte never reaches
                # it.
                asyncio.timeout(2 * self.patience_s),
                httpx.AsyncClient(verify=self.trust, timeout=self.patience_s, headers=plain) as client,
                client.stream(method, url, **more) as answer,
            ):
                if answer.headers.get("content-encoding", "identity") != "identity":
                    raise ProviderAway(f"{url} returned compressed content, which was not requested")
                body = bytearray()
                async for piece in answer.aiter_raw():
                    body += piece
                    if len(body) > ANSWER_MAX_BYTES:
                        raise ProviderAway(f"{url} returned more than {ANSWER_MAX_BYTES:,} bytes")
                return answer.status_code, _mapping(url, answer.status_code, bytes(body))
        except (httpx.HTTPError, httpx.InvalidURL, TimeoutError, ValueError) as error:
            raise ProviderAway(f"{self.issuer} cannot be reached: {str(error) or type(error).__name__}") from error


def safe(url: str) -> bool:
    """Return whether no third party can read the connection: it uses https, or stays on this machine."""
    try:
        parts = urlsplit(url)
        host = parts.hostname or ""
        number = host.replace(".", "").isdigit() or ":" in host
        local = host == "localhost" or (number and ip_address(host).is_loopback)
    except ValueError:
        return False
    plain = bool(host) and url.isprintable() and len(url) <= URL_MAX_CHARS
    return plain and (parts.scheme == "https" or (parts.scheme == "http" and local))


def usable(found: list[Any]) -> dict[str, jwt.PyJWK]:  # JSON
    """Return the keys for signatures, by id; keys for other uses and of other kinds are left out."""
    keys: dict[str, jwt.PyJWK] = {}
    for one in found[:KEYS_MAX]:
        # One unusable key must not make the others unusable.
        with suppress(jwt.PyJWTError, TypeError, ValueError):
            # With a symmetric key from a public set, anybody could sign.
            if isinstance(one, dict) and one.get("use", "sig") == "sig" and one.get("kty") != "oct":
                key = jwt.PyJWK.from_dict(one)
                if key.algorithm_name in SIGNED_BY:
                    keys[str(one.get("kid", ""))] = key
    return keys


def _mapping(url: str, status: int, body: bytes) -> Json:
    """Decode a JSON object. Raise ValueError."""
    try:
        content = json.loads(body)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{url} returned status {status}, but no JSON") from error
    if not isinstance(content, dict):
        raise ValueError(f"{url} returned status {status}, but no JSON object")
    return content


def _quoted(text: str) -> str:
    """Encode a name or a secret for a header, as RFC 6749 requires."""
    return urlencode({"": text})[1:]
