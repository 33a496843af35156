"""Tell which branches of a project are protected; Gitea locks none."""

from __future__ import annotations

from headgate.adapters.forges.gitea.client import Client
from headgate.adapters.forges.looking import Guarded
from headgate.adapters.forges.rest import TooLong
from headgate.config.tenants import Protection

_HOLDS = "what was known before holds; where nothing was, every branch counts as protected"


async def protection(client: Client, project: str) -> Guarded:
    """Return what Gitea says of the branches of `project` (owner/name), and what it does not say, for people: then what
    it said before holds.  Raise as `Client.get`."""
    protected, path = set[str](), f"/repos/{project}/branches"
    try:
        async for page in client.pages(client.key, path, urgent=False, whole=True):
            protected |= {str(one["name"]) for one in page if one["protected"]}
    except TooLong:
        return None, f"it has too many branches to ask which are protected: {_HOLDS}"
    return Protection(frozenset(protected), frozenset()), ""
