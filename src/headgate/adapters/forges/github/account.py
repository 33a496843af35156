"""A connection to GitHub, as in the settings."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from urllib.parse import urlsplit

from headgate.base.errors import UserError

PUBLIC = "github.com"
LOOPBACK = frozenset({"127.0.0.1", "localhost", "::1"})
TRUE = frozenset({"true", "yes", "on", "1"})


@dataclass(frozen=True, slots=True)
class GitHubAccount:
    """Describe where GitHub is, and which account Headgate uses there."""

    name: str
    web: str = f"https://{PUBLIC}"
    """URL of the web pages, without a slash at the end."""
    canonical_hostname: str = PUBLIC
    app_id: str = ""
    app_key: str = field(default="", repr=False)
    """Private key of the app, in PEM."""
    api_token: str = field(default="", repr=False)
    webhook_token: str = field(default="", repr=False)
    sshkey: str = ""
    """Path of an ssh key; if set, git uses ssh."""
    verify_ssl: bool = True

    @property
    def host(self) -> str:
        """Return the host with its port, as in URLs."""
        return urlsplit(self.web).netloc

    @property
    def api(self) -> str:
        """Return the URL of the REST API."""
        return "https://api.github.com" if self.web == f"https://{PUBLIC}" else f"{self.web}/api/v3"

    @property
    def graphql(self) -> str:
        """Return the URL of the GraphQL API."""
        return "https://api.github.com/graphql" if self.web == f"https://{PUBLIC}" else f"{self.web}/api/graphql"

    @property
    def git(self) -> str:
        """Return the URL prefix of repositories, followed by the name of the project."""
        return f"ssh://git@{self.host}" if self.sshkey else self.web

    def short(self, project: str) -> str:
        """Return `owner/name` of a canonical name."""
        return project.removeprefix(f"{self.canonical_hostname}/")

    def canonical(self, short: str) -> str:
        """Return the canonical name of `owner/name`."""
        return f"{self.canonical_hostname}/{short}"


def account(name: str, options: Mapping[str, str], key: str = "") -> GitHubAccount:
    """Return the account that a section of the settings describes; `key`: content of the file `app_key`. Raise
    UserError."""
    server = options.get("server") or PUBLIC
    web = server if "://" in server else f"https://{server}"
    parts = urlsplit(web)
    if parts.scheme not in ("http", "https") or not parts.hostname or parts.path.strip("/") or parts.query:
        raise UserError(f"server: {server!r} is not a host name; write it as github.example.com")
    if parts.scheme == "http" and parts.hostname not in LOOPBACK:
        raise UserError("server: http:// is only taken for this machine, as tokens go over it; leave it out")
    app_id = options.get("app_id", "")
    if bool(app_id) != bool(options.get("app_key")):
        raise UserError("it needs both app_id and app_key, or neither")
    if app_id and not app_id.isdecimal():
        raise UserError(f"app_id: {app_id!r} is not a number; it is on the page of the app's settings")
    if app_id and not re.search("-----BEGIN (RSA )?PRIVATE KEY-----", key):
        raise UserError(f"app_key: {options['app_key']} is not a private key in PEM; the app's settings make one")
    return GitHubAccount(
        name,
        f"{parts.scheme}://{parts.netloc}",
        options.get("canonical_hostname") or parts.hostname,
        app_id,
        key,
        options.get("api_token", ""),
        options.get("webhook_token", ""),
        options.get("sshkey", ""),
        options.get("verify_ssl", "true").lower() in TRUE,
    )
