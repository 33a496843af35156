"""Talk to the pages and the API of a running Headgate from a command."""

from __future__ import annotations

import ipaddress
import json
import os
import ssl
import time
import urllib.error
import urllib.request
from dataclasses import dataclass
from email.message import Message
from http import HTTPStatus
from http.client import HTTPException
from pathlib import Path
from typing import IO, Any
from urllib.parse import quote, urlsplit

from headgate.adapters.identity.trust import trusting
from headgate.base.errors import AwayError, UserError
from headgate.cli.apicommands import chosen, everywhere
from headgate.cli.identity.credentials import TOKEN_VARIABLE, authorities, known_token, token_file
from headgate.cli.settings import NAME, Settings, find, read
from headgate.cli.terminal.say import say
from headgate.recipes.patience import ANSWER_WAIT_MAX_S

# urllib cannot tell who listens at the other end, so the kernel's tables are read.
TABLES = ("/proc/net/tcp", "/proc/net/tcp6")
LISTENS = "0A"
EVERYWHERE_OR_LOOPBACK = {
    "0100007F",
    "00000000",
    "0" * 32,
    "0" * 24 + "01000000",
    "0" * 16 + "FFFF0000" + "0100007F",
}
"""Addresses that include the loopback interface, in the form of the kernel's tables."""


def owners(port: int, tables: tuple[str, ...] = TABLES) -> set[int]:
    """Return the ids of the users whose programs listen on the port; the set is empty if the kernel does not tell."""
    found = set()
    for table in tables:
        try:
            lines = Path(table).read_text().splitlines()[1:]
        except OSError:
            continue
        for words in (line.split() for line in lines):
            address, _, number = words[1].partition(":")
            # The kernel writes addresses in hex, in the machine's byte order: 0100007F is 127.0.0.1.
            if words[3] == LISTENS and int(number, 16) == port and address in EVERYWHERE_OR_LOOPBACK:
                found.add(int(words[7]))
    return found


TIMEOUT_S = ANSWER_WAIT_MAX_S + 5
"""Longer than the server waits for a scheduler, so that it can answer that none took up the request."""
AGAIN_MAX_S = 20.0
"""Seconds for which a command repeats its request while the server still reads what the answer needs."""
ALIVE_S = 1.0
ANSWER_SIZE_MAX_BYTES = 256 << 20
_EVERYWHERE = {"0.0.0.0": "127.0.0.1", "::": "::1"}


class _NoRedirects(urllib.request.HTTPRedirectHandler):
    # Returning None makes urllib raise HTTPError for the redirect.
    def redirect_request(
        self, req: urllib.request.Request, fp: IO[bytes], code: int, msg: str, headers: Message, newurl: str
    ) -> None:
        """Follow no redirect: a token must reach only the server it is meant for."""


@dataclass(frozen=True, slots=True)
class PageClient:
    """Call a running Headgate. `base` is its address without a trailing slash."""

    base: str
    token: str = ""
    tls: ssl.SSLContext | None = None
    usual: str = ""
    """Tenant to use where the command names none."""

    def get(self, path: str) -> Any:  # JSON
        """Return the decoded JSON at a path. Raise UserError."""
        return self._json(path, None)

    def text(self, path: str) -> str:
        """Return the text at a path. Raise UserError."""
        return self._answer(path, None).decode(errors="replace")

    def post(self, path: str, body: dict[str, Any]) -> Any:  # JSON
        """Raise UserError."""
        return self._json(path, body)

    def put(self, path: str, body: dict[str, Any]) -> None:
        """Raise UserError."""
        self._answer(path, body, "PUT")

    def delete(self, path: str) -> None:
        """Raise UserError."""
        self._answer(path, None, "DELETE")

    def tenant(self, named: str | None) -> str:
        """Return the named tenant, or else the only one. Raise UserError."""
        if named or self.usual:
            return named or self.usual
        names = [found["name"] for found in self.get("/api/tenants")]
        if not names:
            raise UserError(f"{self.base} has no tenant that you may see")
        if len(names) > 1:
            raise UserError(f"there are several tenants; name one with --tenant: {', '.join(names)}")
        return str(names[0])

    def of(self, tenant: str | None) -> str:
        """Return the path of the API that belongs to a tenant."""
        return f"/api/tenant/{quote(self.tenant(tenant), safe='')}"

    def _json(self, path: str, body: dict[str, Any] | None) -> Any:  # JSON
        try:
            return json.loads(self._answer(path, body))
        except ValueError as error:
            raise UserError(f"{self.base}{path}: the answer is not JSON; is that Headgate's address?") from error

    def _answer(self, path: str, body: dict[str, Any] | None, method: str | None = None) -> bytes:
        data = None if body is None else json.dumps(body).encode()
        headers = {"Content-Type": "application/json"}
        if self.token:
            headers["Authorization"] = f"Bearer {self.token}"
        url, end = self.base + path, time.monotonic() + AGAIN_MAX_S
        while True:
            if everywhere("verbose"):
                say(f"{method or ('GET' if body is None else 'POST')} {url}", err=True)
            try:
                request = urllib.request.Request(url, data, headers, method=method)
                with _opened(request, TIMEOUT_S, self.tls) as answer:
                    # A bound, since whatever listens at the address may send without end.
                    found: bytes = answer.read(ANSWER_SIZE_MAX_BYTES)
                    return found
            except urllib.error.HTTPError as error:
                # Only answers that say that nothing was done are repeated: a second POST would otherwise act twice.
                pause_s = _again_s(error)
                if pause_s is None or time.monotonic() + pause_s > end:
                    raise UserError(f"{url}: {_reason(error)}") from error
            except (OSError, HTTPException, ValueError) as error:
                raise _unreached(url, error) from error
            time.sleep(pause_s)


def _unreached(url: str, error: Exception) -> UserError:
    """Return the error to raise when a server gives no answer; retrying does not help when its certificate is
    refused."""
    # An attacker in between looks like this; waiting and repeating would be the wrong advice.
    if isinstance(getattr(error, "reason", None), ssl.SSLCertVerificationError):
        return UserError(f"{url}: its certificate is refused ({error}); name its authority as [tls] ca")
    return AwayError(f"{url}: no Headgate answers there ({error}); is `headgate run` running?")


def _again_s(error: urllib.error.HTTPError) -> float | None:
    """Return the delay after which to ask again, if the answer says that nothing was done and that a retry may
    succeed."""
    retry_after = error.headers.get("Retry-After", "")
    # With Retry-After, the API answers 422 and 503 only if nothing was done; 429 is not repeated.
    early = error.code in (HTTPStatus.SERVICE_UNAVAILABLE, HTTPStatus.UNPROCESSABLE_ENTITY)
    return float(retry_after) if early and retry_after.isascii() and retry_after.isdigit() else None


def _reason(error: urllib.error.HTTPError) -> str:
    """Return the reason in an answer of the API, or else that of its status."""
    try:
        found = json.loads(error.read(ANSWER_SIZE_MAX_BYTES))
    except (ValueError, OSError):
        return error.reason
    return str(found.get("description") or error.reason) if isinstance(found, dict) else error.reason


def _opened(
    request: urllib.request.Request, timeout_s: float, tls: ssl.SSLContext | None
) -> Any:  # a response of urllib
    # A proxy of the environment would receive the token, and could not reach this machine's loopback anyway.
    direct = [urllib.request.ProxyHandler({})] if _is_here(urlsplit(request.full_url).hostname or "") else []
    opener = urllib.request.build_opener(_NoRedirects, *direct, urllib.request.HTTPSHandler(context=tls))
    return opener.open(request, timeout=timeout_s)


def pages(config: str | None, url: str | None) -> PageClient:
    """Return the pages named by the chosen profile, or by the settings and the environment; `url` takes precedence.
    Raise UserError."""
    profile = chosen()
    url = url or profile.url or None
    settings = _settings(config, url)
    base = url.rstrip("/") if url else _address(_needed(settings))
    named = base == profile.url
    # The profile's token goes to the profile's server only, whatever address the command line names.
    token = everywhere("auth_token") or os.environ.get(TOKEN_VARIABLE, "") or (profile.token if named else "")
    if settings is not None and (not url if token else _ours(base, settings)):
        token = token or known_token(settings)
        # Any user of this machine may listen on a port while Headgate is down, and would receive the token. Only who
        # names both the token and the address has chosen who does.
        _not_a_stranger(base, settings)
    if everywhere("insecure") or (named and not profile.verify):
        return PageClient(base, token, _unchecked(), profile.tenant)
    return PageClient(base, token, _trusting(base, settings) if settings else None, profile.tenant)


def _unchecked() -> ssl.SSLContext:
    """Return a context that trusts any server, because the user requested that."""
    found = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    found.check_hostname, found.verify_mode = False, ssl.CERT_NONE
    return found


def token_for(host: str, port: int, config: str | None = None, *, given: str = "", guessed: bool = False) -> str:
    """Return the token for a server other than the pages: the given one, that of the environment or, for a server on
    this machine, that of the settings; empty when this user may read none. `guessed`: nobody named the address. Raise
    UserError."""
    token = given or os.environ.get(TOKEN_VARIABLE, "")
    if not _is_here(host) or (token and not guessed):
        return token
    settings = _settings(config, "this machine")
    if settings is None and token:
        return token  # Whose Headgate it should be is in settings that this user cannot read.
    settings = settings or Settings(Path(NAME).absolute(), {})
    token = token or known_token(settings)
    if token:
        _not_a_stranger(f"http://{f'[{host}]' if ':' in host else host}:{port}", settings)
    return token


def _settings(config: str | None, url: str | None) -> Settings | None:
    """Return the settings, or None when there are none and an address was given. Raise UserError."""
    try:
        return read(find(config))
    except UserError:
        if config or not url:
            raise
        return None


def _needed(settings: Settings | None) -> Settings:
    assert settings is not None, "without an address, settings were found or missed"
    return settings


def _address(settings: Settings) -> str:
    root = settings.get("web", "root").rstrip("/")
    address = _here(settings)
    # A stranger can say that it is alive, too, and must not keep anybody from the real pages.
    if root and (_strangers(address, settings) or not _alive(address, settings)):
        return root
    return address


def _here(settings: Settings) -> str:
    host, port = settings.get("web", "listen_address"), settings.get("web", "port")
    # A wildcard is an address to listen on; to connect there means loopback.
    host = _EVERYWHERE.get(host, host)
    scheme = "https" if settings.get("tls", "certificate") else "http"
    return f"{scheme}://{f'[{host}]' if ':' in host else host}:{port}"


def _alive(base: str, settings: Settings) -> bool:
    """Return whether the pages are served at `base`: those of this machine need neither a name nor a load balancer."""
    try:
        request = urllib.request.Request(f"{base}/health/live")
        with _opened(request, ALIVE_S, _trusting(base, settings)) as answer:
            # Any program may listen at this port: only Headgate's own words count.
            return bool(json.loads(answer.read(ANSWER_SIZE_MAX_BYTES)) == {"alive": True})
    except (OSError, ValueError, HTTPException):
        return False


def _trusting(base: str, settings: Settings) -> ssl.SSLContext | None:
    """Return which certificates to trust: on this machine only the server's own, whatever name it is for; elsewhere
    that one, `[tls] ca` and the authorities of the system. Raise UserError."""
    own = (settings.place("tls", "certificate", ""),) if settings.get("tls", "certificate") else ()
    if not own or not _is_here(urlsplit(base).hostname or ""):
        return trusting(*own, *authorities(settings))
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    try:
        tls.load_verify_locations(*own)
    except OSError as error:
        raise UserError(f"{own[0]}: the certificate cannot be used: {error}") from error
    # The certificate itself is the anchor, even if an authority has signed it.
    tls.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
    # On this machine the name in it does not matter: people connect to localhost, it is for the public name.
    tls.check_hostname = False
    return tls


def known_trust(config: str | None = None) -> ssl.SSLContext | None:
    """Return which certificates to trust for servers other than the pages, by the settings; None without settings.
    Raise UserError."""
    settings = _settings(config, "any")
    return trusting(*authorities(settings)) if settings else None


def _ours(base: str, settings: Settings) -> bool:
    """Return whether a server may receive the token of the settings: one on this machine, or one that the settings
    name."""
    host = urlsplit(base).hostname or ""
    root = urlsplit(settings.get("web", "root"))
    known = (settings.get("web", "listen_address"), root.hostname)
    return _is_here(host) or host in known


def _is_here(host: str) -> bool:
    try:
        return host == "localhost" or ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


def _not_a_stranger(base: str, settings: Settings) -> None:
    """Raise UserError when a program of another user listens on the port of this machine: Headgate may not be
    running."""
    if strangers := _strangers(base, settings):
        raise UserError(
            f"{base}: the program that listens there belongs to the user with id {min(strangers)}, to whom neither "
            "these settings nor the state belong: it is not shown the token"
        )


def _strangers(base: str, settings: Settings) -> set[int]:
    """Return the ids of other users whose programs listen on the port, if it is one of this machine."""
    at = urlsplit(base)
    if not _is_here(at.hostname or ""):
        return set()
    # Besides this user: root, and the owner of the files, as Headgate usually has a user of its own.
    trusted = {os.geteuid(), 0, *_owner(settings.path), *_owner(settings.state_dir), *_owner(token_file(settings).path)}
    return owners(at.port or (443 if at.scheme == "https" else 80)) - trusted


def _owner(path: Path) -> set[int]:
    try:
        return {path.stat().st_uid}
    except OSError:
        return set()
