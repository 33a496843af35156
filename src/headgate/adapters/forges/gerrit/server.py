"""Read a connection's section of the settings: which Gerrit server, and how to reach it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from urllib.parse import quote, unquote, urlsplit

from headgate.base.errors import UserError

PORT = 29418
KEEPALIVE_S = 60
AUTHENTICATIONS = ("basic", "digest")
_TRUE, _FALSE = ("true", "yes", "on", "1"), ("false", "no", "off", "0")
_BROKERS = ("kafka_", "aws_kinesis_", "gcloud_pubsub_")
"""Prefixes of options for event brokers; Zuul reads events from these instead of the stream."""


@dataclass(frozen=True, slots=True)
class Server:
    """Describe a server; the options have the same names as in `zuul.conf`."""

    name: str
    """Name of the connection."""
    server: str
    user: str
    baseurl: str
    canonical_hostname: str
    ssh_server: str
    port: int = PORT
    sshkey: str = ""
    known_hosts: str = ""
    """Path of the known_hosts file; empty: the files of the user and of the machine."""
    keepalive_s: int = KEEPALIVE_S
    """Interval between keepalive messages on ssh; 0 disables them."""
    password: str = field(default="", repr=False)
    digest: bool = False
    verify_ssl: bool = True
    git_over_ssh: bool = False
    stream_events: bool = True
    replication_delay_s: float = 0.0

    @classmethod
    def of(cls, name: str, settings: Mapping[str, str]) -> Server:
        """Return the options of a section, with absolute paths. Raise UserError."""
        options = _Section(settings)
        server = options.text("server") or options.wrong("server", "it has no default; set it to the host of Gerrit")
        user = options.text("user") or options.wrong("user", "it has no default; set it to Headgate's account")
        baseurl = (options.text("baseurl") or f"https://{server}").rstrip("/")
        if urlsplit(baseurl).scheme not in ("http", "https") or not urlsplit(baseurl).hostname:
            options.wrong("baseurl", f"{baseurl!r} is not a URL; write it as https://HOST or https://HOST/PATH")
        how = options.text("auth_type") or "basic"
        if how not in AUTHENTICATIONS:
            known = " and ".join(AUTHENTICATIONS)
            options.wrong("auth_type", f"{how!r} is not supported, {known} are; give the account an HTTP password")
        password = options.text("password")
        streams = options.flag("stream_events", True)
        if not password:
            options.wrong("password", "it is required: Headgate reads changes and posts reports over REST")
        return cls(
            name=name,
            server=server,
            user=user,
            baseurl=baseurl,
            canonical_hostname=options.text("canonical_hostname") or server,
            ssh_server=options.text("ssh_server") or server,
            port=options.number("port", PORT, 1, 65535),
            sshkey=options.text("sshkey"),
            known_hosts=options.text("known_hosts"),
            keepalive_s=options.number("keepalive", KEEPALIVE_S, 0, 3600),
            password=password,
            digest=how == "digest",
            verify_ssl=options.flag("verify_ssl", True),
            git_over_ssh=options.flag("git_over_ssh", False),
            stream_events=streams and not any(key.startswith(_BROKERS) for key in settings),
            replication_delay_s=float(options.number("replication_delay", 0, 0, 3600)),
        )

    def path(self, project: str) -> str:
        """Return the server's name of a project, from its canonical name."""
        return project.removeprefix(f"{self.canonical_hostname}/")

    def project(self, path: str) -> str:
        """Return the canonical name of a project, from the server's name."""
        return f"{self.canonical_hostname}/{path}"

    def git_url(self, path: str) -> str:
        """Return the URL of its repository; it contains no password."""
        if self.git_over_ssh:
            return f"ssh://{quote(self.user, safe='')}@{self.ssh_server}:{self.port}/{quote(path)}"
        # Below `/a/`, Gerrit's git demands credentials; other paths serve only public projects.
        return f"{self.baseurl}/a/{quote(path)}"

    def change_url(self, path: str, number: int) -> str:
        """Return the page of a change."""
        return f"{self.baseurl}/c/{quote(path)}/+/{number}"


class _Section:
    def __init__(self, settings: Mapping[str, str]) -> None:
        self._settings = settings

    def wrong(self, option: str, why: str) -> str:
        raise UserError(f"{option}: {why}")

    def text(self, option: str) -> str:
        return self._settings.get(option, "").strip()

    def flag(self, option: str, default: bool) -> bool:
        value = self.text(option).lower()
        if value and value not in _TRUE + _FALSE:
            self.wrong(option, f"{value!r} is neither true nor false")
        return value in _TRUE if value else default

    def number(self, option: str, default: int, least: int, most: int) -> int:
        value = self.text(option)
        if not value:
            return default
        # `isdecimal` alone admits other scripts' digits; the slice keeps `int` cheap.
        if not (value.isascii() and value.isdecimal() and least <= int(value[:10]) <= most):
            self.wrong(option, f"{value!r} is not a number from {least} to {most}")
        return int(value)


def change_number(server: Server, url: str) -> int | None:
    """Return the number of the change in a URL, in any form that Gerrit uses or used; None if it names no change of
    this server. Scheme and port are ignored, since people write URLs with and without them.
    """
    words = _words(server, url)
    if words[:1] == ["c"]:
        # Pages are at /c/PROJECT/+/N or, in older versions, at /c/N.
        words = words[words.index("+") + 1 :] if "+" in words else words[1:]
    found = words[0] if words else ""
    return int(found) if found.isascii() and found.isdecimal() and len(found) < 10 else None


def change_project(server: Server, url: str) -> str:
    """Return the canonical name of the project in the URL of a change; empty if the URL names none."""
    words = _words(server, url)
    named = words[1 : words.index("+")] if words[:1] == ["c"] and "+" in words else []
    return server.project(unquote("/".join(named))) if named else ""


def _words(server: Server, url: str) -> list[str]:
    """Return the components of a URL's path below the server's, or none if it belongs to another server."""
    try:
        parts, base = urlsplit(url.strip()), urlsplit(server.baseurl)
    except ValueError:
        return []
    if (parts.hostname or "").lower() not in {(base.hostname or "").lower(), server.server, server.canonical_hostname}:
        return []
    path = parts.path
    if base.path and base.path != "/":
        if not f"{path}/".startswith(f"{base.path}/"):
            return []
        path = path[len(base.path) :]
    words = [word for word in path.split("/") if word]
    if not words and parts.fragment:  # /#/c/N, as before Gerrit 2.15
        return [word for word in parts.fragment.split("/") if word]
    return words
