"""Read one pull request from Gitea, and which rules of its branch's protection it does not meet.

Everybody who may read a repository sees how many approvals and which statuses a branch requires. Only administrators
see the rest of its protection; to others, Gitea names the missing part when it refuses to merge.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any
from urllib.parse import quote

import msgspec
import re2

from headgate.adapters.forges.changestate import LABELS_MAX
from headgate.adapters.forges.gitea.client import GiteaClient
from headgate.adapters.forges.pulls import AnyPull, ProgramReport, PullRemark, Reviewed, ms, newest_of_each
from headgate.adapters.forges.rest import ForgeDenied, NotThere, Query, Rejected, ResponseTooLarge
from headgate.config.forges.facts import ForgeAccount, ProgramStatus, Rule, Vote

LISTED_MAX = 2_000
"""Maximum numbers of reviews, and of status contexts, that are read of one change."""
PREFIXES = ("wip:", "[wip]")
"""Prefixes that mark the title of a draft."""
_STATES = {"APPROVED": "approved", "REQUEST_CHANGES": "changes_requested", "COMMENT": "commented"}
"""State of a review at Gitea -> the common state."""
GOOD = frozenset({"success", "skipped"})
"""States with which a required status is met."""
UNDER_WAY = "pending"
_QUIET = re2.Options()
# Users write the patterns; re2 would report each invalid one on our standard error.
_QUIET.log_errors = False


class Opinion(msgspec.Struct, frozen=True):
    """Hold a review as the branch protection counts it."""

    who: str
    state: str
    """State as Gitea names it; meaningless if the review was dismissed."""
    official: bool
    """Whether the review counts for the protection."""
    stale: bool
    """Whether the head has moved since the review."""
    dismissed: bool


@dataclass(frozen=True, slots=True)
class GiteaPull(AnyPull):
    """Describe a pull request at one moment."""

    merge_base: str
    opinions: tuple[Opinion, ...]
    branch: Mapping[str, Any] | None
    """The target branch, with its protection as everybody may see it; None if the branch does not exist."""

    @property
    def approved(self) -> bool:
        """Return whether the change has as many approvals as its branch requires; see `AnyPull`."""
        wanted = int((self.branch or {}).get("required_approvals") or 0)
        return wanted > 0 and len(self.approvals()) >= wanted

    @property
    def votes(self) -> tuple[Vote, ...]:
        """Return the votes that count; see `AnyPull`."""
        return newest_of_each(self.reviews)

    def approvals(self, *, stale: bool = False) -> tuple[str, ...]:
        """Return the authors of the approvals that count; `stale`: including approvals of a former head."""
        found = (one for one in self.opinions if one.official and one.state == "APPROVED" and not one.dismissed)
        return tuple({one.who: None for one in found if stale or not one.stale})


async def look(client: GiteaClient, project: str, number: int, since: str, *, urgent: bool = True) -> GiteaPull:
    """Return a pull request of `project` (owner/name). `since`: oldest time of comments to read. Raise NotThere,
    ForgeDenied, Rejected, ReporterAway."""
    repo = f"/repos/{project}"
    pull = (await client.get(client.key, f"{repo}/pulls/{number}", urgent=urgent)).content
    query: Query = {"since": since} if since else {}
    head, base = str(pull["head"]["sha"]), str(pull["base"]["ref"])
    try:
        remarks = (await client.get(client.key, f"{repo}/issues/{number}/comments", query, urgent=urgent)).content or []
    except ResponseTooLarge:  # all comments come in one response, and anybody may write some: continue without them
        remarks = []
    reviews = await _listed(client, f"{repo}/pulls/{number}/reviews", urgent)
    statuses = await _statuses(client, f"{repo}/commits/{head}/status", urgent)
    branch = None
    # The rules no longer matter for closed changes, which saves a call.
    if pull["state"] == "open":
        branch = await _branch(client, f"{repo}/branches/{quote(base, safe='/')}", urgent)
    return _pull(project, pull, remarks, reviews, statuses, branch)


async def _listed(client: GiteaClient, path: str, urgent: bool) -> list[Any]:
    found: list[Any] = []
    async for page in client.pages(client.key, path, urgent=urgent):
        # Nobody needs the texts, and two thousand of them may be long.
        found += [{**one, "body": ""} for one in page]
        if len(found) > LISTED_MAX:
            # Cutting the list could hide the review that blocks the merge.
            raise Rejected(200, f"it has more than {LISTED_MAX} reviews: close it, and open a new pull request")
    return found


async def _statuses(client: GiteaClient, path: str, urgent: bool) -> list[Any]:
    """Return the newest status of each context."""
    found: list[Any] = []
    # Each page is an object with a part of the statuses, which `pages` cannot read.
    for page in range(1, LISTED_MAX // 50 + 1):
        query: Query = {**client.page_size, "page": page}
        try:
            combined = (await client.get(client.key, path, query, urgent=urgent)).content
        except NotThere:
            return []  # the commit does not exist there yet
        fresh = combined["statuses"] or []
        found += fresh
        if not fresh or len(found) >= int(combined["total_count"]):
            break
    return found


async def _branch(client: GiteaClient, path: str, urgent: bool) -> Mapping[str, Any] | None:
    try:
        found: Mapping[str, Any] = (await client.get(client.key, path, urgent=urgent)).content
    except (NotThere, ForgeDenied):
        return None
    return found


def _pull(
    project: str,
    pull: Mapping[str, Any],
    remarks: list[Any],
    reviews: list[Any],
    statuses: list[Any],
    branch: Mapping[str, Any] | None,
) -> GiteaPull:
    merged = bool(pull["merged"])
    # A review request to a team has no user.
    there = [one for one in reviews if one["user"] is not None]
    return GiteaPull(
        project=str(((pull["base"].get("repo") or {}).get("full_name")) or project),
        number=int(pull["number"]),
        title=str(pull["title"]),
        body=str(pull["body"] or "").replace("\r\n", "\n"),
        url=str(pull["html_url"]),
        state="MERGED" if merged else "OPEN" if pull["state"] == "open" else "CLOSED",
        draft=bool(pull["draft"]) if "draft" in pull else str(pull["title"]).lower().startswith(PREFIXES),
        created_ms=ms(pull["created_at"]),
        updated=str(pull["updated_at"]),
        head=str(pull["head"]["sha"]),
        base=str(pull["base"]["ref"]),
        base_commit=str(pull["base"]["sha"]),
        author=_account(pull["user"]),
        mergeable=True if pull["mergeable"] else None,  # false may also mean that Gitea is still checking
        merge_commit=str(pull.get("merge_commit_sha") or "") if merged else "",
        labels=tuple(str(one["name"]) for one in (pull["labels"] or ())[:LABELS_MAX]),
        reviews=tuple(_review(one) for one in there if one["state"] in _STATES),
        remarks=tuple(_remark(one) for one in remarks),
        reports=tuple(_report(one) for one in statuses),
        merge_base=str(pull.get("merge_base") or ""),
        opinions=tuple(_opinion(one) for one in there),
        branch=branch,
    )


def _account(user: Mapping[str, Any] | None) -> ForgeAccount:
    return ForgeAccount(str(user["login"]), str(user.get("email") or "")) if user else ForgeAccount("Ghost")


def _review(review: Mapping[str, Any]) -> Reviewed:
    state = "dismissed" if review["dismissed"] else _STATES[review["state"]]
    return Reviewed(
        int(review["id"]), _account(review["user"]), state, ms(review["submitted_at"]), bool(review["official"])
    )


def _opinion(review: Mapping[str, Any]) -> Opinion:
    who = str(review["user"]["login"])
    return Opinion(
        who, str(review["state"]), bool(review["official"]), bool(review["stale"]), bool(review["dismissed"])
    )


def _remark(comment: Mapping[str, Any]) -> PullRemark:
    return PullRemark(
        int(comment["id"]), _account(comment["user"]), str(comment["body"] or ""), ms(comment["created_at"])
    )


def _report(status: Mapping[str, Any]) -> ProgramReport:
    who, url = _account(status.get("creator")).name, str(status.get("target_url") or "")
    return ProgramReport(
        ProgramStatus(who, str(status["context"]), str(status["status"]).lower(), url=url), ms(status["updated_at"])
    )


def rule_book(
    pull: GiteaPull, protection: Mapping[str, Any] | None, files: Collection[str] | None
) -> tuple[Rule, ...] | None:
    """Return the rules in force; None if the account may not see the branch. `protection`: the complete protection, if
    the account may see it; `files`: the changed files, if known."""
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
        found.append(Rule(f"needs the requested reviews{_of(waits)}", not waits))
    if more.get("block_on_outdated_branch"):
        text = f"needs to contain the newest commit of {pull.base}; a gate makes that rule needless: remove it"
        found.append(Rule(text, not pull.merge_base or pull.merge_base == pull.base_commit))
    if files is not None and (patterns := str(more.get("protected_file_patterns") or "")):
        touched = [path for path in files if _protected(patterns, path)]
        found.append(Rule(f"needs to leave protected files alone{_of(touched[:5])}", not touched))
    return tuple(found)


def _everybody(pull: GiteaPull, branch: Mapping[str, Any], more: Mapping[str, Any]) -> Iterator[Rule]:
    """Yield the rules that everybody may see."""
    wanted = int(branch.get("required_approvals") or 0)
    if wanted:
        # If the setting is hidden from our account, assume that stale approvals do not count.
        have = pull.approvals(stale=more.get("ignore_stale_approvals") is False)
        people = f"{wanted} approvals that count" if wanted > 1 else "1 approval that counts"
        text = f"needs {people} for {pull.base}, and has {len(have)}"
        yield Rule(text, len(have) >= wanted)
    if branch.get("enable_status_check"):
        yield from _status_rules(pull, [str(one) for one in branch.get("status_check_contexts") or ()])
    if branch.get("user_can_merge") is False:
        yield Rule(f"needs Headgate to be among those who may merge into {pull.base}", False)


def _of(names: Collection[str]) -> str:
    return f" ({', '.join(names)})" if names else ""


def _rejected(pull: GiteaPull) -> Rule:
    found = [one.who for one in pull.opinions if one.state == "REQUEST_CHANGES" and one.official and not one.dismissed]
    return Rule(f"needs those who requested changes{_of(tuple(dict.fromkeys(found)))} to approve it", not found)


def _status_rules(pull: GiteaPull, patterns: Collection[str]) -> Iterator[Rule]:
    """Yield the rules for statuses. Each pattern requires at least one matching status, and all matching ones to
    succeed; without patterns, all statuses must succeed."""
    states = {one.status.name: one.status.state for one in pull.reports}
    # The list has the newest status of each context, so a later success replaces a failure.
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
    # Gitea compares both in lower case.
    return any(matches(one, path.lower(), "./") for one in patterns.lower().split(";") if one.strip())


def matches(pattern: str, text: str, separators: str = "") -> bool:
    """Return whether a string matches a Gitea pattern: `*` matches anything without separators, `**` anything, `?` one
    character, `[a-c]` or `[!a-c]` one of a set, `{a,b}` either; an invalid pattern matches only itself."""
    regex = _regex(pattern.strip(), separators)
    return text == pattern if regex is None else regex.fullmatch(text) is not None


@lru_cache(1_000)
def _regex(pattern: str, separators: str) -> Any | None:
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
