"""Translate Gerrit's changes and their unmet requirements into the terms that all forges share."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from headgate.adapters.forges.gerrit.entities import ChangeInfo, Related, Requirement, moment
from headgate.adapters.forges.gerrit.server import Server
from headgate.adapters.forges.pulls import cut
from headgate.config.forges.facts import Details, ForgeAccount, Rule, Vote
from headgate.gate.state.change import Change, ChangeState, numbered

PATHS_MAX_CHARS = 100_000
"""Total length of the names of changed files; above it, the list of changed files counts as unknown."""
MAGIC = frozenset({"/COMMIT_MSG", "/MERGE_LIST", "/PATCHSET_LEVEL"})
"""Names of files that Gerrit shows although nobody changed them."""
TEXT_MAX_CHARS = 300
"""Length to which the condition of a requirement is cut."""
_WORD = re.compile(r'-?\(|\)|-?(?:[^\s()"]|"[^"]*")+')
_LABEL = re.compile(r"label:\"?([A-Za-z0-9-]+)")


class GerritMark(NamedTuple):
    """Mark how far the events of a change were reported; as a string, `|` joins the three parts."""

    state: str = ""
    """Mark of the change's state, which changes with every event on the change."""
    message: str = ""
    """Id of the last message that was reported."""
    date: str = ""

    @classmethod
    def of(cls, text: str) -> GerritMark:
        # Pad the fields, since a change that was not read yet has an empty mark.
        return cls(*[*text.split("|", 2), "", "", ""][:3])

    @classmethod
    def after(cls, info: ChangeInfo) -> GerritMark:
        last = info.messages[-1:]
        return cls(info.mark, *((last[0].id, last[0].date) if last else ("", "")))

    def __str__(self) -> str:
        return "|".join(self)


class Stack(NamedTuple):
    """Describe what a revision is built on; `bases` and `stale` are those of `gate.state.change.Change`."""

    bases: tuple[str, ...] = ()
    stale: tuple[str, ...] = ()


def stack(server: Server, info: ChangeInfo, related: Iterable[Related]) -> Stack:
    """Return the changes directly below a revision that have not landed."""
    parents = [parent.commit for parent in info.current.commit.parents] if info.current is not None else []
    below = [one for one in related if one.commit.commit in parents and one.status != "MERGED" and one.number]
    project = server.project(info.project)
    keys = {numbered(project, str(one.number)): one.revision != one.current_revision for one in below}
    return Stack(tuple(keys), tuple(key for key, older in keys.items() if older))


def change(server: Server, info: ChangeInfo, below: Stack) -> Change:
    """Return the current patch set of a change."""
    current = info.current
    message = cut(current.commit.message.replace("\0", "\ufffd")) if current is not None else info.subject
    return Change(
        connection=server.name,
        project=server.project(info.project),
        branch=info.branch,
        commit=info.current_revision,
        ref=current.ref if current is not None else "",
        message=message,
        owner=info.owner.who,
        url=server.change_url(info.project, info.number),
        files=paths(info),
        needs=below.bases,
        bases=below.bases,
        stale=below.stale,
        number=str(info.number),
        patchset=str(current.number) if current is not None else "",
    )


def paths(info: ChangeInfo) -> tuple[str, ...] | None:
    """Return the names of the files that a change changes, including former names; None if unknown."""
    files = info.current.files if info.current is not None else None
    if files is None:
        return None
    found = {path for path in files if path not in MAGIC} | {file.old_path for file in files.values() if file.old_path}
    # Every state of a change stores these paths, so a huge list would multiply.
    return tuple(sorted(found)) if sum(map(len, found)) <= PATHS_MAX_CHARS else None


def change_state(server: Server, info: ChangeInfo, change: Change) -> ChangeState:
    """Return the state of a change."""
    merged = info.status == "MERGED"
    uploader = info.current.uploader if info.current is not None else info.owner
    who = tuple(dict.fromkeys(one for one in (uploader.who, info.owner.who) if one))
    return ChangeState(change, info.is_open, landed=merged, proposers=who, details=details(server, info))


def details(server: Server, info: ChangeInfo) -> Details:
    """Return the parts of the state that may change while the patch set stays the same."""
    return Details(
        us=(server.user,),
        state=info.status,
        draft=info.work_in_progress,
        votes=votes(info),
        hashtags=tuple(sorted(info.hashtags)),
        topic=info.topic,
        unresolved=info.unresolved_comment_count,
        rules=rules(info) if info.is_open else None,
        mark=str(GerritMark.after(info)),
    )


def votes(info: ChangeInfo) -> tuple[Vote, ...]:
    """Return the votes on the current patch set; a value of 0 is no vote."""
    return tuple(
        Vote(ForgeAccount(vote.username, vote.email), label, str(vote.value), int(moment(vote.date) * 1000))
        for label, label_info in sorted(info.labels.items())
        for vote in label_info.all
        if vote.value
    )


def rules(info: ChangeInfo) -> tuple[Rule, ...]:
    """Return all requirements, met and unmet. An old server has none; there, only the submit shows what is missing."""
    # Requirements that are met are included, since a new patch set may lose their votes.
    found = [_rule(one, info) for one in info.requirements]
    if info.work_in_progress:
        found.append(Rule("is work in progress: press *Start review*", met=False))
    return tuple(found)


def _rule(one: Requirement, info: ChangeInfo) -> Rule:
    condition = one.description or one.submittability.expression
    text = f"lacks {one.name}{f': {condition[:TEXT_MAX_CHARS]}' if condition else ''}"
    return (
        Rule(text, met=True) if one.is_met else Rule(text, met=False, missing=missing(one, set(info.permitted_labels)))
    )


def missing(one: Requirement, may: set[str]) -> tuple[str, ...]:
    """Return the labels that a requirement waits for and, for its other conditions, the text of its expression. `may`:
    the labels that our account may vote on. If one of several votes suffices, ours is the one that is missing."""
    wrong = dict.fromkeys(_wrong(one))
    labels = {atom: found[1] for atom in wrong if (found := _LABEL.match(atom)) is not None}
    ours = [label for label in labels.values() if label in may]
    if " or " in f" {one.submittability.expression.lower()} " and ours:
        return tuple(dict.fromkeys(ours))
    return tuple(dict.fromkeys(labels.get(atom, atom) for atom in wrong)) or (one.name,)


def _wrong(one: Requirement) -> Iterator[str]:
    """Yield the parts of an expression that make it false: those that fail, and negated ones that hold."""
    failing, passing = set(one.submittability.failing_atoms), set(one.submittability.passing_atoms)
    denied = denied_once = False
    depth: list[bool] = []
    for word in _WORD.findall(one.submittability.expression):
        if word in ("(", "-(", ")"):
            if word == ")":
                denied = depth.pop() if depth else False
            else:
                depth.append(denied)
                # Negations cancel each other: in `-(a OR -b)` a makes it false by holding and b by failing.
                denied ^= denied_once or word == "-("
            denied_once = False
        elif word.upper() in ("AND", "OR"):
            continue
        elif word.upper() == "NOT":
            denied_once = True
        else:
            atom = word.removeprefix("-")
            away = denied ^ denied_once ^ (atom != word)
            denied_once = False
            if atom in (passing if away else failing):
                yield atom
