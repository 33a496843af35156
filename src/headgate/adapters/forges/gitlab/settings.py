"""Connect to a GitLab, as the settings describe it."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

from headgate.adapters.forges.gitlab.account import account
from headgate.adapters.forges.gitlab.client import GitLabClient
from headgate.adapters.forges.gitlab.forge import GitLabForge
from headgate.adapters.forges.gitlab.people import People
from headgate.adapters.forges.registry import Connected, DriverOptions
from headgate.adapters.forges.rest import forge_http
from headgate.adapters.git.connection import Access, GitConnection


def connect(given: DriverOptions) -> Connected:
    """Return the forge, which has sent nothing yet. Raise UserError."""
    options = dict(given.options)
    if "sshkey" in options:
        options["sshkey"] = str((given.directory / options["sshkey"]).expanduser())
    one = account(given.name, options)

    def now_s() -> float:
        return given.now_ms() / 1000

    client = GitLabClient(one, partial(forge_http, one.verify_ssl), now_s)
    client.limits = given.limits
    people = People(client, now_s)
    forge = GitLabForge(client, people, given.engine, now_s=now_s, lands=options.get("land", "merge"))
    return Connected(
        GitConnection(one.name, one.clone, one.canonical_hostname, access=_access(people)), forge, forge.close
    )


def _access(people: People) -> Access:
    async def access(project: str) -> Mapping[str, str]:
        return people.git()

    return access
