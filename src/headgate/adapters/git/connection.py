"""Where the repositories of a connection are."""

from __future__ import annotations

import re
from pathlib import Path
from urllib.parse import unquote, urlsplit

POLL_MIN_S = 0.1
_SCP = re.compile(r"^(?:[^/@]+@)?(\[[^]]+\]|[^/:]+):")
"""`user@host:path`, as ssh has it."""


class GitConnection:
    """`baseurl` is a directory, a URL (file, ssh, https, …) or `user@host:path`; a project's path comes after it."""

    def __init__(self, name: str, baseurl: str, canonical_hostname: str = "", *, poll_interval_s: float = 30.0) -> None:
        self.name = name
        path = unquote(urlsplit(baseurl).path) if baseurl.startswith("file://") else baseurl
        self.baseurl = path if path.endswith(":/") else path.rstrip("/")
        self.poll_interval_s = max(POLL_MIN_S, poll_interval_s)
        """How often remote repositories are looked at; local ones are watched."""
        self.canonical_hostname = canonical_hostname or self._host() or name

    @property
    def local(self) -> bool:
        return self.baseurl.startswith("/")

    def _host(self) -> str:
        if "://" in self.baseurl:
            return urlsplit(self.baseurl).hostname or ""
        found = _SCP.match(self.baseurl)
        return found[1].strip("[]") if found else ""

    def url(self, project: str) -> str:
        """Of a project by canonical name; locally the repository may end in `.git`."""
        short = project.removeprefix(f"{self.canonical_hostname}/")
        url = self.baseurl + ("" if self.baseurl.endswith((":", ":/")) else "/") + short
        if self.local and not Path(url).exists() and Path(url + ".git").exists():
            return url + ".git"
        return url

    def git_dir(self, project: str) -> Path | None:
        """Of a local repository that is there."""
        if not self.local:
            return None
        path = Path(self.url(project))
        return next((found for found in (path / ".git", path) if (found / "HEAD").exists()), None)
