"""Tell which branches of a project are protected; Gitea locks none."""

from __future__ import annotations

from headgate.adapters.forges.gitea.client import GiteaClient
from headgate.adapters.forges.poll import Guarded
from headgate.adapters.forges.rest import ListTooLong
from headgate.config.tenants import Protection

_HOLDS = "what was known before holds; where nothing was, every branch counts as protected"


async def protection(client: GiteaClient, project: str) -> Guarded:
    """Return what Gitea says of the branches of `project` (owner/name), and what it does not say, for people: then what
    it said before holds.  Raise as `GiteaClient.get`."""
    protected, path = set[str](), f"/repos/{project}/branches"
    try:
        async for page in client.pages(client.key, path, urgent=False, whole=True):
            protected |= {str(one["name"]) for one in page if one["protected"]}
    except ListTooLong:
        return None, f"it has too many branches to ask which are protected: {_HOLDS}"
    return Protection(frozenset(protected), frozenset()), ""
