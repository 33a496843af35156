"""A connection to Gitea or Forgejo as the operator writes it down."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from urllib.parse import urlsplit

from headgate.base.errors import UserError

LOOPBACK = frozenset({"127.0.0.1", "localhost", "::1"})
TRUE = frozenset({"true", "yes", "on", "1"})


@dataclass(frozen=True, slots=True)
class GiteaAccount:
    """Says where a Gitea is, and who Headgate is there."""

    name: str
    web: str
    """Where people look, perhaps with a path, without a slash at the end."""
    canonical_hostname: str
    clone: str
    """What the name of a project is put behind for git."""
    api_token: str = field(default="", repr=False)
    webhook_token: str = field(default="", repr=False)
    user: str = ""
    """The name of its account; empty: it is asked for."""
    sshkey: str = ""
    verify_ssl: bool = True

    @property
    def host(self) -> str:
        """Return the host with its port, as in URLs."""
        return urlsplit(self.web).netloc

    @property
    def api(self) -> str:
        """Return where REST is."""
        return f"{self.web}/api/v1"

    @property
    def path(self) -> str:
        """Return what stands between the host and a project in the address of a page."""
        return urlsplit(self.web).path

    def short(self, project: str) -> str:
        """Return `owner/name` of a canonical name."""
        return project.removeprefix(f"{self.canonical_hostname}/")

    def canonical(self, short: str) -> str:
        """Return the canonical name of `owner/name`."""
        return f"{self.canonical_hostname}/{short}"


def account(name: str, said: Mapping[str, str]) -> GiteaAccount:
    """Return what a section of the settings says.  Raise UserError."""
    server = said.get("server", "")
    web = _address("baseurl", said.get("baseurl") or (server if "://" in server else f"https://{server}"))
    host = urlsplit(web).hostname or ""
    if not said.get("api_token"):
        raise UserError("it needs api_token: a token of the account that Headgate has there, which may write")
    clone = said.get("cloneurl") or (f"ssh://git@{host}" if said.get("sshkey") else web)
    if clone.startswith(("http://", "https://")):
        clone = _address("cloneurl", clone)
    canonical = said.get("canonical_hostname") or _host(server) or host
    return GiteaAccount(
        name,
        web,
        canonical,
        clone.rstrip("/"),
        said["api_token"],
        said.get("webhook_token", ""),
        said.get("user", ""),
        said.get("sshkey", ""),
        said.get("verify_ssl", "true").lower() in TRUE,
    )


def _host(server: str) -> str:
    return urlsplit(server if "://" in server else f"//{server}").hostname or ""


def _address(option: str, said: str) -> str:
    """Return it without a slash at its end.  Raise UserError."""
    try:
        parts = urlsplit(said)
        host = parts.hostname
    except ValueError:
        raise UserError(f"{option}: {said!r} is no address; write it as https://git.example.com") from None
    if parts.scheme not in ("http", "https") or not host or parts.query or parts.fragment or parts.username:
        raise UserError(f"{option}: {said!r} is no address; write it as https://git.example.com")
    if parts.scheme == "http" and host not in LOOPBACK:
        raise UserError(f"{option}: http:// is only taken for this machine, as the token goes over it; write https://")
    return f"{parts.scheme}://{parts.netloc}{parts.path.rstrip('/')}"
