"""Find triggers that can never match. Of patterns for refs, only the literal beginnings are compared."""

from __future__ import annotations

from typing import Any

from headgate.config.files.check import as_list, deep_plain
from headgate.config.files.document import Table

OURS = (
    "refs/for/",
    "refs/approved/",
    "refs/recheck/",
    "refs/approvals/",
    "refs/vetoes/",
    "refs/proposers/",
    "refs/notes/headgate",
)
"""Prefixes of the refs of proposals, approvals, requests and notes; a push to one of them is not a ref update."""
_HEADS, _FOR = "refs/heads/", "refs/for/"
_SPECIAL = frozenset(".^$*+?{}[]|()")
_REPEATS = ("*", "?", "{")


def never(trigger: Table) -> str:
    """Return why a trigger of plain git can never match, for people, or an empty string if it can."""
    patterns = deep_plain(as_list(trigger.get("ref")))
    events = as_list(trigger.get("event"))
    if not patterns or any(_may(p, event, "branch" in trigger) for p in patterns for event in events):
        return ""
    reason = "refs of changes begin with refs/for/" if "ref-updated" not in events else "refs have whole names"
    example = "" if "ref-updated" not in events else ", such as refs/heads/master or refs/tags/v1"
    if "branch" in trigger and "ref-updated" in events:
        reason, example = "with `branch` it is of branches", ", which begin with refs/heads/"
    elif "ref-updated" in events and any(begin.startswith(OURS) for begin in map(beginning, patterns)):
        reason, example = "what is pushed there are changes, approvals and notes", ", and no update of a ref"
    return f"ref {', '.join(map(str, patterns))} can never match: {reason}{example}"


def nobody_did(trigger: Table, nobody: frozenset[str]) -> str:
    """Return why a trigger with `permission` can never match, for people, or an empty string if it can. `nobody` holds
    the events and actions for which the forge does not report an author."""
    actions = [*map(str, as_list(trigger.get("action")) or as_list(trigger.get("event")))]
    if "permission" not in trigger or not actions or not nobody.issuperset(actions):
        return ""
    what = ", ".join(actions)
    return f"permission can never be met: the forge does not say who did this ({what}); require a review or a comment"


def _may(pattern: Any, event: str, of_branches: bool) -> bool:
    begin = beginning(pattern)
    if event != "ref-updated":
        return _meets(begin, _FOR)
    return _meets(begin, _HEADS if of_branches else "refs/") and not begin.startswith(OURS)


def _meets(begin: str, names: str) -> bool:
    """Return whether some name can begin with both."""
    return begin.startswith(names) or names.startswith(begin)


def beginning(pattern: Any) -> str:
    """Return the literal text with which every match of the pattern begins, as far as it is evident."""
    if not isinstance(pattern, str) or "|" in pattern:
        return ""
    found, rest = "", pattern.removeprefix("^")
    while rest and rest[0] not in _SPECIAL:
        char, rest = rest[0], rest[1:]
        if char == "\\":
            # `\d` and the like stand for no single character.
            if not rest or rest[0].isalnum():
                break
            char, rest = rest[0], rest[1:]
        # A character that may be left out does not belong to every match.
        if rest.startswith(_REPEATS):
            break
        found += char
    return found
