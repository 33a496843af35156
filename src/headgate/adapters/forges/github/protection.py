"""Which branches of a project are protected, be it by a classic rule or a ruleset, and which are locked."""

from __future__ import annotations

from headgate.adapters.forges.github.client import GitHubClient
from headgate.adapters.forges.rest import ForgeKey, NotThere
from headgate.config.tenants import Protection

PAGES_MAX = 100
"""Of 100 branches each."""
QUERY = """
query($owner: String!, $name: String!, $after: String) {
  repository(owner: $owner, name: $name) {
    refs(refPrefix: "refs/heads/", first: 100, after: $after) {
      nodes { name branchProtectionRule { lockBranch } rules(first: 1) { totalCount } }
      pageInfo { hasNextPage endCursor }
    }
  }
}
"""
"""What is asked of branches."""
_HOLDS = "what was known before holds; where nothing was, every branch counts as protected and none as locked"


async def protection(client: GitHubClient, key: ForgeKey, project: str) -> tuple[Protection | None, str]:
    """Return what GitHub says of the branches of `project` (owner/name), and what it does not say, for people:
    then what it said before holds.  Raise as `GitHubClient.query`, or NotThere.

    A ruleset protects a branch, and never locks it: Headgate may be the one whom it lets pass."""
    owner, _, name = project.partition("/")
    protected, locked, after = set[str](), set[str](), None
    for _ in range(PAGES_MAX):
        data = await client.query(key, QUERY, urgent=False, owner=owner, name=name, after=after)
        refs = (data.get("repository") or {}).get("refs")
        if refs is None:
            raise NotThere(f"the branches of {project} cannot be seen")
        for one in refs["nodes"]:
            classic, rules = one["branchProtectionRule"], one["rules"]
            if rules is None and classic is None:
                return None, f"GitHub does not say which branches rulesets protect: {_HOLDS}"
            if classic is not None or rules["totalCount"]:
                protected.add(str(one["name"]))
            if classic is not None and classic["lockBranch"]:
                locked.add(str(one["name"]))
        if not refs["pageInfo"]["hasNextPage"]:
            return Protection(frozenset(protected), frozenset(locked)), ""
        after = str(refs["pageInfo"]["endCursor"])
    return None, f"it has more than {PAGES_MAX * 100} branches, too many to ask which are protected: {_HOLDS}"
