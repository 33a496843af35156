"""Read what the sections of forges with REST have in common: where the forge is, and how its projects are called."""

from __future__ import annotations

import shlex
from urllib.parse import urlsplit

from headgate.base.errors import UserError

LOOPBACK = frozenset({"127.0.0.1", "localhost", "::1"})
TRUE = frozenset({"true", "yes", "on", "1"})


class OnTheWeb:
    """Name the projects of a forge."""

    __slots__ = ()
    name: str
    web: str
    """URL of the web pages, without a slash at the end; it may have a path."""
    canonical_hostname: str

    @property
    def host(self) -> str:
        """Return the host with its port, as in URLs."""
        return urlsplit(self.web).netloc

    @property
    def root(self) -> str:
        """Return the part between the host and the project in the URL of a page."""
        return urlsplit(self.web).path

    def short(self, project: str) -> str:
        """Return the forge's name of a project, from its canonical name."""
        return project.removeprefix(f"{self.canonical_hostname}/")

    def canonical(self, short: str) -> str:
        """Return the canonical name of a project, from the forge's name."""
        return f"{self.canonical_hostname}/{short}"

    def below(self, url: str) -> str:
        """Return the path of a page of this forge; empty if the URL leads elsewhere or is none."""
        try:
            parts = urlsplit(url)
            # People copy URLs with and without the port, and in footers they also write the canonical name.
            hosts = {self.host, urlsplit(self.web).hostname, self.canonical_hostname}
            ours = parts.hostname in hosts or parts.netloc in hosts
        except ValueError:  # users write it: unclosed brackets, characters that normalize to a slash
            return ""
        return parts.path.removeprefix(self.root) if ours and parts.path.startswith(f"{self.root}/") else ""


def over_ssh(key: str) -> dict[str, str]:
    """Return settings of git that log in with the key at this path alone, without prompts."""
    # Without IdentitiesOnly, ssh offers the agent's keys first, and the forge may know us as somebody else.
    return {"core.sshCommand": f"ssh -i {shlex.quote(key)} -o IdentitiesOnly=yes -o BatchMode=yes"}


def host_of(server: str) -> str:
    """Return the host of a server, which may be given as an address."""
    return urlsplit(server if "://" in server else f"//{server}").hostname or ""


def address(option: str, url: str) -> str:
    """Return the address without a slash at its end. Raise UserError."""
    try:
        parts = urlsplit(url)
        host = parts.hostname
    except ValueError:
        raise UserError(f"{option}: {url!r} is not an address; write it as https://git.example.com") from None
    if parts.scheme not in ("http", "https") or not host or parts.query or parts.fragment or parts.username:
        raise UserError(f"{option}: {url!r} is not an address; write it as https://git.example.com")
    if parts.scheme == "http" and host not in LOOPBACK:
        raise UserError(f"{option}: http:// is only taken for this machine, as the token goes over it; write https://")
    return f"{parts.scheme}://{parts.netloc}{parts.path.rstrip('/')}"
