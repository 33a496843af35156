"""Which branches of a project are protected; Gitea locks none."""

from __future__ import annotations

from headgate.adapters.forges.gitea.client import Client
from headgate.adapters.forges.looking import Guarded
from headgate.config.tenants import Protection

BRANCHES_MAX = 10_000
_HOLDS = "what was known before holds; where nothing was, every branch counts as protected"


async def protection(client: Client, project: str) -> Guarded:
    """Return what Gitea says of the branches of `project` (owner/name), and what it does not say, for people: then what
    it said before holds.  Raise as `Client.get`."""
    protected, count = set[str](), 0
    async for page in client.pages(client.key, f"/repos/{project}/branches", urgent=False):
        protected |= {str(one["name"]) for one in page if one["protected"]}
        count += len(page)
        if count > BRANCHES_MAX:
            return None, f"it has more than {BRANCHES_MAX} branches, too many to ask which are protected: {_HOLDS}"
    return Protection(frozenset(protected), frozenset()), ""
