"""Answer calls of the REST API about apps, repositories, branches and rules."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import msgspec

from headgate.testing.forges.github import hosts, model
from headgate.testing.forges.github.access import Answer, FakeGitHubCall, Routes, new_token
from headgate.testing.forges.github.acts import FakeGitHubRefused
from headgate.testing.forges.github.mail import Delivery
from headgate.testing.forges.github.rules import protection_of, rulesets_of
from headgate.testing.forges.github.views import Shown, node

ROUTES = Routes()
_REPO = "/repos/{owner}/{repo}"


def _as_app(call: FakeGitHubCall) -> model.App:
    # These endpoints accept only the JSON web token of the app, not the token of an installation.
    if call.caller.app is None or call.caller.installation is not None:
        raise FakeGitHubRefused(401, "A JSON web token could not be decoded")
    return call.caller.app


@ROUTES.on("GET", "/app")
def app(call: FakeGitHubCall) -> Answer:
    """Answer the description of the app."""
    return 200, call.forge.shows.app(_as_app(call))


@ROUTES.on("GET", "/app/installations")
def installations(call: FakeGitHubCall) -> Answer:
    """Answer where the app is installed."""
    one = _as_app(call)
    found = [i for i in call.forge.world.installations.values() if i.app is one]
    return 200, [call.forge.shows.installation(i) for i in call.page(found)]


@ROUTES.on("GET", "/app/installations/{installation_id}")
def installation(call: FakeGitHubCall) -> Answer:
    """Answer one installation."""
    return 200, call.forge.shows.installation(_installation(call))


@ROUTES.on("GET", _REPO + "/installation")
def installation_of(call: FakeGitHubCall) -> Answer:
    """Answer the installation of a repository."""
    one = _as_app(call)
    repository = call.forge.world.repository(f"{call.path['owner']}/{call.path['repo']}")
    found = call.forge.world.installation_of(repository) if repository is not None else None
    # The installation of another app gets the same answer as a missing one.
    if found is None or found.app is not one:
        raise FakeGitHubRefused(404, "Not Found")
    return 200, call.forge.shows.installation(found)


def _installation(call: FakeGitHubCall) -> model.FakeGitHubInstallation:
    found = call.forge.world.installations.get(int(call.path["installation_id"]))
    if found is None or found.app is not _as_app(call):
        raise FakeGitHubRefused(404, "Not Found")
    return found


@ROUTES.on("POST", "/app/installations/{installation_id}/access_tokens")
def access_token(call: FakeGitHubCall) -> Answer:
    """Answer a new token of an installation."""
    found = _installation(call)
    if found.suspended:
        raise FakeGitHubRefused(403, "This installation has been suspended")
    token = new_token(call.forge.world, found)
    kind = "all" if found.projects is None else "selected"
    shown = {
        "token": token.text,
        "expires_at": model.stamp(token.expires_s),
        "permissions": dict(found.app.permissions),
    }
    return 201, {**shown, "repository_selection": kind}


@ROUTES.on("GET", "/installation/repositories")
def repositories(call: FakeGitHubCall) -> Answer:
    """Answer the repositories of an installation."""
    one = call.caller.installation
    if one is None:
        raise FakeGitHubRefused(
            403, "You must authenticate with an installation access token in order to list repositories"
        )
    found = [r for r in call.forge.world.repositories.values() if call.forge.world.installation_of(r) is one]
    shown = [call.forge.shows.repository(r) for r in call.page(found)]
    return 200, {"total_count": len(found), "repository_selection": "selected", "repositories": shown}


@ROUTES.on("GET", "/app/hook/deliveries")
def deliveries(call: FakeGitHubCall) -> Answer:
    """Answer the latest deliveries, newest first."""
    one = _as_app(call)
    found = [d for d in reversed(call.forge.mail.log) if d.app_id == one.id]
    if call.query.get("status") == "failure":
        found = [d for d in found if not 200 <= d.status_code < 400]
    cursor = int(call.query["cursor"]) if "cursor" in call.query else None
    found = [d for d in found if cursor is None or d.id < cursor]
    # GitHub returns at most 100 entries per page.
    size = min(int(call.query.get("per_page", 30)), 100)
    if len(found) > size:
        call.headers["Link"] = f'<{call.url}?per_page={size}&cursor={found[size - 1].id}>; rel="next"'
    return 200, [_delivery(d) for d in found[:size]]


def _delivery(one: Delivery) -> Shown:
    return {
        "id": one.id,
        "guid": one.guid,
        "delivered_at": model.stamp(one.at_s),
        "redelivery": one.redelivery,
        "duration": one.duration_s,
        "status": one.status,
        "status_code": one.status_code,
        "event": one.event,
        "action": one.action,
        "installation_id": one.installation,
        "repository_id": one.repository,
        "throttled_at": None,
    }


@ROUTES.on("GET", "/app/hook/deliveries/{delivery_id}")
def delivery(call: FakeGitHubCall) -> Answer:
    """Answer a delivery with its content."""
    one = _find_delivery(call)
    request = {"headers": one.headers(), "payload": msgspec.json.decode(one.body)}
    answer = {"headers": {}, "payload": ""}
    return 200, {**_delivery(one), "url": one.url, "request": request, "response": answer}


@ROUTES.on("POST", "/app/hook/deliveries/{delivery_id}/attempts")
def redeliver(call: FakeGitHubCall) -> Answer:
    """Deliver the delivery again."""
    call.forge.mail.again(_find_delivery(call))
    return 202, {}


def _find_delivery(call: FakeGitHubCall) -> Delivery:
    app_id, wanted = _as_app(call).id, int(call.path["delivery_id"])
    for one in call.forge.mail.log:
        if one.id == wanted and one.app_id == app_id:
            return one
    raise FakeGitHubRefused(404, "Not Found")


@ROUTES.on("GET", "/rate_limit")
def rate_limit(call: FakeGitHubCall) -> Answer:
    """Answer how much of the rate limit is left."""
    resources = {}
    for name in ("core", "search", "graphql"):
        budget = call.forge.limits.of(call.caller.key, name)
        left = max(0, budget.limit - budget.used)
        resources[name] = {"limit": budget.limit, "used": budget.used, "remaining": left, "reset": int(budget.reset_s)}
    return 200, {"resources": resources, "rate": resources["core"]}


@ROUTES.on("GET", "/user")
def myself(call: FakeGitHubCall) -> Answer:
    """Answer the owner of the token."""
    # The token of an installation represents no user.
    if call.caller.account is None or call.caller.installation is not None:
        raise FakeGitHubRefused(403, "Resource not accessible by integration")
    return 200, call.forge.shows.public_user(call.caller.account)


@ROUTES.on("GET", "/users/{username}")
def user(call: FakeGitHubCall) -> Answer:
    """Answer an account."""
    found = call.forge.world.accounts.get(call.path["username"])
    if found is None:
        raise FakeGitHubRefused(404, "Not Found")
    return 200, call.forge.shows.public_user(found)


@ROUTES.on("GET", _REPO)
def repository(call: FakeGitHubCall) -> Answer:
    """Answer a repository."""
    return 200, call.forge.shows.full_repository(call.repository)


@ROUTES.on("GET", _REPO + "/collaborators/{username}/permission")
def permission(call: FakeGitHubCall) -> Answer:
    """Answer the permission of a user."""
    call.needs("metadata", "read")
    found = call.forge.world.accounts.get(call.path["username"])
    if found is None:
        raise FakeGitHubRefused(404, f"{call.path['username']} is not a user")
    # `permission` has only the four original levels; `role_name` has the exact role.
    role = call.repository.role(found.login)
    shown = {**call.forge.shows.user(found), "role_name": role or "none"}
    return 200, {"permission": model.ROLES.get(role, "none"), "role_name": role or "none", "user": shown}


@ROUTES.on("GET", _REPO + "/branches")
def branches(call: FakeGitHubCall) -> Answer:
    """Answer the branches."""
    found = hosts.heads(call.repository)
    shown = [_branch(call, name, found[name]) for name in sorted(found)]
    if "protected" in call.query:
        shown = [one for one in shown if one["protected"] == (call.query["protected"] == "true")]
    return 200, call.page(shown)


def _branch(call: FakeGitHubCall, name: str, sha: str) -> Shown:
    full_name = call.repository.full_name
    protected = protection_of(call.repository, name) is not None or bool(rulesets_of(call.repository, name))
    url = f"{call.forge.shows.api}/repos/{full_name}/commits/{sha}"
    return {"name": name, "commit": {"sha": sha, "url": url}, "protected": protected}


@ROUTES.on("GET", _REPO + "/git/commits/{commit_sha}")
def git_commit(call: FakeGitHubCall) -> Answer:
    """Answer a commit as git stores it."""
    repository, sha = call.repository, call.path["commit_sha"]
    if not hosts.has(repository, sha):
        raise FakeGitHubRefused(404, "Not Found")
    one = hosts.opened(repository)[sha]
    url = f"{call.forge.shows.api}/repos/{repository.full_name}/git"
    html = f"{call.forge.shows.web}/{repository.full_name}/commit"
    verified = sha in repository.verified
    reason = "valid" if verified else "unsigned"
    verification = {"verified": verified, "reason": reason, "signature": None, "payload": None, "verified_at": None}
    return 200, {
        "sha": sha,
        "node_id": node("Commit", 1),
        "url": f"{url}/commits/{sha}",
        "html_url": f"{html}/{sha}",
        "author": _person(one.author),
        "committer": _person(one.committer),
        "message": one.message,
        "tree": {"sha": str(one.tree_id), "url": f"{url}/trees/{one.tree_id}"},
        "parents": [{"sha": str(p), "url": f"{url}/commits/{p}", "html_url": f"{html}/{p}"} for p in one.parent_ids],
        "verification": verification,
    }


def _person(who: Any) -> Shown:
    """Return the author of a commit; the library has no types."""
    at = datetime.fromtimestamp(who.time, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    return {"name": who.name, "email": who.email, "date": at}


@ROUTES.on("GET", _REPO + "/rules/branches/{branch}")
def rules(call: FakeGitHubCall) -> Answer:
    """Answer the rules of rulesets in force for a branch."""
    found: list[Shown] = []
    for ruleset in rulesets_of(call.repository, call.path["branch"]):
        kind = "Organization" if ruleset.organization else "Repository"
        source = call.repository.owner.login if ruleset.organization else call.repository.full_name
        about = {"ruleset_source_type": kind, "ruleset_source": source, "ruleset_id": ruleset.id}
        found += [{**rule, **about} for rule in ruleset.rules]
    return 200, call.page(found)


@ROUTES.on("GET", _REPO + "/rulesets/{ruleset_id}")
def ruleset(call: FakeGitHubCall) -> Answer:
    """Answer a ruleset, and whether the caller may bypass it."""
    found = next((r for r in call.repository.rulesets if str(r.id) == call.path["ruleset_id"]), None)
    if found is None:
        raise FakeGitHubRefused(404, "Not Found")
    listed = call.caller.asker.among(found.bypass) if call.caller.account else None
    can = {"always": "always", "pull_request": "pull_requests_only", "exempt": "exempt"}
    may = can[found.bypass[listed]] if listed else "never"
    return 200, _ruleset(call, found, may)


def _ruleset(call: FakeGitHubCall, one: model.Ruleset, may: str) -> Shown:
    kind = "Organization" if one.organization else "Repository"
    source = call.repository.owner.login if one.organization else call.repository.full_name
    return {
        "id": one.id,
        "name": one.name,
        "target": "branch",
        "source_type": kind,
        "source": source,
        "enforcement": one.enforcement,
        "current_user_can_bypass": may,
        "node_id": node("RepositoryRuleset", one.id),
        "conditions": {"ref_name": {"include": list(one.branches), "exclude": []}},
        "rules": one.rules,
        "created_at": model.stamp(one.created_s),
        "updated_at": model.stamp(one.created_s),
    }


@ROUTES.on("GET", _REPO + "/branches/{branch}/protection")
def protection(call: FakeGitHubCall) -> Answer:
    """Answer the classic protection of a branch."""
    call.needs("administration", "read")
    # Both cases are a 404; clients can distinguish them only by the message.
    if call.path["branch"] not in hosts.heads(call.repository):
        raise FakeGitHubRefused(404, "Branch not found")
    found = protection_of(call.repository, call.path["branch"])
    if found is None:
        raise FakeGitHubRefused(404, "Branch not protected")
    return 200, _protection(call, found)


def _protection(call: FakeGitHubCall, one: model.FakeGitHubProtection) -> Shown:
    shows, world = call.forge.shows, call.forge.world
    url = f"{shows.api}/repos/{call.repository.full_name}/branches/{call.path['branch']}/protection"
    protection: Shown = {
        "url": url,
        "enforce_admins": {"url": f"{url}/enforce_admins", "enabled": one.enforce_admins},
        "required_linear_history": {"enabled": one.linear},
        "required_conversation_resolution": {"enabled": one.conversations},
        "required_signatures": {"url": f"{url}/required_signatures", "enabled": one.signatures},
        "lock_branch": {"enabled": one.locked},
        "allow_force_pushes": {"enabled": False},
        "allow_deletions": {"enabled": False},
    }
    if one.contexts or one.strict:
        checks = [{"context": c, "app_id": None} for c in one.contexts]
        at = f"{url}/required_status_checks"
        protection["required_status_checks"] = {
            "url": at, "strict": one.strict, "contexts": list(one.contexts), "contexts_url": f"{at}/contexts",
            "checks": checks,
        }  # fmt: skip
    apps = {a.slug: a for a in world.apps.values()}

    def app(slug: str) -> Shown:
        return {**shows.app(apps[slug]), "description": ""}

    def listed(names: frozenset[str]) -> Shown:
        users = [shows.user(world.accounts[n]) for n in sorted(names) if n in world.accounts]
        return {"users": users, "teams": [], "apps": [app(n) for n in sorted(names) if n in apps]}

    if one.approvals is not None:
        protection["required_pull_request_reviews"] = {
            "url": f"{url}/required_pull_request_reviews",
            "dismiss_stale_reviews": False,
            "require_code_owner_reviews": one.code_owners,
            "required_approving_review_count": one.approvals,
            "bypass_pull_request_allowances": listed(one.bypass_reviews),
        }
    if one.pushers is not None:
        at = f"{url}/restrictions"
        urls = {"url": at, "users_url": f"{at}/users", "teams_url": f"{at}/teams", "apps_url": f"{at}/apps"}
        protection["restrictions"] = {**urls, **listed(one.pushers)}
    return protection
