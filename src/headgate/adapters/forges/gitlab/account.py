"""A connection to GitLab, as in the settings."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Mapping
from dataclasses import dataclass, field
from urllib.parse import quote, urlsplit

from headgate.adapters.forges.accounts import LOOPBACK, TRUE, OnTheWeb, host_of
from headgate.base.errors import UserError

PUBLIC = "gitlab.com"
SIGNING = "whsec_"


@dataclass(frozen=True, slots=True)
class GitLabAccount(OnTheWeb):
    """Describe where a GitLab is, and which account Headgate uses there."""

    name: str
    web: str = f"https://{PUBLIC}"
    """URL of the web pages, without a slash at the end; it may have a path."""
    canonical_hostname: str = PUBLIC
    api_token: str = field(default="", repr=False)
    api_token_name: str = "headgate"
    """Name with which git logs in; GitLab accepts any name beside a token."""
    webhook_token: str = field(default="", repr=False)
    signing_key: bytes = field(default=b"", repr=False)
    """Key that deliveries are signed with; empty: deliveries need no signature."""
    clone: str = f"https://{PUBLIC}"
    """URL prefix of repositories, followed by the name of the project."""
    sshkey: str = ""
    """Path of an ssh key; if set, git uses ssh."""
    verify_ssl: bool = True

    @property
    def api(self) -> str:
        """Return the URL of the REST API."""
        return f"{self.web}/api/v4"

    def path(self, project: str) -> str:
        """Return the API's path of a project, from its canonical name."""
        return f"/projects/{quote(self.short(project), safe='')}"


def account(name: str, options: Mapping[str, str]) -> GitLabAccount:
    """Return the account that a section of the settings describes. Raise UserError."""
    server = options.get("server") or PUBLIC
    web = _web(options, server)
    clone = options.get("cloneurl") or web
    if not options.get("api_token"):
        raise UserError("it needs an api_token: a token of an account of its own, with the scope api")
    return GitLabAccount(
        name,
        web,
        options.get("canonical_hostname") or host_of(options.get("server") or web),
        options["api_token"],
        options.get("api_token_name") or "headgate",
        options.get("webhook_token", ""),
        _signing_key(options.get("webhook_signing_token", "")),
        clone.rstrip("/"),
        options.get("sshkey", ""),
        options.get("verify_ssl", "true").lower() in TRUE,
    )


def _web(options: Mapping[str, str], server: str) -> str:
    option = "baseurl" if options.get("baseurl") else "server"
    web = options.get("baseurl") or (server if "://" in server else f"https://{server}")
    parts = urlsplit(web)
    if parts.scheme not in ("http", "https") or not parts.hostname or parts.query or parts.fragment:
        raise UserError(f"{option}: {web!r} is not an address of a GitLab; write it as https://gitlab.example.com")
    if option == "server" and parts.path.strip("/"):
        raise UserError(f"server: {server!r} is not a host name; give an address with a path as baseurl")
    if parts.username or parts.password:
        raise UserError(f"{option}: leave name and password out; the token is api_token")
    if parts.scheme == "http" and parts.hostname not in LOOPBACK:
        raise UserError(f"{option}: http:// is only taken for this machine, as tokens go over it; use https://")
    return web.rstrip("/")


def _signing_key(token: str) -> bytes:
    if not token:
        return b""
    try:
        if not token.startswith(SIGNING):
            raise ValueError(token)
        return base64.b64decode(token.removeprefix(SIGNING), validate=True)
    except (ValueError, binascii.Error):
        raise UserError(
            f"webhook_signing_token: it is not a signing token: GitLab shows one that begins with {SIGNING}"
        ) from None
