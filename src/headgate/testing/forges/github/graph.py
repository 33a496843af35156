"""Answer GraphQL queries about the stand-in's world."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from headgate.testing.forges.github import hosts, model, rules
from headgate.testing.forges.github.access import FakeGitHubCaller, FakeGitHubLimits
from headgate.testing.forges.github.query import Node, connection
from headgate.testing.forges.github.views import mergeability, node

_DEEDS = {
    "labeled": "LABELED_EVENT",
    "unlabeled": "UNLABELED_EVENT",
    "closed": "CLOSED_EVENT",
    "reopened": "REOPENED_EVENT",
    "converted_to_draft": "CONVERT_TO_DRAFT_EVENT",
    "ready_for_review": "READY_FOR_REVIEW_EVENT",
}
"""Name of an action in webhooks -> its name in GraphQL."""
_MERGEABLE = {None: "UNKNOWN", True: "MERGEABLE", False: "CONFLICTING"}


class FakeGitHubGraph:
    """Resolve the root of one caller's view."""

    def __init__(
        self, world: model.FakeGitHubWorld, limits: FakeGitHubLimits, caller: FakeGitHubCaller, web: str
    ) -> None:
        self._world, self._limits, self._caller, self._web = world, limits, caller, web

    def root(self) -> Node:
        """Return the type Query."""
        budget = self._limits.of(self._caller.key, "graphql")
        return {
            "__typename": "Query",
            "rateLimit": {
                "__typename": "RateLimit",
                "cost": 1,
                "limit": budget.limit,
                "remaining": max(0, budget.limit - budget.used),
                "used": budget.used,
                "resetAt": model.stamp(budget.reset_s),
            },
            "viewer": self._actor(self._caller.account),
            "repository": self._repository,
        }

    def _repository(self, owner: str, name: str, followRenames: bool = True) -> Node | None:
        full_name = f"{owner}/{name}"
        found = self._world.repository(full_name)
        # GitHub follows former names unless the query forbids that.
        if found is None and followRenames:
            found = self._world.repository(self._world.moved.get(full_name, ""))
        if found is None or not self._caller.sees(found):
            return None
        return self._of_repository(found)

    def _of_repository(self, one: model.FakeGitHubRepository) -> Node:
        tips = hosts.heads(one)
        pulls = [self._pull(p) for p in one.pulls.values() if p.state == "open"]
        shown = [self._protection(p, one) for p in one.protections]

        def pull(number: int) -> Node | None:
            return self._pull(one.pulls[number]) if number in one.pulls else None

        def ref(qualifiedName: str) -> Node | None:
            name = qualifiedName.removeprefix("refs/heads/")
            return self._ref(one, name, tips[name]) if name in tips else None

        return {
            "__typename": "Repository",
            "id": node("Repository", one.id),
            "databaseId": one.id,
            "nameWithOwner": one.full_name,
            "isArchived": one.archived,
            "isPrivate": one.private,
            "mergeCommitAllowed": one.allow_merge_commit,
            "squashMergeAllowed": one.allow_squash_merge,
            "rebaseMergeAllowed": one.allow_rebase_merge,
            "defaultBranchRef": ref(one.default_branch),
            "pullRequest": pull,
            "pullRequests": connection("PullRequestConnection", pulls),
            "ref": ref,
            "refs": connection("RefConnection", [self._ref(one, name, tip) for name, tip in sorted(tips.items())]),
            "branchProtectionRules": connection("BranchProtectionRuleConnection", shown),
        }

    def _ref(self, repository: model.FakeGitHubRepository, name: str, tip: str) -> Node:
        one = self._caller.installation
        # GitHub shows classic protection as absent, without an error, to an app that lacks this permission.
        shown = one is None or "administration" in one.app.permissions
        protection = rules.protection_of(repository, name) if shown else None
        found = [self._rule(ruleset, rule) for ruleset in rules.rulesets_of(repository, name) for rule in ruleset.rules]
        return {
            "__typename": "Ref",
            "name": name,
            "prefix": "refs/heads/",
            "target": self._commit(repository, tip),
            "branchProtectionRule": self._protection(protection, repository) if protection else None,
            "rules": connection("RepositoryRuleConnection", found),
        }

    def _actor(self, one: model.FakeGitHubAccount | None) -> Node | None:
        if one is None:
            return None
        # Only REST has the suffix.
        login = one.login.removesuffix("[bot]") if one.kind == "Bot" else one.login
        return {
            "__typename": one.kind,
            "__interfaces": ("Actor",),
            "login": login,
            "databaseId": one.id,
            "name": one.name,
            "email": one.email or "",
        }

    def _app(self, one: model.App) -> Node:
        return {"__typename": "App", "slug": one.slug, "databaseId": one.id, "name": one.slug}

    def _pull(self, one: model.FakeGitHubPull) -> Node:
        asker = self._caller.asker
        tip = hosts.heads(one.repository).get(one.base_ref)

        # A function, because asking has a side effect: GitHub begins to compute it when a query selects it.
        def mergeable() -> str:
            return _MERGEABLE[mergeability(self._world, one)]

        def state() -> str:
            clean = mergeability(self._world, one, asks=False)
            return "UNKNOWN" if clean is None else rules.mergeable_state(one, asker, clean).upper()

        commits = [self._of_pull(one, sha) for sha in (hosts.own_commits(one, tip) if tip and not one.merged else ())]
        files = hosts.files_of(one, one.base_sha) if tip else []
        may = tip is not None and not rules.unmet(one, asker) and one.state == "open"
        labels = [{"__typename": "Label", "name": label.name} for label in one.labels]
        threads = [
            {"__typename": "PullRequestReviewThread", "isResolved": t.resolved, "path": t.path} for t in one.threads
        ]
        return {
            "__typename": "PullRequest",
            "id": node("PullRequest", one.id),
            "databaseId": one.id,
            "number": one.number,
            "title": one.title,
            "body": one.body or "",
            "url": f"{self._web}/{one.repository.full_name}/pull/{one.number}",
            "state": "MERGED" if one.merged else one.state.upper(),
            "isDraft": one.draft,
            "merged": one.merged,
            "closed": one.state != "open",
            "createdAt": model.stamp(one.created_s),
            "updatedAt": model.stamp(one.updated_s),
            "author": self._actor(one.user),
            "headRefOid": one.head_sha,
            "headRefName": one.head_ref,
            "baseRefOid": one.base_sha,
            "baseRefName": one.base_ref,
            "isCrossRepository": one.head_repository is not one.repository,
            "headRepository": {"__typename": "Repository", "nameWithOwner": one.head_repository.full_name}
            if one.head_repository
            else None,
            "baseRef": self._ref(one.repository, one.base_ref, tip) if tip else None,
            "mergeCommit": self._commit(one.repository, one.merge_commit_sha) if one.merge_commit_sha else None,
            "mergeable": mergeable,
            "mergeStateStatus": state,
            "reviewDecision": rules.review_decision(one),
            "viewerCanMergeAsAdmin": may or self._as_admin(one),
            "changedFiles": len(files),
            "labels": connection("LabelConnection", labels),
            "reviews": connection("PullRequestReviewConnection", [self._review(one, r) for r in one.reviews]),
            "latestOpinionatedReviews": self._opinions(one),
            "reviewThreads": connection("PullRequestReviewThreadConnection", threads),
            "comments": connection("IssueCommentConnection", [self._comment(c) for c in one.comments]),
            "commits": connection("PullRequestCommitConnection", commits),
            "timelineItems": self._timeline(one),
            "headRef": None,
        }

    def _as_admin(self, one: model.FakeGitHubPull) -> bool:
        protection = rules.protection_of(one.repository, one.base_ref)
        asker = self._caller.asker
        return (
            protection is not None
            and one.state == "open"
            and one.repository.role(asker.account.login) == "admin"
            and rules.may_bypass(one, protection, asker)
        )

    def _of_pull(self, pull: model.FakeGitHubPull, sha: str) -> Node:
        return {"__typename": "PullRequestCommit", "commit": self._commit(pull.repository, sha)}

    def _review(self, pull: model.FakeGitHubPull, one: model.FakeGitHubReview) -> Node:
        return {
            "__typename": "PullRequestReview",
            "databaseId": one.id,
            "fullDatabaseId": str(one.id),
            "author": self._actor(one.user),
            "state": one.state,
            "body": one.body,
            "submittedAt": model.stamp(one.at_s),
            "commit": {"__typename": "Commit", "oid": one.commit_id},
            "authorCanPushToRepository": pull.repository.role(one.user.login) in ("write", "maintain", "admin"),
        }

    def _opinions(self, pull: model.FakeGitHubPull) -> Callable[..., Node]:
        def page(writersOnly: bool = False, **arguments: Any) -> Node:
            found = [self._review(pull, one) for one in rules.last_opinions(pull).values()]
            opinions = [one for one in found if one["authorCanPushToRepository"] or not writersOnly]
            return connection("PullRequestReviewConnection", opinions)(**arguments)

        return page

    def _timeline(self, pull: model.FakeGitHubPull) -> Callable[..., Node]:
        def page(itemTypes: list[str] | None = None, **arguments: Any) -> Node:
            kinds = {kind: name for kind, name in _DEEDS.items() if itemTypes is None or name in itemTypes}
            found = [self._deed(one, kinds[one.action]) for one in pull.deeds if one.action in kinds]
            shown: Node = connection("PullRequestTimelineItemsConnection", found)(**arguments)
            return shown

        return page

    def _deed(self, one: model.FakeGitHubTimelineEntry, name: str) -> Node:
        kind = "".join(word.capitalize() for word in name.split("_"))
        label = {"label": {"__typename": "Label", "name": one.label}} if one.label else {}
        return {"__typename": kind, "actor": self._actor(one.who), "createdAt": model.stamp(one.at_s), **label}

    def _comment(self, one: model.FakeGitHubComment) -> Node:
        return {
            "__typename": "IssueComment",
            "databaseId": one.id,
            "fullDatabaseId": str(one.id),
            "body": one.body,
            "createdAt": model.stamp(one.created_s),
            "author": self._actor(one.user),
        }

    def _commit(self, repository: model.FakeGitHubRepository, sha: str) -> Node:
        contexts: list[Node] = []
        # Of several statuses with one context, the rollup shows the newest.
        latest = {(s.context): s for s in repository.statuses.get(sha, ())}
        contexts += [self._context(repository, s) for s in latest.values()]
        # Of several runs with one name, the rollup shows the newest.
        runs = {(r.app.id, r.name): r for r in repository.check_runs.values() if r.head_sha == sha}
        contexts += [self._run(repository, r) for r in runs.values()]
        rollup: Node | None = None
        if contexts:
            rollup = {
                "__typename": "StatusCheckRollup",
                "state": "PENDING",
                "contexts": connection("StatusCheckRollupContextConnection", contexts),
            }
        signed = sha in repository.verified
        return {
            "__typename": "Commit",
            "oid": sha,
            "tree": lambda: {"__typename": "Tree", "oid": str(hosts.opened(repository)[sha].tree_id)},
            "signature": {"__typename": "GpgSignature", "__interfaces": ("GitSignature",), "isValid": True}
            if signed
            else None,
            "statusCheckRollup": rollup,
        }

    def _context(self, repository: model.FakeGitHubRepository, one: model.FakeGitHubStatus) -> Node:
        return {
            "__typename": "StatusContext",
            "context": one.context,
            "state": one.state.upper(),
            "description": one.description,
            "targetUrl": one.target_url,
            "createdAt": model.stamp(one.at_s),
            "creator": self._actor(one.creator),
        }

    def _run(self, repository: model.FakeGitHubRepository, one: model.CheckRun) -> Node:
        return {
            "__typename": "CheckRun",
            "databaseId": one.id,
            "name": one.name,
            "status": one.status.upper(),
            "conclusion": one.conclusion.upper() if one.conclusion else None,
            "externalId": one.external_id,
            "completedAt": model.stamp(one.completed_s) if one.completed_s is not None else None,
            "detailsUrl": one.details_url,
            "checkSuite": {
                "__typename": "CheckSuite",
                "app": self._app(one.app),
                # A request to rerun resets the suite, while the run keeps its conclusion.
                "status": "QUEUED" if one.rerun_requested else one.status.upper(),
            },
        }

    def _protection(self, one: model.FakeGitHubProtection, repository: model.FakeGitHubRepository) -> Node:
        tips = sorted(hosts.heads(repository).items())
        mine = [(name, tip) for name, tip in tips if rules.protection_of(repository, name) is one]

        def matching(query: str | None = None, **paging: Any) -> Node:
            found = [{"__typename": "Ref", "name": name} for name, _ in mine if query is None or query in name]
            page: Node = connection("RefConnection", found)(**paging)
            return page

        return {
            "__typename": "BranchProtectionRule",
            "databaseId": one.id,
            "pattern": one.pattern,
            "requiresStatusChecks": bool(one.contexts) or one.strict,
            "requiresStrictStatusChecks": one.strict,
            "requiredStatusCheckContexts": list(one.contexts),
            "requiresApprovingReviews": one.approvals is not None,
            "requiredApprovingReviewCount": one.approvals,
            "requiresCodeOwnerReviews": one.code_owners,
            "requiresConversationResolution": one.conversations,
            "requiresCommitSignatures": one.signatures,
            "requiresLinearHistory": one.linear,
            "requiresDeployments": False,
            "isAdminEnforced": one.enforce_admins,
            "lockBranch": one.locked,
            "restrictsPushes": one.pushers is not None,
            "matchingRefs": matching,
            "pushAllowances": self._allowances("PushAllowance", one.pushers or frozenset()),
            "bypassPullRequestAllowances": self._allowances("BypassPullRequestAllowance", one.bypass_reviews),
        }

    def _allowances(self, kind: str, names: frozenset[str]) -> Any:
        apps = {a.slug: a for a in self._world.apps.values()}
        found = []
        for name in sorted(names):
            actor = self._app(apps[name]) if name in apps else self._actor(self._world.account(name))
            found.append({"__typename": kind, "actor": actor})
        return connection(f"{kind}Connection", found)

    def _rule(self, ruleset: model.Ruleset, rule: dict[str, Any]) -> Node:
        return {
            "__typename": "RepositoryRule",
            "type": rule["type"].upper(),
            "parameters": _parameters(rule),
            "repositoryRuleset": {
                "__typename": "RepositoryRuleset",
                "databaseId": ruleset.id,
                "name": ruleset.name,
                "enforcement": ruleset.enforcement.upper(),
            },
        }


def _camel(name: str) -> str:
    first, *rest = name.split("_")
    return first + "".join(word.capitalize() for word in rest)


def _parameters(rule: dict[str, Any]) -> Node | None:
    """Return a rule's parameters under the names that GraphQL has for them."""
    parameters = rule.get("parameters")
    if parameters is None:
        return None
    kind = "".join(word.capitalize() for word in rule["type"].split("_")) + "Parameters"
    found: Node = {"__typename": kind}
    for name, value in parameters.items():
        if name == "required_status_checks":
            value = [
                {
                    "__typename": "StatusCheckConfiguration",
                    "context": one["context"],
                    "integrationId": one.get("integration_id"),
                }
                for one in value
            ]
        if name == "allowed_merge_methods":
            value = [one.upper() for one in value]
        found[_camel(name)] = value
    return found
