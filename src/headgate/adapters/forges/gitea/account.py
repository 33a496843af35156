"""A connection to Gitea or Forgejo, as in the settings."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from urllib.parse import urlsplit

from headgate.adapters.forges.accounts import TRUE, OnTheWeb, address, host_of
from headgate.base.errors import UserError


@dataclass(frozen=True, slots=True)
class GiteaAccount(OnTheWeb):
    """Describe where a Gitea is, and which account Headgate uses there."""

    name: str
    web: str
    """URL of the web pages, without a slash at the end; it may have a path."""
    canonical_hostname: str
    clone: str
    """URL prefix of repositories, followed by the name of the project."""
    api_token: str = field(default="", repr=False)
    webhook_token: str = field(default="", repr=False)
    user: str = ""
    """Name of the account; empty: Headgate requests it from the forge."""
    sshkey: str = ""
    verify_ssl: bool = True

    @property
    def api(self) -> str:
        """Return the URL of the REST API."""
        return f"{self.web}/api/v1"


def account(name: str, options: Mapping[str, str]) -> GiteaAccount:
    """Return the account that a section of the settings describes. Raise UserError."""
    server = options.get("server", "")
    web = address("baseurl", options.get("baseurl") or (server if "://" in server else f"https://{server}"))
    host = urlsplit(web).hostname or ""
    if not options.get("api_token"):
        raise UserError("it needs api_token: a token of the account that Headgate has there, which may write")
    clone = options.get("cloneurl") or (f"ssh://git@{host}" if options.get("sshkey") else web)
    if clone.startswith(("http://", "https://")):
        clone = address("cloneurl", clone)
    canonical = options.get("canonical_hostname") or host_of(server) or host
    return GiteaAccount(
        name,
        web,
        canonical,
        clone.rstrip("/"),
        options["api_token"],
        options.get("webhook_token", ""),
        options.get("user", ""),
        options.get("sshkey", ""),
        options.get("verify_ssl", "true").lower() in TRUE,
    )
