"""Ask GitLab who Headgate is there, and what others may do."""

from __future__ import annotations

import base64
import shlex
import time
from collections import OrderedDict
from collections.abc import Callable, Mapping
from urllib.parse import urlsplit

from headgate.adapters.forges.gitlab.client import GitLabClient
from headgate.adapters.forges.rest import ForgeDenied, NotThere, Rejected

DEVELOPER, MAINTAINER, GUEST = 30, 40, 10
"""Access levels."""
FRESH_S = 600.0
"""How long a permission is cached."""
KNOWN_MAX = 4_096


class People:
    """Know the people of one GitLab."""

    def __init__(self, client: GitLabClient, now_s: Callable[[], float] = time.time) -> None:
        self._client, self._now_s = client, now_s
        self.name = ""
        """Name of our account; empty until it is known."""
        self._permissions: OrderedDict[tuple[str, int], tuple[float, str]] = OrderedDict()
        """(project, account) -> when the entry expires, and the permission."""

    async def us(self) -> tuple[str, ...]:
        """Return the account that Headgate writes as.  Raise ReporterAway, ForgeDenied."""
        if not self.name:
            self.name = str((await self._client.get(self._client.key, "/user")).content["username"])
        return (self.name,)

    async def permission(self, project: str, id: int) -> str:
        """Return the permission of an account in a project (canonical name): admin for maintainers and above, write for
        developers, read for other members, or none; empty if unknown."""
        now_s = self._now_s()
        until_s, known = self._permissions.get((project, id), (0.0, ""))
        if until_s > now_s:
            return known
        path = f"{self._client.account.path(project)}/members/all/{id}"
        try:
            known = word((await self._client.get(self._client.key, path)).content)
        except NotThere:
            known = "none"
        except (ForgeDenied, Rejected):
            known = ""
        self._permissions[project, id] = (now_s + FRESH_S, known)
        while len(self._permissions) > KNOWN_MAX:
            self._permissions.popitem(last=False)
        return known

    def git(self) -> Mapping[str, str]:
        """Return git's settings for access to the server."""
        account = self._client.account
        if urlsplit(account.clone).scheme not in ("http", "https"):
            if not account.sshkey:
                return {}
            return {"core.sshCommand": f"ssh -i {shlex.quote(account.sshkey)} -o IdentitiesOnly=yes -o BatchMode=yes"}
        # Git's requests contain the token, so git must not follow redirects.
        config = {f"http.{account.clone}/.followRedirects": "false"}
        if not account.verify_ssl:
            config[f"http.{account.clone}/.sslVerify"] = "false"
        # The operator's own credentials are in the address; a header of ours would be sent beside them.
        if urlsplit(account.clone).username:
            return config
        basic = base64.b64encode(f"{account.api_token_name}:{account.api_token}".encode()).decode()
        return {**config, f"http.{account.clone}/.extraHeader": f"Authorization: Basic {basic}"}


def word(membership: Mapping[str, object]) -> str:
    """Return the permission of a membership; an inactive one gives none."""
    level = membership.get("access_level")
    if not isinstance(level, int) or level < GUEST or membership.get("state", "active") != "active":
        return "none"
    return "admin" if level >= MAINTAINER else "write" if level >= DEVELOPER else "read"
