"""The rule book of a branch: classic protection and rulesets, and what a pull request still lacks of them.  Pure.

What GitHub asks for and our account may pass over is not lacking; where nothing is lacking but statuses that the gate
sets itself, the change is ready.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from typing import Any

from msgspec.structs import replace

from headgate.adapters.forges.github.pull import GitHubPull
from headgate.config.forges.facts import Rule

PASSES = frozenset({"success", "neutral", "skipped"})
UNDER_WAY = frozenset({"pending", "expected", "queued", "in_progress", "waiting", "requested"})
BYPASSES = frozenset({"always", "pull_requests_only", "exempt"})
"""Values with which GitHub says that our account may bypass a ruleset."""


def rule_book(pull: GitHubPull, us: Collection[str], bypassed: Collection[int] = ()) -> tuple[Rule, ...] | None:
    """Return the rules in force; None if our account may not see all of them and the merge is blocked. `us`: logins and
    slugs that Headgate writes as; `bypassed`: ids of the rulesets that it may bypass."""
    if pull.rules is None:
        return None
    found = [replace(one, bypassed=True) if pull.as_admin else one for one in _classic(pull, frozenset(us))]
    for rule in pull.rules:
        ruleset = rule["repositoryRuleset"] or {}
        free = ruleset.get("databaseId") in bypassed
        where = f" (ruleset {ruleset.get('name') or 'without a name'})"
        found += [replace(one, text=one.text + where, bypassed=free) for one in _of_ruleset(pull, rule)]
    named = any(one.met is not True and not one.bypassed for one in found)
    # GitHub blocks the merge for something that our account cannot see.
    if pull.merge_state == "BLOCKED" and not named and not pull.as_admin and not pull.rules_shown:
        return None  # the missing status may be the one that the gate will set
    if pull.merge_state == "BLOCKED" and not named and not pull.as_admin:
        found.append(Rule("is blocked by a rule of GitHub that it does not name: its page says which", False))
    return tuple(found)


def lacking(pull: GitHubPull, us: Collection[str]) -> set[int]:
    """Return the ids of the rulesets with unmet rules, for which to find out whether we may bypass them."""
    return {
        rule["repositoryRuleset"]["databaseId"]
        for rule in pull.rules or ()
        if rule["repositoryRuleset"] and any(one.met is not True for one in _of_ruleset(pull, rule))
    }


def _classic(pull: GitHubPull, us: frozenset[str]) -> Iterator[Rule]:
    protection = pull.protection
    if protection is None:
        return
    if protection["requiresStatusChecks"]:
        yield from _checks(pull, protection["requiredStatusCheckContexts"] or ())
        if protection["requiresStrictStatusChecks"]:
            yield _strict(pull)
    if protection["requiresApprovingReviews"]:
        count, owners = protection["requiredApprovingReviewCount"] or 0, protection["requiresCodeOwnerReviews"]
        free = bool(us & _actors(protection["bypassPullRequestAllowances"]))
        yield replace(_reviews(pull, count, owners), bypassed=free)
    if protection["requiresConversationResolution"]:
        yield _threads(pull)
    if protection["requiresCommitSignatures"]:
        yield _signatures(pull)
    if protection["lockBranch"]:
        yield Rule(f"needs the branch {pull.base} to be unlocked", False)
    if protection["restrictsPushes"]:
        ours = bool(us & _actors(protection["pushAllowances"]))
        yield Rule(f"needs Headgate to be among those who may push to {pull.base}", ours)


def _actors(allowances: Mapping[str, Any] | None) -> set[str]:
    actors = [one["actor"] or {} for one in allowances["nodes"]] if allowances else []
    return {str(actor.get("slug") or actor.get("login") or "") for actor in actors} - {""}


def _of_ruleset(pull: GitHubPull, rule: Mapping[str, Any]) -> Iterator[Rule]:
    how = rule["parameters"] or {}
    match rule["type"]:
        case "REQUIRED_STATUS_CHECKS":
            yield from _checks(pull, [one["context"] for one in how["requiredStatusChecks"]])
            if how["strictRequiredStatusChecksPolicy"]:
                yield _strict(pull)
        case "PULL_REQUEST":
            if how["requiredApprovingReviewCount"] or how["requireCodeOwnerReview"]:
                yield _reviews(pull, how["requiredApprovingReviewCount"], how["requireCodeOwnerReview"])
            if how["requiredReviewThreadResolution"]:
                yield _threads(pull)
        case "REQUIRED_SIGNATURES":
            yield _signatures(pull)
        case "MERGE_QUEUE":
            text = "needs to go through GitHub's own merge queue: take that rule away, or let Headgate bypass it"
            yield Rule(text, False)
        case "UPDATE":
            yield Rule(f"needs the branch {pull.base} to be one that may be updated", False)


def _checks(pull: GitHubPull, wanted: Collection[str]) -> Iterator[Rule]:
    states: dict[str, str] = {}
    for one in pull.reports:
        state = one.status.state
        # Several programs may use one name. A bad state must win over a good one, whatever the order.
        if states.get(one.status.name) not in PASSES or state not in PASSES:
            states[one.status.name] = state
    missing = tuple(sorted(name for name in wanted if states.get(name) not in PASSES))
    if not wanted:
        return
    text = f"needs {'these statuses' if len(wanted) > 1 else 'this status'} to be good: {', '.join(missing or wanted)}"
    waits = bool(missing) and all(states.get(name) in UNDER_WAY for name in missing)
    yield Rule(text, None if waits else not missing, missing=missing)


def _strict(pull: GitHubPull) -> Rule:
    text = f"needs to have the newest commit of {pull.base}, which a gate makes needless: let Headgate bypass that rule"
    return Rule(text, None if pull.merge_state == "UNKNOWN" else pull.merge_state != "BEHIND")


def _reviews(pull: GitHubPull, count: int, owners: bool) -> Rule:
    if pull.decision == "CHANGES_REQUESTED":
        return Rule("needs those who requested changes to approve it", False)
    people = f"{count} approving review{'s' if count > 1 else ''} of people who may write" if count else "a review"
    text = f"needs {people}{', and of the owners of its code' if owners else ''}"
    return Rule(text, pull.decision == "APPROVED")


def _threads(pull: GitHubPull) -> Rule:
    left = f"; {pull.unresolved} {'is' if pull.unresolved == 1 else 'are'} not" if pull.unresolved else ""
    return Rule(f"needs all its conversations to be resolved{left}", not pull.unresolved)


def _signatures(pull: GitHubPull) -> Rule:
    return Rule("needs all its commits to have verified signatures", pull.signed)
