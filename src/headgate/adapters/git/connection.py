"""Say where the repositories of a connection are."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from urllib.parse import unquote, urlsplit

POLL_MIN_S = 0.1
TALKS_MAX = 32
_SCP = re.compile(r"^(?:[^/@]+@)?(\[[^]]+\]|[^/:]+):")
"""`user@host:path`, as ssh accepts it."""


Access = Callable[[str], Awaitable[Mapping[str, str]]]
"""Project -> git settings for one command, such as `http.<url>.extraHeader` or `core.sshCommand`; raises
RemoteError."""


class GitConnection:
    """Locate the repositories of a connection. `baseurl` is a directory, a URL (file, ssh, https, …) or
    `user@host:path`, followed by the project's path."""

    def __init__(
        self,
        name: str,
        baseurl: str,
        canonical_hostname: str = "",
        *,
        poll_interval_s: float = 30.0,
        access: Access | None = None,
        forget: Callable[[str], None] | None = None,
        suffix: str = "",
    ) -> None:
        """Make a connection. `access` says how to talk to a project's server; by default, as this machine's user
        does. `forget` discards rejected credentials. `suffix` follows the name of a project."""
        self.name, self.access, self.forget, self._suffix = name, access, forget, suffix
        path = unquote(urlsplit(baseurl).path) if baseurl.startswith("file://") else baseurl
        # `host:/` is the root of that server; without its slash the paths would begin at the login's home directory.
        self.baseurl = path if path.endswith(":/") else path.rstrip("/")
        self.poll_interval_s = max(POLL_MIN_S, poll_interval_s)
        """Interval between two polls of a remote repository; local ones are watched."""
        self.canonical_hostname = canonical_hostname or self._host() or name
        self.talks = asyncio.Semaphore(TALKS_MAX)
        """Limits the concurrent connections to its servers, so that a hanging server blocks nothing else."""
        self._git_dirs: dict[str, Path] = {}
        """Project -> the place where its local repository was last found."""

    @property
    def local(self) -> bool:
        return self.baseurl.startswith("/")

    def _host(self) -> str:
        if "://" in self.baseurl:
            return urlsplit(self.baseurl).hostname or ""
        found = _SCP.match(self.baseurl)
        return found[1].strip("[]") if found else ""

    def url(self, project: str) -> str:
        """Return the URL of a project by canonical name; a local repository may have the suffix `.git`."""
        found = self.git_dir(project)
        if found is not None:
            return str(found.parent if found.name == ".git" else found)
        return self._url(project)

    def _url(self, project: str) -> str:
        short = project.removeprefix(f"{self.canonical_hostname}/")
        return self.baseurl + ("" if self.baseurl.endswith((":", ":/")) else "/") + short + self._suffix

    def git_dir(self, project: str) -> Path | None:
        """Return the path of an existing local repository."""
        if not self.local:
            return None
        known = self._git_dirs.get(project)
        if known is not None and (known / "HEAD").exists():
            return known
        path = Path(self._url(project))
        places = (path / ".git", path, path.with_name(f"{path.name}.git"))
        found = next((place for place in places if (place / "HEAD").exists()), None)
        if found is not None:
            self._git_dirs[project] = found
        return found
