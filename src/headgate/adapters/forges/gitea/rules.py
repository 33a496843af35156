"""The protection of a branch, and what a pull request still lacks of it.  Pure.

Everybody who may read sees how many have to approve and which statuses are asked for; the rest of a protection is seen
by who administers the repository, and told by Gitea when it refuses to merge.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping
from functools import lru_cache
from typing import Any

import re2

from headgate.adapters.forges.gitea.pull import GiteaPull
from headgate.config.forges.facts import Rule

_QUIET = re2.Options()
# Patterns are other people's; re2 would write each invalid one to our standard error.
_QUIET.log_errors = False
GOOD = frozenset({"success", "skipped"})
UNDER_WAY = "pending"


def rule_book(
    pull: GiteaPull, protection: Mapping[str, Any] | None, files: Collection[str] | None
) -> tuple[Rule, ...] | None:
    """Return the rules in force; None if the branch may not be seen. `protection`: all of it, if we may see it;
    `files`: the changed files, if known."""
    branch = pull.branch
    if branch is None:
        return None
    if not branch.get("protected"):
        return ()
    more = protection or {}
    found = list(_everybody(pull, branch, more))
    if more.get("block_on_rejected_reviews"):
        found.append(_rejected(pull))
    if more.get("block_on_official_review_requests"):
        waits = [one.who for one in pull.opinions if one.state == "REQUEST_REVIEW" and one.official]
        found.append(Rule(f"needs the reviews that were asked for{_of(waits)}", not waits))
    if more.get("block_on_outdated_branch"):
        text = f"needs to have the newest commit of {pull.base}, which a gate makes needless: take that rule away"
        found.append(Rule(text, not pull.merge_base or pull.merge_base == pull.base_commit))
    if files is not None and (patterns := str(more.get("protected_file_patterns") or "")):
        touched = [path for path in files if _protected(patterns, path)]
        found.append(Rule(f"needs to leave protected files alone{_of(touched[:5])}", not touched))
    return tuple(found)


def _everybody(pull: GiteaPull, branch: Mapping[str, Any], more: Mapping[str, Any]) -> Iterator[Rule]:
    """Yield the rules that everybody may see."""
    wanted = int(branch.get("required_approvals") or 0)
    if wanted:
        have = pull.approvals(stale=more.get("ignore_stale_approvals") is False)
        people = f"{wanted} approvals that count" if wanted > 1 else "1 approval that counts"
        text = f"needs {people} for {pull.base}, and has {len(have)}"
        yield Rule(text, len(have) >= wanted)
    if branch.get("enable_status_check"):
        yield from _statuses(pull, [str(one) for one in branch.get("status_check_contexts") or ()])
    if branch.get("user_can_merge") is False:
        yield Rule(f"needs Headgate to be among those who may merge into {pull.base}", False)


def _of(names: Collection[str]) -> str:
    return f" ({', '.join(names)})" if names else ""


def _rejected(pull: GiteaPull) -> Rule:
    found = [one.who for one in pull.opinions if one.state == "REQUEST_CHANGES" and one.official and not one.dismissed]
    return Rule(f"needs those who requested changes{_of(tuple(dict.fromkeys(found)))} to approve it", not found)


def _statuses(pull: GiteaPull, patterns: Collection[str]) -> Iterator[Rule]:
    """Yield the rules for statuses. Each pattern requires a status, and all that match it to succeed; without
    patterns, all statuses must succeed."""
    states = {one.status.name: one.status.state for one in pull.reports}
    bad = {name for name, state in states.items() if state not in GOOD}
    matching = {pattern: {name for name in states if matches(pattern, name)} for pattern in patterns}
    missing = {pattern for pattern, found in matching.items() if not found}
    lacking = tuple(sorted(missing | (bad & set().union(*matching.values()) if patterns else bad)))
    if not patterns and not lacking:
        return
    names = lacking or tuple(patterns)
    text = f"needs {'these statuses' if len(names) > 1 else 'this status'} to be good: {', '.join(names)}"
    waits = bool(lacking) and all(states.get(name) == UNDER_WAY for name in lacking)
    yield Rule(text, None if waits else not lacking, missing=lacking)


def _protected(patterns: str, path: str) -> bool:
    return any(matches(one, path.lower(), "./") for one in patterns.lower().split(";") if one.strip())


def matches(pattern: str, text: str, separators: str = "") -> bool:
    """Tell whether a text matches a pattern of Gitea: `*` is anything without separators, `**` anything, `?` one
    letter, `[a-c]` or `[!a-c]` one of them, `{a,b}` either; an invalid pattern only matches itself."""
    rule = _rule(pattern.strip(), separators)
    return text == pattern if rule is None else rule.fullmatch(text) is not None


@lru_cache(1_000)
def _rule(pattern: str, separators: str) -> Any | None:
    """Return the pattern as a regular expression that takes linear time, whatever it contains."""
    one = f"[^{re.escape(separators)}]" if separators else "."
    parts = re.findall(r"\*\*+|\*|\?|\[!?[^\]]+\]|\{|\}|,|\\.|.", pattern, re.DOTALL)
    words, depth = list[str](), 0
    for part in parts:
        if part[0] == "*":
            words.append(".*" if len(part) > 1 or not separators else f"{one}*")
        elif part == "?":
            words.append(one)
        elif part[0] == "[" and len(part) > 1:
            inner = part[1:-1]
            words.append(f"[{'^' if inner[0] == '!' else ''}{_escaped(inner.removeprefix('!'))}]")
        elif part in "{}":
            depth += 1 if part == "{" else -1
            words.append("(?:" if part == "{" else ")")
        else:
            words.append("|" if part == "," and depth > 0 else re.escape(part[-1]))
        if depth < 0:
            return None
    try:
        return re2.compile(f"(?s){''.join(words)}", _QUIET) if depth == 0 else None
    except re2.error:
        return None


def _escaped(inner: str) -> str:
    return re.sub(r"[\\\[\]^&~|]", r"\\\g<0>", inner)
