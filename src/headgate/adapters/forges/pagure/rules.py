"""List what the options of a project ask of a pull request before Pagure merges it.  Pure."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from typing import Any

from headgate.adapters.forges.pagure.pull import PagurePull
from headgate.config.forges.facts import Rule

SCORE, ASSIGNEE = "Minimum_score_to_merge_pull-request", "Only_assignee_can_merge_pull-request"
SIGNED, STRAIGHT = "Enforce_signed-off_commits_in_pull-request", "disable_non_fast-forward_merges"


def rule_book(
    pull: PagurePull, options: Mapping[str, Any], us: Collection[str], signed: bool | None
) -> tuple[Rule, ...]:
    """Return the rules in force.  `options`: of the project, empty where they may not be seen; `signed`: whether all
    commits are signed off.

    Whether our account may merge is not a rule: of those who administer the whole site Pagure does not tell."""
    return tuple(_rules(pull, options, us, signed))


def _rules(pull: PagurePull, options: Mapping[str, Any], us: Collection[str], signed: bool | None) -> Iterator[Rule]:
    if pull.reached is not None:
        wanted = f" of {options[SCORE]}" if SCORE in options else ""
        yield Rule(f"needs the score{wanted} that its project asks for", pull.reached)
    if options.get(ASSIGNEE):
        assigned = f"is assigned to {pull.assignee}" if pull.assignee else "is assigned to nobody"
        yield Rule(f"needs to be assigned to {_of(us)}, as only assignees merge there, and {assigned}", _is(pull, us))
    if options.get(SIGNED):
        yield Rule("needs a line Signed-off-by in each of its commits", signed)
    if options.get(STRAIGHT):
        text = f"needs to have the newest commit of {pull.base}, which a gate makes needless: take that option away"
        yield Rule(text, {"FFORWARD": True, "MERGE": False}.get(pull.merges))
    if pull.merges == "NO_CHANGE":
        yield Rule(f"needs commits that {pull.base} does not have", False)


def _is(pull: PagurePull, us: Collection[str]) -> bool:
    return pull.assignee in us


def _of(us: Collection[str]) -> str:
    return " or ".join(us) or "Headgate's account"
