"""Call the pages and the API of a running Headgate from a command."""

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
from headgate.base.certificates import add_authorities
from headgate.base.errors import AwayError, NoSettings, UserError
from headgate.cli.apicommands import chosen, everywhere
from headgate.cli.identity.credentials import TOKEN_VARIABLE, authorities, known_token, token_file
from headgate.cli.settings import APP_DEFAULT, NAME, Settings, find, read
from headgate.cli.terminal.say import say
from headgate.recipes.patience import ANSWER_WAIT_MAX_S

# urllib cannot tell which user listens at the other end, so read the kernel's tables.
TABLES = ("/proc/net/tcp", "/proc/net/tcp6")
LISTENS = "0A"
EVERYWHERE_OR_LOOPBACK = {
    "0100007F",
    "00000000",
    "0" * 32,
    "0" * 24 + "01000000",
    "0" * 16 + "FFFF0000" + "0100007F",
}
"""Addresses that include the loopback interface, in the format of the kernel's tables."""


def owners(port: int, tables: tuple[str, ...] = TABLES) -> set[int]:
    """Return the ids of the users whose programs listen on the port; empty if the kernel's tables cannot be read."""
    found = set()
    for table in tables:
        try:
            lines = Path(table).read_text().splitlines()[1:]
        except OSError:
            continue
        for words in (line.split() for line in lines):
            address, _, number = words[1].partition(":")
            # The kernel prints addresses in hex, in the machine's byte order: 0100007F is 127.0.0.1.
            if words[3] == LISTENS and int(number, 16) == port and address in EVERYWHERE_OR_LOOPBACK:
                found.add(int(words[7]))
    return found


TIMEOUT_S = ANSWER_WAIT_MAX_S + 5
"""Longer than the server waits for a scheduler, so that it can report that none handled the request."""
AGAIN_MAX_S = 20.0
"""Seconds for which a command repeats its request while the server is still loading the data for its response."""
ALIVE_S = 1.0
ANSWER_SIZE_MAX_BYTES = 256 << 20
_EVERYWHERE = {"0.0.0.0": "127.0.0.1", "::": "::1"}


class _NoRedirects(urllib.request.HTTPRedirectHandler):
    # Returning None makes urllib raise HTTPError for the redirect.
    def redirect_request(
        self, req: urllib.request.Request, fp: IO[bytes], code: int, msg: str, headers: Message, newurl: str
    ) -> None:
        """Follow no redirect: a token must reach only the server that it is meant for."""


@dataclass(frozen=True, slots=True)
class PageClient:
    """Call a running Headgate. `base` is its URL without a trailing slash."""

    base: str
    token: str = ""
    tls: ssl.SSLContext | None = None
    usual: str = ""
    """Tenant to use if the command names none."""

    def get(self, path: str) -> Any:  # JSON
        """Return the decoded JSON at a path. Raise UserError."""
        return self._json(path, None)

    def text(self, path: str) -> str:
        """Return the text at a path. Raise UserError."""
        return self._answer(path, None).decode(errors="replace")

    def post(self, path: str, body: dict[str, Any]) -> Any:  # JSON
        """Post a JSON body, and return the decoded JSON of the response. Raise UserError."""
        return self._json(path, body)

    def put(self, path: str, body: dict[str, Any]) -> None:
        """Put a JSON body. Raise UserError."""
        self._answer(path, body, "PUT")

    def delete(self, path: str) -> None:
        """Delete the resource at a path. Raise UserError."""
        self._answer(path, None, "DELETE")

    def tenant(self, named: str | None) -> str:
        """Return the named tenant, or else the only one. Raise UserError."""
        if named or self.usual:
            return named or self.usual
        names = [found["name"] for found in self.get("/api/tenants")]
        if not names:
            raise UserError(f"{self.base} has no tenant that you may see")
        if len(names) > 1:
            raise UserError(f"there are several tenants; choose one with --tenant: {', '.join(names)}")
        return str(names[0])

    def of(self, tenant: str | None) -> str:
        """Return the API's path of the named tenant, or else of the only one. Raise UserError."""
        return f"/api/tenant/{quote(self.tenant(tenant), safe='')}"

    def _json(self, path: str, body: dict[str, Any] | None) -> Any:  # JSON
        try:
            return json.loads(self._answer(path, body))
        except ValueError as error:
            raise UserError(f"{self.base}{path}: the response is not JSON; is this the URL of Headgate?") from error

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
                    # Limit the size: another program may listen there and send endlessly.
                    found: bytes = answer.read(ANSWER_SIZE_MAX_BYTES)
                    return found
            except urllib.error.HTTPError as error:
                # Repeat only if the response says that nothing was done: otherwise a POST would act twice.
                pause_s = _again_s(error)
                if pause_s is None or time.monotonic() + pause_s > end:
                    raise _refused(url, error) from error
            except (OSError, HTTPException, ValueError) as error:
                raise _unreached(url, error) from error
            time.sleep(pause_s)


def _unreached(url: str, error: Exception) -> UserError:
    """Return the error for a server that does not answer: AwayError, or a UserError for a certificate that is not
    trusted."""
    # An untrusted certificate may mean an attacker in the middle, so do not suggest to wait and retry.
    if isinstance(getattr(error, "reason", None), ssl.SSLCertVerificationError):
        return UserError(f"{url}: the server's certificate is not trusted ({error}); set [tls] ca to its CA")
    # urllib wraps the error of the system, which is the part that helps people.
    why = getattr(error, "reason", error)
    text = why.strerror or why if isinstance(why, OSError) else why
    return AwayError(f"{url}: Headgate does not answer ({text}); is `headgate run` running?")


def _again_s(error: urllib.error.HTTPError) -> float | None:
    """Return the delay before a retry, or None if a retry could act twice or would not help."""
    retry_after = error.headers.get("Retry-After", "")
    # The API sends Retry-After with 422 and 503 only if nothing was done. Do not repeat on 429.
    early = error.code in (HTTPStatus.SERVICE_UNAVAILABLE, HTTPStatus.UNPROCESSABLE_ENTITY)
    return float(retry_after) if early and retry_after.isascii() and retry_after.isdigit() else None


def _refused(url: str, error: urllib.error.HTTPError) -> UserError:
    """Return the error for a request that the server answered and refused."""
    text = _reason(error)
    # What is wrong with the request needs no address; who is asked matters if it may be the wrong one, or the token is.
    suffices = error.code in (HTTPStatus.BAD_REQUEST, HTTPStatus.NOT_FOUND, HTTPStatus.CONFLICT) and " " in text
    return UserError(text if suffices and not text.startswith(error.reason) else f"{url}: {text}")


def _reason(error: urllib.error.HTTPError) -> str:
    """Return the error description in a response of the API, or else the reason phrase of its status."""
    try:
        found = json.loads(error.read(ANSWER_SIZE_MAX_BYTES))
    except (ValueError, OSError):
        # Headgate sends HTML only to clients that accept it, so another program answered.
        other = error.code == HTTPStatus.NOT_FOUND and error.headers.get_content_type() == "text/html"
        return f"{error.reason}; is this the URL of Headgate?" if other else error.reason
    return str(found.get("description") or error.reason) if isinstance(found, dict) else error.reason


def _opened(
    request: urllib.request.Request, timeout_s: float, tls: ssl.SSLContext | None
) -> Any:  # a response of urllib
    # Bypass proxies of the environment: a proxy would see the token, and cannot reach this machine's loopback.
    direct = [urllib.request.ProxyHandler({})] if _is_here(urlsplit(request.full_url).hostname or "") else []
    opener = urllib.request.build_opener(_NoRedirects, *direct, urllib.request.HTTPSHandler(context=tls))
    return opener.open(request, timeout=timeout_s)


def pages(config: str | None, url: str | None) -> PageClient:
    """Return a client for the server of the selected profile, or of the settings and the environment; `url` takes
    precedence. Raise UserError."""
    profile = chosen()
    url = url or profile.url or None
    settings = _settings(config, url)
    base = url.rstrip("/") if url else _address(_needed(settings))
    named = base == profile.url
    # Send the profile's token only to the profile's server, whatever URL the command line gives.
    token = everywhere("auth_token") or os.environ.get(TOKEN_VARIABLE, "") or (profile.token if named else "")
    if settings is not None and (not url if token else _ours(base, settings)):
        token = token or known_token(settings)
        # While Headgate is down, another user of this machine may listen on its port and would receive the token. Skip
        # the check only if the user explicitly gave both the token and the URL.
        _not_a_stranger(base, settings)
    if everywhere("insecure") or (named and not profile.verify):
        return PageClient(base, token, _unchecked(), profile.tenant)
    return PageClient(base, token, _trusting(base, settings) if settings else None, profile.tenant)


def _unchecked() -> ssl.SSLContext:
    """Return a context that trusts any server, for `--insecure`."""
    found = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    found.check_hostname, found.verify_mode = False, ssl.CERT_NONE
    return found


def token_for(host: str, port: int, config: str | None = None, *, given: str = "", guessed: bool = False) -> str:
    """Return the token for a server other than the pages: the given one, that of the environment or, for a server on
    this machine, that of the settings; empty if this user may read none. `guessed` means that the host is a default.
    Raise UserError."""
    token = given or os.environ.get(TOKEN_VARIABLE, "")
    if not _is_here(host) or (token and not guessed):
        return token
    settings = _settings(config, "this machine")
    if settings is None and token:
        return token  # without the settings, the server's owner cannot be checked
    settings = settings or Settings(Path(NAME).absolute(), {})
    token = token or known_token(settings)
    if token:
        _not_a_stranger(f"http://{f'[{host}]' if ':' in host else host}:{port}", settings)
    return token


def token_source() -> str:
    """Return a phrase for where `token_for` finds a token for a command that names no settings file."""
    return TOKEN_VARIABLE if os.environ.get(TOKEN_VARIABLE) else f"the settings file {find(None).absolute()}"


def _settings(config: str | None, url: str | None) -> Settings | None:
    """Return the settings, or None if there are none and a URL was given. Raise UserError."""
    try:
        return read(find(config))
    except UserError as error:
        if url and not config:
            return None
        if not isinstance(error, NoSettings):
            raise
        raise NoSettings(f"{error}\n  --url URL         asks a running Headgate, without settings") from None


def _needed(settings: Settings | None) -> Settings:
    assert settings is not None, "`_settings` raises if there are neither settings nor a URL"
    return settings


def _address(settings: Settings) -> str:
    """Return the URL of the pages: on this machine if they run here, or else `[web] root`."""
    root = settings.get("web", "root").rstrip("/")
    address = _here(settings)
    # Another user's program can also answer the health check; it must not divert commands from the real pages.
    if root and (_strangers(address, settings) or not _alive(address, settings)):
        return root
    return address


def queues_address() -> str:
    """Return the URL of the message queues that the pages of the settings serve on this machine; empty if they serve
    none, or if another user's program listens there."""
    try:
        settings = read(find(None))
    except UserError:
        return ""
    address = _here(settings)
    if {"messages", "application_keys"}.isdisjoint(settings.values) or _strangers(address, settings):
        return ""
    return f"{address}/v1/{APP_DEFAULT}/"


def _here(settings: Settings) -> str:
    host, port = settings.get("web", "listen_address"), settings.get("web", "port")
    # A wildcard is only an address to listen on; connect to loopback instead.
    host = _EVERYWHERE.get(host, host)
    scheme = "https" if settings.get("tls", "certificate") else "http"
    return f"{scheme}://{f'[{host}]' if ':' in host else host}:{port}"


def _alive(base: str, settings: Settings) -> bool:
    """Return whether Headgate's pages answer at `base`."""
    try:
        request = urllib.request.Request(f"{base}/health/live")
        with _opened(request, ALIVE_S, _trusting(base, settings)) as answer:
            # Any program may listen on this port, so check for Headgate's exact response.
            return bool(json.loads(answer.read(ANSWER_SIZE_MAX_BYTES)) == {"alive": True})
    except (OSError, ValueError, HTTPException):
        return False


def _trusting(base: str, settings: Settings) -> ssl.SSLContext | None:
    """Return the certificates to trust: on this machine only the server's own, for any host name; elsewhere that
    certificate, `[tls] ca` and the system's CAs. Raise UserError."""
    own = (settings.place("tls", "certificate", ""),) if settings.get("tls", "certificate") else ()
    if not own or not _is_here(urlsplit(base).hostname or ""):
        return trusting(*own, *authorities(settings))
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    try:
        add_authorities(tls, own[0])
    except OSError as error:
        raise UserError(f"{own[0]}: the certificate cannot be used: {error}") from error
    # The certificate itself is the trust anchor, even if a CA signed it.
    tls.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
    # Commands connect to localhost, but the certificate is for the public name, so do not compare names.
    tls.check_hostname = False
    return tls


def known_trust(config: str | None = None) -> ssl.SSLContext | None:
    """Return the certificates to trust for servers other than the pages, or None without settings. Raise UserError."""
    settings = _settings(config, "any")
    return trusting(*authorities(settings)) if settings else None


def _ours(base: str, settings: Settings) -> bool:
    """Return whether a server may receive the token of the settings: if it is on this machine, or if the settings name
    it."""
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
    """Raise UserError if a program of another user listens on the port on this machine, perhaps because Headgate is
    not running."""
    if strangers := _strangers(base, settings):
        raise UserError(
            f"{base}: the program that listens there belongs to the user with id {min(strangers)}, who owns neither "
            "these settings nor the state; Headgate did not send your token to it"
        )


def _strangers(base: str, settings: Settings) -> set[int]:
    """Return the ids of untrusted users whose programs listen on the port, if it is a port of this machine."""
    at = urlsplit(base)
    if not _is_here(at.hostname or ""):
        return set()
    # Also trust root and the owners of Headgate's files, because Headgate usually runs as its own user.
    trusted = {os.geteuid(), 0, *_owner(settings.path), *_owner(settings.state_dir), *_owner(token_file(settings).path)}
    return owners(at.port or (443 if at.scheme == "https" else 80)) - trusted


def _owner(path: Path) -> set[int]:
    try:
        return {path.stat().st_uid}
    except OSError:
        return set()
