"""Tell what the protection of a branch asks for, and what a pull request lacks of it, as Gitea has it."""

from __future__ import annotations

from collections.abc import Iterator
from fnmatch import fnmatchcase

from headgate.testing.forges.gitea.state import (
    FakeGiteaProtection,
    FakeGiteaPull,
    FakeGiteaRepository,
    FakeGiteaReview,
    FakeGiteaWorld,
)
from headgate.testing.forges.github import hosts
from headgate.testing.forges.github.state import FakeGitHubAccount, FakeGitHubStatus


def protection_of(repository: FakeGiteaRepository, branch: str) -> FakeGiteaProtection | None:
    """Return the rule that holds for a branch: the first that matches."""
    return next((one for one in repository.protections if fnmatchcase(branch, one.name)), None)


def official(repository: FakeGiteaRepository, branch: str, who: FakeGitHubAccount) -> bool:
    """Say whether somebody's review counts for a branch."""
    rule = protection_of(repository, branch)
    if rule is not None and rule.approvers is not None:
        return who.login in rule.approvers
    return repository.may(who.login, "write")


def newest(repository: FakeGiteaRepository, sha: str) -> list[FakeGitHubStatus]:
    """Return the newest status of each context."""
    found = {one.context: one for one in repository.statuses.get(sha, ())}
    return sorted(found.values(), key=lambda one: one.id)


def may_merge(repository: FakeGiteaRepository, branch: str, who: FakeGitHubAccount) -> bool:
    """Say whether somebody may merge into a branch."""
    rule = protection_of(repository, branch)
    named = rule is None or rule.mergers is None or who.login in rule.mergers
    return named and repository.may(who.login, "write")


def mergeable(world: FakeGiteaWorld, pull: FakeGiteaPull, *, asks: bool = True) -> bool | None:
    """Say whether it merges without conflicts; None: that is still worked out.  Asking has it worked out at last."""
    base = hosts.heads(pull.repository).get(pull.base_ref)
    if base is None:
        return False
    if pull.checked != (pull.head_sha, base):
        if pull.times_asked < world.mergeability_asks:
            pull.times_asked += asks
            return None
        pull.checked, pull.times_asked = (pull.head_sha, base), 0
    return hosts.merged_tree(pull.repository, base, pull.head_sha) is not None


def unmet(pull: FakeGiteaPull) -> Iterator[str]:
    """Yield the missing requirements in Gitea's words."""
    rule = protection_of(pull.repository, pull.base_ref)
    if rule is None:
        return
    if rule.contexts is not None and not _good(rule.contexts, newest(pull.repository, pull.head_sha)):
        yield "Not all required status checks successful"
    counted = [one for one in pull.reviews if one.official and not one.dismissed]
    granted = [
        one for one in counted if one.state == "APPROVED" and not (stale(pull, one) and rule.ignore_stale_approvals)
    ]
    if len(granted) < rule.approvals:
        yield "Does not have enough approvals"
    if rule.block_on_rejected_reviews and any(one.state == "REQUEST_CHANGES" for one in counted):
        yield "There are requested changes"
    if rule.block_on_official_review_requests and any(one.state == "REQUEST_REVIEW" for one in counted):
        yield "There are official review requests"
    base = hosts.heads(pull.repository)[pull.base_ref]
    if rule.block_on_outdated_branch and hosts.parted(pull.repository, base, pull.head_sha)[1]:
        yield "The head branch is behind the base branch"
    if rule.protected_files and any(
        fnmatchcase(one.path, pattern)
        for one in hosts.files_of(pull, base)
        for pattern in rule.protected_files.split(";")
    ):
        yield "Changed protected files"


def _good(patterns: tuple[str, ...], statuses: list[FakeGitHubStatus]) -> bool:
    """Check that each pattern matches something, and that all it matches is good; without patterns, all has to be."""
    required = [[one for one in statuses if fnmatchcase(one.context, pattern)] for pattern in patterns] or [statuses]
    return all(found and all(one.state == "success" for one in found) for found in required)


def stale(pull: FakeGiteaPull, one: FakeGiteaReview) -> bool:
    return one.commit_id != pull.head_sha
