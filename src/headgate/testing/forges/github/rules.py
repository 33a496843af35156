"""Check what GitHub requires before a pull request may be merged: classic protection and rulesets."""

from __future__ import annotations

from collections.abc import Container, Iterator
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any

from headgate.testing.forges.github import hosts, model

PASSES = frozenset({"success", "neutral", "skipped"})


@dataclass(frozen=True, slots=True)
class Asker:
    """Identify who wants to merge or push."""

    account: model.FakeGitHubAccount
    slug: str = ""
    """Slug of the app; empty: the caller is not an app."""

    def among(self, names: Container[str]) -> str | None:
        """Return the name under which rules list the caller."""
        return next((name for name in (self.account.login, self.slug) if name and name in names), None)


def protection_of(repository: model.FakeGitHubRepository, branch: str) -> model.FakeGitHubProtection | None:
    """Return the classic protection of a branch: a name before patterns, older patterns first."""
    found = [p for p in repository.protections if p.pattern == branch or fnmatchcase(branch, p.pattern)]
    # `min` keeps the first of equals, and protections are in the order in which they were made.
    return min(found, key=lambda p: p.pattern != branch, default=None)


def rulesets_of(repository: model.FakeGitHubRepository, branch: str) -> list[model.Ruleset]:
    """Return the rulesets in force for a branch."""

    def matches(pattern: str) -> bool:
        if pattern == "~DEFAULT_BRANCH":
            return branch == repository.default_branch
        return pattern == "~ALL" or fnmatchcase(f"refs/heads/{branch}", pattern)

    return [r for r in repository.rulesets if r.enforcement == "active" and any(map(matches, r.branches))]


def last_opinions(pull: model.FakeGitHubPull) -> dict[str, model.FakeGitHubReview]:
    """Return each account's last review that is more than a comment."""
    found: dict[str, model.FakeGitHubReview] = {}
    for review in pull.reviews:
        # A comment leaves the account's earlier opinion in force.
        if review.state in ("APPROVED", "CHANGES_REQUESTED", "DISMISSED"):
            found[review.user.login] = review
    return found


def opinions(pull: model.FakeGitHubPull) -> dict[str, model.FakeGitHubReview]:
    """Return each account's last review that is more than a comment, without dismissed ones."""
    return {login: r for login, r in last_opinions(pull).items() if r.state != "DISMISSED"}


def counted(pull: model.FakeGitHubPull) -> tuple[int, bool]:
    """Return the number of approvals by accounts with write access, and whether any such account requested changes."""
    # GitHub shows the reviews of others, but does not count them.
    mine = [r for r in opinions(pull).values() if pull.repository.role(r.user.login) in ("write", "maintain", "admin")]
    return sum(r.state == "APPROVED" for r in mine), any(r.state == "CHANGES_REQUESTED" for r in mine)


def review_decision(pull: model.FakeGitHubPull) -> str | None:
    """Return GraphQL's reviewDecision: None where no reviews are required."""
    needed = [n for n, _ in _approvals(pull)]
    if not needed:
        return None
    approving, unwanted = counted(pull)
    if unwanted:
        return "CHANGES_REQUESTED"
    return "APPROVED" if approving >= max(needed) else "REVIEW_REQUIRED"


def _approvals(pull: model.FakeGitHubPull) -> Iterator[tuple[int, model.FakeGitHubProtection | model.Ruleset]]:
    protection = protection_of(pull.repository, pull.base_ref)
    if protection is not None and protection.approvals is not None:
        yield protection.approvals, protection
    for ruleset in rulesets_of(pull.repository, pull.base_ref):
        for rule in ruleset.rules:
            if rule["type"] == "pull_request":
                yield rule["parameters"]["required_approving_review_count"], ruleset


def outcomes(repository: model.FakeGitHubRepository, sha: str) -> dict[str, str]:
    """Return context or name of a check -> its latest outcome."""
    found = {s.context: s.state for s in repository.statuses.get(sha, ())}
    for run in repository.check_runs.values():
        if run.head_sha == sha:
            # A later run replaces an earlier one of the same name.
            found[run.name] = run.conclusion or run.status
    return found


def _missing(pull: model.FakeGitHubPull, contexts: list[str]) -> list[str]:
    results = outcomes(pull.repository, pull.head_sha)
    return [c for c in contexts if results.get(c) not in PASSES]


def may_bypass(pull: model.FakeGitHubPull, rule: model.FakeGitHubProtection | model.Ruleset, asker: Asker) -> bool:
    """Return whether the caller may bypass the rule."""
    if isinstance(rule, model.Ruleset):
        return asker.among(rule.bypass) is not None
    # Administrators are exempt, unless the protection includes them.
    return not rule.enforce_admins and pull.repository.role(asker.account.login) == "admin"


def signed(pull: model.FakeGitHubPull) -> bool:
    """Return whether all commits of a pull request have signatures that GitHub shows as verified."""
    return set(hosts.own_commits(pull, hosts.heads(pull.repository)[pull.base_ref])) <= pull.repository.verified


def _needs(pull: model.FakeGitHubPull, approvals: int | None, rule: dict[str, Any]) -> Iterator[str]:
    """Yield the unmet requirements of a rule of either kind."""
    missing = _missing(pull, rule.get("contexts", []))
    if len(missing) == 1:
        yield f'Required status check "{missing[0]}" is expected.'
    elif missing:
        yield f"{len(missing)} of {len(rule['contexts'])} required status checks are expected."
    if approvals is not None:
        approving, unwanted = counted(pull)
        if unwanted:
            yield "Changes have been requested on this pull request by a reviewer with write access."
        elif approving < approvals:
            plural = "review is" if approvals == 1 else "reviews are"
            yield f"At least {approvals} approving {plural} required by reviewers with write access."
    if rule.get("conversations") and not all(t.resolved for t in pull.threads):
        yield "A conversation must be resolved before this pull request can be merged."
    if rule.get("signatures") and not signed(pull):
        yield "Commits must have verified signatures."
    if rule.get("strict"):
        tip = hosts.heads(pull.repository)[pull.base_ref]
        if hosts.parted(pull.repository, tip, pull.head_sha)[1]:
            yield "The head branch was modified. Review and try the merge again: it is not up to date with the base."


def unmet(pull: model.FakeGitHubPull, asker: Asker, method: str = "merge") -> list[str]:
    """Return the reason that keeps the caller from merging, in GitHub's words."""
    found: list[str] = []
    protection = protection_of(pull.repository, pull.base_ref)
    if protection is not None and not may_bypass(pull, protection, asker):
        # The listed accounts need no reviews, but they need everything else.
        approvals = None if asker.among(protection.bypass_reviews) else protection.approvals
        rule = {
            "contexts": list(protection.contexts),
            "conversations": protection.conversations,
            "signatures": protection.signatures,
            "strict": protection.strict,
        }
        found += _needs(pull, approvals, rule)
        if protection.linear and method == "merge":
            found.append("This branch must not contain merge commits.")
        if protection.locked:
            found.append("This branch is locked.")
        if protection.pushers is not None and not asker.among(protection.pushers):
            found.append("You're not authorized to push to this branch.")
    for ruleset in rulesets_of(pull.repository, pull.base_ref):
        if not may_bypass(pull, ruleset, asker):
            for rule in ruleset.rules:
                found += _of_rule(pull, rule, method)
    return found


def _of_rule(pull: model.FakeGitHubPull, rule: dict[str, Any], method: str) -> Iterator[str]:
    parameters = rule.get("parameters", {})
    match rule["type"]:
        case "required_status_checks":
            contexts = [c["context"] for c in parameters["required_status_checks"]]
            strict = parameters["strict_required_status_checks_policy"]
            yield from _needs(pull, None, {"contexts": contexts, "strict": strict})
        case "pull_request":
            talk = parameters["required_review_thread_resolution"]
            yield from _needs(pull, parameters["required_approving_review_count"], {"conversations": talk})
            if method not in parameters.get("allowed_merge_methods", [method]):
                yield f"The merge method {method} is not allowed on this branch."
        case "required_signatures":
            yield from _needs(pull, None, {"signatures": True})
        case "required_linear_history" if method == "merge":
            yield "This branch must not contain merge commits."
        case "merge_queue":
            yield "Changes must be made through the merge queue."
        case "update":
            yield "Cannot update this protected ref."


def mergeable_state(pull: model.FakeGitHubPull, asker: Asker, clean: bool) -> str:
    """Return the API's `mergeable_state`."""
    if pull.draft:
        return "draft"
    if not clean:
        return "dirty"
    words = unmet(pull, asker)
    if any("not up to date" in one for one in words):
        return "behind"
    if words:
        return "blocked"
    results = outcomes(pull.repository, pull.head_sha)
    return "clean" if all(one in PASSES for one in results.values()) else "unstable"
