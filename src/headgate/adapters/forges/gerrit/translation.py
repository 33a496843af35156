"""Translate a change as Gerrit has it into the words that all forges share."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from headgate.adapters.forges.gerrit.entities import ChangeInfo, Related, moment
from headgate.adapters.forges.gerrit.rules import rules
from headgate.adapters.forges.gerrit.server import Server
from headgate.config.forges.facts import Details, ForgeAccount, Vote
from headgate.gate.change import Change, ChangeState, numbered

MESSAGE_MAX_CHARS, FOOTERS_MAX_CHARS = 16_000, 4_000
"""Limits on message and footers; the middle of a longer message is left out, since each change is stored many times."""
PATHS_MAX_CHARS = 100_000
"""Total length of the names of changed files; above it, the list of changed files counts as unknown."""
MAGIC = frozenset({"/COMMIT_MSG", "/MERGE_LIST", "/PATCHSET_LEVEL"})
"""Names of files that Gerrit shows although nobody changed them."""


class GerritMark(NamedTuple):
    """Mark how far the events of a change were reported; as text it is three words."""

    state: str = ""
    """Mark of the change's state, which changes with every event on the change."""
    message: str = ""
    """Id of the last message that was reported."""
    date: str = ""

    @classmethod
    def of(cls, text: str) -> GerritMark:
        return cls(*[*text.split("|", 2), "", "", ""][:3])

    @classmethod
    def after(cls, info: ChangeInfo) -> GerritMark:
        last = info.messages[-1:]
        return cls(info.mark, *((last[0].id, last[0].date) if last else ("", "")))

    def __str__(self) -> str:
        return "|".join(self)


class Stack(NamedTuple):
    """Describe what a revision is built on; `bases` and `stale` are those of `gate.change.Change`."""

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
    message = cut(current.commit.message) if current is not None else info.subject
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


def cut(message: str) -> str:
    """Return a message as it is stored; its footers are at the end."""
    message = message.replace("\0", "\ufffd")
    if len(message) <= MESSAGE_MAX_CHARS:
        return message
    return f"{message[: MESSAGE_MAX_CHARS - FOOTERS_MAX_CHARS]}\n[…]\n{message[-FOOTERS_MAX_CHARS:]}"
