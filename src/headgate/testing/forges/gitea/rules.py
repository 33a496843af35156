"""What the protection of a branch asks for, and what a pull request lacks of it, as Gitea has it."""

from __future__ import annotations

from collections.abc import Iterator
from fnmatch import fnmatchcase

from headgate.testing.forges.gitea.state import Protection, Pull, Repository, Review, World
from headgate.testing.forges.github import hosting
from headgate.testing.forges.github.state import Account, Status


def protection_of(repository: Repository, branch: str) -> Protection | None:
    """Return the rule that holds for a branch: the first that matches."""
    return next((one for one in repository.protections if fnmatchcase(branch, one.name)), None)


def official(repository: Repository, branch: str, who: Account) -> bool:
    """Say whether somebody's review counts for a branch."""
    rule = protection_of(repository, branch)
    if rule is not None and rule.approvers is not None:
        return who.login in rule.approvers
    return repository.may(who.login, "write")


def newest(repository: Repository, sha: str) -> list[Status]:
    """Return the newest status of each context."""
    found = {one.context: one for one in repository.statuses.get(sha, ())}
    return sorted(found.values(), key=lambda one: one.id)


def may_merge(repository: Repository, branch: str, who: Account) -> bool:
    """Say whether somebody may merge into a branch."""
    rule = protection_of(repository, branch)
    named = rule is None or rule.mergers is None or who.login in rule.mergers
    return named and repository.may(who.login, "write")


def mergeable(world: World, pull: Pull, *, asks: bool = True) -> bool | None:
    """Say whether it merges without conflicts; None: that is still worked out.  Asking has it worked out at last."""
    base = hosting.heads(pull.repository).get(pull.base_ref)
    if base is None:
        return False
    if pull.checked != (pull.head_sha, base):
        if pull.asked < world.mergeability_asks:
            pull.asked += asks
            return None
        pull.checked, pull.asked = (pull.head_sha, base), 0
    return hosting.merged_tree(pull.repository, base, pull.head_sha) is not None


def unmet(pull: Pull) -> Iterator[str]:
    """Yield what Gitea says is lacking."""
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
    base = hosting.heads(pull.repository)[pull.base_ref]
    if rule.block_on_outdated_branch and hosting.parted(pull.repository, base, pull.head_sha)[1]:
        yield "The head branch is behind the base branch"
    if rule.protected_files and any(
        fnmatchcase(one.path, pattern)
        for one in hosting.files_of(pull, base)
        for pattern in rule.protected_files.split(";")
    ):
        yield "Changed protected files"


def _good(patterns: tuple[str, ...], statuses: list[Status]) -> bool:
    """Each pattern has to match something, and all that it matches has to be good; without patterns, all has to be."""
    asked = [[one for one in statuses if fnmatchcase(one.context, pattern)] for pattern in patterns] or [statuses]
    return all(found and all(one.state == "success" for one in found) for found in asked)


def stale(pull: Pull, one: Review) -> bool:
    return one.commit_id != pull.head_sha
