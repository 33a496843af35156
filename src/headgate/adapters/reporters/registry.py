"""List the drivers of reporters in one place: a new driver needs a row here, and a module with a function `connect`.

A row of `config.drivers` defines which options pipelines may set.
"""

from __future__ import annotations

import importlib
import ssl
from collections.abc import Callable, Mapping
from contextlib import AsyncExitStack, suppress
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, Protocol, cast
from urllib.parse import urlsplit

from headgate.adapters.option import ConnectionOption

if TYPE_CHECKING:  # commands that only list drivers must not load these modules
    from headgate.ports.reporter import Reporter


class ReporterOptions(NamedTuple):
    """Hold the settings of one connection for its driver."""

    options: Mapping[str, str]
    """Options that are set in the connection's section."""
    directory: Path
    """Directory of the settings file; paths are relative to it."""
    tls: Callable[[], ssl.SSLContext | None]
    """Returns the context with the certificates that clients trust; None: those of the system."""
    stack: AsyncExitStack
    """Stack that closes the driver's resources; the driver enters them here."""


class ReporterDriver(NamedTuple):
    """Describe one driver."""

    module: str
    """Module with `connect(given: ReporterOptions) -> Reporter`, which sends nothing and raises UserError; imported
    only if a connection names the driver."""
    settings: Mapping[str, ConnectionOption]
    shown: Callable[[Mapping[str, str]], str]
    """Returns the destination of a connection without its secrets, for everybody with read access."""
    needed: tuple[str, str] = ("", "")
    """A required option, and its meaning; empty if no option is required."""


class _Module(Protocol):
    async def connect(self, given: ReporterOptions) -> Reporter: ...


def _host(scheme: str) -> Callable[[Mapping[str, str]], str]:
    return lambda options: f"{scheme}://{options.get('server') or 'localhost'}"


def _called(options: Mapping[str, str]) -> str:
    """Return only scheme, host and port, because webhooks of chats have their token in the path."""
    with suppress(ValueError):
        parts = urlsplit(options["url"].strip())
        host, port = parts.hostname or "", f":{parts.port}" if parts.port is not None else ""
        # An `@` after the host may mean that a password contains a slash; then the apparent host is the user.
        if host and "@" not in f"{parts.path}{parts.query}{parts.fragment}":
            return f"{parts.scheme}://{f'[{host}]' if ':' in host else host}{port}"
    return "…"


def _chats(options: Mapping[str, str]) -> str:
    # Any part of a URL of apprise can be a token, even the host.
    return " ".join(f"{url.partition('://')[0]}://…" for url in options["url"].split())


def _servers(options: Mapping[str, str]) -> str:
    return " ".join(map(_server, options["uri"].split(",")))


def _server(url: str) -> str:
    """Return only host and port, without credentials."""
    try:
        # Without `//`, urlsplit would interpret the host as a path or a scheme.
        parts = urlsplit(url.strip() if "://" in url else f"//{url.strip()}")
        return f"{parts.hostname or ''}:{parts.port or 9200}"
    except ValueError:
        return "…"


_SMTP = {
    "server": ConnectionOption("text", "localhost", "the mail server."),
    "port": ConnectionOption("integer:1,65535", "", "its port. Default: 25; 465 with `security = tls`."),
    "security": ConnectionOption("choice:none,starttls,tls", "none", "how the connection to the server is protected."),
    "use_starttls": ConnectionOption("flag", "false", "the same as `security = starttls`."),
    "ca": ConnectionOption("path", "", "the authorities for its certificate, PEM. Default: the system's."),
    "user": ConnectionOption("text", "", "the login name. Default: no login."),
    "password": ConnectionOption("text", "", "the password of that user."),
    "default_from": ConnectionOption("text", "headgate@localhost", "the sender."),
    "default_to": ConnectionOption("text", "", "the recipients of reports whose pipeline names none."),
    "recipients": ConnectionOption(
        "text",
        "",
        "addresses, and domains such as `@example.org`, that pipelines may name, separated by spaces. Default: any.",
    ),
}
_HTTP = {
    "url": ConnectionOption("text", "", "the URL to call."),
    "secret": ConnectionOption("text", "", "the secret that signs calls. Default: calls are not signed."),
}
_CHAT = {
    "url": ConnectionOption(
        "text", "", "URLs of the library apprise, separated by spaces, such as `slack://TOKEN/#CHANNEL`."
    ),
}
_MQTT = {
    "server": ConnectionOption("text", "localhost", "the host of the broker."),
    "port": ConnectionOption("integer:1,65535", "", "its port. Default: 1883."),
    "keepalive": ConnectionOption("seconds", "60", "the interval between keep-alive messages to the broker."),
    "user": ConnectionOption("text", "", "the login name. Default: no login."),
    "password": ConnectionOption("text", "", "the password of that user."),
    "ca_certs": ConnectionOption("path", "", "the authorities for its certificate. Default: the system's."),
    "certfile": ConnectionOption(
        "path", "", "the client certificate; with it, or with ca_certs, the connection uses TLS."
    ),
    "keyfile": ConnectionOption("path", "", "its key."),
    "ciphers": ConnectionOption("text", "", "the ciphers that are allowed, in OpenSSL's notation."),
}
_ELASTICSEARCH = {
    "uri": ConnectionOption("text", "", "its servers, such as `https://HOST:9200`, separated by commas."),
    "use_ssl": ConnectionOption("flag", "true", "whether servers without `http://` are called with TLS."),
    "verify_certs": ConnectionOption("flag", "true", "whether their certificates are checked."),
    "ca_certs": ConnectionOption("path", "", "the authorities for their certificates. Default: the system's."),
    "client_cert": ConnectionOption("path", "", "the client certificate."),
    "client_key": ConnectionOption("path", "", "its key."),
}
_HERE = "headgate.adapters.reporters"
REPORTERS: dict[str, ReporterDriver] = {
    "smtp": ReporterDriver(f"{_HERE}.mail", _SMTP, _host("smtp")),
    "http": ReporterDriver(f"{_HERE}.webhook", _HTTP, _called, ("url", "the URL to call, such as https://HOST/PATH")),
    "chat": ReporterDriver(
        f"{_HERE}.chat", _CHAT, _chats, ("url", "a URL of the library apprise, such as slack://TOKEN/#CHANNEL")
    ),
    "elasticsearch": ReporterDriver(
        f"{_HERE}.elastic",
        _ELASTICSEARCH,
        _servers,
        ("uri", "its servers, such as https://HOST:9200, separated by commas"),
    ),
    "mqtt": ReporterDriver(f"{_HERE}.mqtt", _MQTT, _host("mqtt")),
}
"""Name of the driver, as settings and `config.drivers` use it -> its row."""


async def connect(driver: str, given: ReporterOptions) -> Reporter:
    """Connect the reporter. Raise UserError for errors in the section."""
    return await cast(_Module, importlib.import_module(REPORTERS[driver].module)).connect(given)
