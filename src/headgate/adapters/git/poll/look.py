"""Compare a repository once with its last known state."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Collection, Iterable, Mapping, Set

from msgspec.structs import replace

from headgate.adapters.git.command import GitImpossible
from headgate.adapters.git.mirror import MirrorRepository
from headgate.adapters.git.notes import NOTES, landed_as, read
from headgate.adapters.git.objects import Original, decoded
from headgate.adapters.git.poll import names as ref_names
from headgate.adapters.git.poll.moves import as_it_was, moved_heads, moved_refs, watched
from headgate.adapters.git.series import Stacked, contained, few, files, stacked
from headgate.base.ids import derived
from headgate.gate.state.change import Change, ChangeState, EventKind, TriggerEvent
from headgate.ports.forge import Sighting

log = logging.getLogger("headgate.git")

MESSAGE_MAX_CHARS, FOOTERS_MAX_CHARS = 16_000, 4_000
"""Limits on message and footers; the middle of a longer message is left out."""
OWNER_MAX_CHARS = 200
RECHECKS_MAX = 100
"""Maximum number of rechecks that one poll enqueues; the next poll begins immediately."""
FRESH_MAX = 5_000
"""Maximum number of new proposals in one poll; the next poll begins immediately."""


class Look:
    """Poll a repository once."""

    def __init__(
        self,
        connection: str,
        project: str,
        mirror: MirrorRepository,
        names: ref_names.Names,
        refs: Mapping[str, str],
        known: Mapping[str, ChangeState],
        misfits: ref_names.Misfits,
    ) -> None:
        """Prepare a poll; `known` has the change states of this project."""
        self._connection, self._project, self._mirror, self._names = connection, project, mirror, names
        self._refs, self._known, self.misfits = refs, known, misfits
        self._heads = {ref: commit for ref, commit in refs.items() if ref.startswith(ref_names.HEADS)}
        self._proposed: dict[str, tuple[str, str]] = {}
        """Ref below refs/for -> branch and topic, for refs that propose a change."""
        self._change_states: list[ChangeState] = []
        self._events: list[TriggerEvent] = []
        self.doubts: set[tuple[str, str]] = set()
        """Key and commit of changes that are reported as landed but still proposed, which need another poll."""
        self._stacked: dict[str, Stacked] = {}
        """Key of a proposal whose branch's history was read -> the changes that it is built on."""
        self._statements = ref_names.RefStatements(refs, int(time.time() * 1000))
        self.answered: dict[str, str] = {}
        """Refs that requested a recheck and whose event is recorded -> their commits."""
        self.orphans: dict[str, str] = {}
        """Refs that approve something that is not proposed -> their commits."""
        self.late = False
        """Whether to poll again, because something moved in the meantime or could not be read."""
        self.more = False
        """Whether to poll again immediately, because there is more than one poll handles."""

    async def compare(
        self,
        old_heads: Mapping[str, str] | None,
        seen: Mapping[str, str] | None,
        doubted: set[tuple[str, str]],
        answered: Mapping[str, str],
    ) -> Sighting | None:
        """Return the news; None if there are none. `seen`: earlier commits of refs that are not branches; `answered`:
        as returned by earlier polls. Raise GitError, OSError."""
        fresh = await asyncio.to_thread(self._name)
        old = old_heads or {}
        moved_heads = {ref: commit for ref, commit in self._heads.items() if old.get(ref) != commit}
        # Fetch everything that is new together; each separate fetch would need another process and connection.
        gone = await self._mirror.bring(
            {**{ref_names.FOR + name: self._refs[ref_names.FOR + name] for name in fresh}, **moved_heads}
        )
        self._note_unfetched(gone, old)
        fresh = [name for name in fresh if self._refs[ref_names.FOR + name] not in gone and self._has_head(name)]
        fresh = await self._not_landed(fresh, doubted)
        await self._closed()
        # This precedes `_describe`, which writes the bases found here into the new changes.
        await self._graph(fresh, moved_heads)
        described = await self._describe(fresh)
        await asyncio.to_thread(self._changes, described)
        self._again(answered)
        self._statements.lost(self._proposed, self.misfits)
        now = (*self._known.values(), *self._change_states)
        self.orphans = ref_names.orphans(self._refs, self._project, self._names, now, self.misfits)
        moved = old_heads is None or dict(old_heads) != self._heads
        if old_heads is not None and moved:
            await self._branches(old_heads)
        others = await asyncio.to_thread(self._others, seen)
        if not (self._change_states or self._events or moved or others is not None):
            return None
        heads = {self._project: self._heads} if moved else {}
        refs = {self._project: others} if others is not None else {}
        return Sighting(
            tuple(self._change_states), tuple(self._events), heads, refs, {self._project: self._lingering()}
        )

    def _others(self, seen: Mapping[str, str] | None) -> dict[str, str] | None:
        """Return the tags and other refs that moved, or None if none did."""
        found = moved_refs(self._connection, self._project, seen, watched(self._refs, self.misfits))
        if found is None:
            return None
        self.more = self.more or found.more
        for change in found.updates:
            self._tell(EventKind.REF_UPDATED, change, change.old_commit)
        return found.now

    def _note_unfetched(self, gone: Set[str], old: Mapping[str, str]) -> None:
        """Note which commits could not be fetched; an affected branch keeps its last known state."""
        self.late = self.late or bool(gone)
        for ref in [ref for ref, commit in self._heads.items() if commit in gone]:
            as_it_was(old, ref, self._heads)
        for ref, commit in self._refs.items() if gone else ():
            if commit in gone and (why := self._mirror.refusals.why(commit)):
                self.misfits.add(ref, f"its commit cannot be fetched: {why}")

    def _lingering(self) -> frozenset[str]:
        known = ((key, self._known.get(key)) for key in map(self._key, self._proposed))
        return frozenset(key for key, change_state in known if change_state is not None and not change_state.open)

    # --- proposals

    def _name(self) -> list[str]:
        """Return the names of new changes, as many as one poll covers."""
        for ref in self._refs:
            if not ref.startswith(ref_names.FOR):
                continue
            name = ref.removeprefix(ref_names.FOR)
            if why := self._names.misfit(self._project, name):
                self.misfits.add(ref, why)
            else:
                self._proposed[name] = self._names.split(self._project, name)
        fresh = [name for name in self._proposed if not self._is_known(name)]
        if len(fresh) > FRESH_MAX:
            self.more = True
            for name in fresh[FRESH_MAX:]:
                if self._known.get(self._key(name)) is None:
                    del self._proposed[name]
        return fresh[:FRESH_MAX]

    def _head(self, name: str) -> str:
        return self._heads[ref_names.HEADS + self._proposed[name][0]]

    def _has_head(self, name: str) -> bool:
        return ref_names.HEADS + self._proposed[name][0] in self._heads

    def _key(self, name: str) -> str:
        branch, topic = self._proposed[name]
        return f"{self._project}/{branch}/{topic}"

    def _is_known(self, name: str) -> bool:
        known = self._known.get(self._key(name))
        if known is None or not known.open or known.change.branch != self._proposed[name][0]:
            return False
        return known.change.commit == self._refs[ref_names.FOR + name]

    async def _not_landed(self, fresh: list[str], doubted: set[tuple[str, str]]) -> list[str]:
        """Return the changes without those that have landed and whose refs only wait to be deleted: the listing is
        older than the known state, or the remote refuses the deletion. A change that is still proposed at the next poll
        counts as proposed again."""
        found = []
        for name in fresh:
            key, commit = self._key(name), self._refs[ref_names.FOR + name]
            known = self._known.get(key)
            if known is None or not known.landed or known.change.commit != commit:
                found.append(name)
            elif await self._landed_in([known.change], self._head(name)):
                continue
            elif (key, commit) in doubted:
                found.append(name)
            else:
                # The branch was reset, or the listing is older than the landing; only another poll can tell which.
                self.doubts.add((key, commit))
                self.late = True
        return found

    async def _graph(self, fresh: Collection[str], moved_heads: Collection[str]) -> None:
        """Determine how the proposals for each branch depend on each other, if that may have changed. Raise
        GitError."""
        open_ = {name for name in self._proposed if self._has_head(name) and self._is_known(name)} | set(fresh)
        stirred = {self._proposed[name][0] for name in fresh} | {
            ref.removeprefix(ref_names.HEADS) for ref in moved_heads
        }
        stirred |= {s.change.branch for s in self._known.values() if s.open and s.change.ref not in self._refs}
        known = {**self._known, **{s.change.key: s for s in self._change_states}}
        for branch in stirred:
            tips = {
                self._key(name): self._refs[ref_names.FOR + name] for name in open_ if self._proposed[name][0] == branch
            }
            absent = await self._mirror.missing(tips.values())
            tips = {key: tip for key, tip in tips.items() if tip not in absent}
            if tips:
                changes = {key: one for key, one in known.items() if one.change.branch == branch}
                self._stacked |= await stacked(
                    self._mirror, self._heads[ref_names.HEADS + branch], tips, changes, self._refs
                )

    async def _describe(self, fresh: list[str]) -> dict[str, Change]:
        paths: dict[tuple[str, str], tuple[str, ...] | None] = {}
        for head in {self._head(name) for name in fresh}:
            commits = {self._refs[ref_names.FOR + name] for name in fresh if self._head(name) == head}
            found = await files(self._mirror, head, commits)
            paths |= {(head, commit): changed for commit, changed in found.items()}

        def all_of_them() -> dict[str, Change]:
            return {
                name: self._described(name, paths[self._head(name), self._refs[ref_names.FOR + name]]) for name in fresh
            }

        return await asyncio.to_thread(all_of_them)

    def _described(self, name: str, paths: tuple[str, ...] | None) -> Change:
        """Describe the change. If its commit is missing or damaged, only name it, so that the merge fails and the
        author learns the reason."""
        commit = self._refs[ref_names.FOR + name]
        branch, topic = self._proposed[name]
        try:
            original = self._mirror.parts(commit).original
        except GitImpossible:
            original = Original(b"", b"", b"")
        message = _cut(decoded(original, original.message).replace("\0", "\ufffd"))
        needs, unresolved = self._names.needs(message)
        bases = self._stacked.get(self._key(name), Stacked()).bases
        return Change(
            connection=self._connection,
            project=self._project,
            branch=branch,
            topic=topic,
            commit=commit,
            ref=ref_names.FOR + name,
            message=message,
            owner=_owner(decoded(original, original.author)),
            files=few(paths),
            needs=tuple(dict.fromkeys((*bases, *needs))),
            bases=bases,
            unresolved=unresolved,
        )

    def _changes(self, described: Mapping[str, Change]) -> None:
        for name in self._proposed:
            self._change(name, described.get(name))

    def _change(self, name: str, described: Change | None) -> None:
        known, approved = self._known.get(self._key(name)), self._refs.get(ref_names.APPROVED + name, "")
        arrived = self._stacked.get(self._key(name), Stacked()).arrived
        statements = self._statements.of(name, self._refs[ref_names.FOR + name], known)
        if described is None:
            # Its commit could not be fetched, or it has landed and its ref still exists.
            if known is None or not self._is_known(name):
                return
            described = self._with_needs(name, known.change)
            same_words = (known.approvals, known.vetoes, known.proposers) == statements
            if (known.change, known.approved) == (described, approved) and same_words and not arrived:
                return
            same = known
        else:
            same = None
            before, fresh = known.change.commit if known else "", known is None or not known.open
            self._tell(EventKind.PROPOSED, described, before, fresh=fresh)
        now = ChangeState(described, not arrived, approved, arrived, "", *statements)
        self._change_states.append(now)
        if arrived and known is not None and known.open:
            self._tell(EventKind.MERGED, described, described.commit)
        approved_before = same is not None and same.is_approved
        if (now.is_approved and not approved_before) or ref_names.gained(now, same):
            self._tell(EventKind.APPROVED, described, "")

    def _again(self, answered: Mapping[str, str]) -> None:
        """Report changes for which a recheck was requested as if they were new, so that pipelines handle them the
        same way.
        """
        now = {s.change.key: s for s in (*self._known.values(), *self._change_states)}
        reported = {event.change.key for event in self._events if event.kind is EventKind.PROPOSED}
        for ref, commit in self._refs.items():
            name = ref.removeprefix(ref_names.RECHECK)
            if name == ref or answered.get(ref) == commit:
                continue
            change_state = now.get(self._key(name)) if name in self._proposed else None
            if change_state is None or not change_state.open:
                self.misfits.add(
                    ref, f"there is no such change to test again; propose it: push to {ref_names.FOR}{name}"
                )
                continue
            if len(self.answered) >= RECHECKS_MAX:
                self.more = True
                return
            self.answered[ref] = commit
            if change_state.change.key not in reported:
                self._tell(EventKind.PROPOSED, change_state.change, ref)
                if change_state.is_approved:
                    self._tell(EventKind.APPROVED, change_state.change, ref)

    def _with_needs(self, name: str, change: Change) -> Change:
        """Add the changes that the change is built on, and those that its footers name, given the current branches."""
        bases, stale, _ = self._stacked.get(change.key, Stacked(change.bases, change.stale))
        if not change.needs and not change.unresolved and not bases:
            return change
        needs, unresolved = self._names.needs(change.message)
        needs = tuple(dict.fromkeys((*bases, *needs)))
        return replace(change, needs=needs, bases=bases, stale=stale, unresolved=unresolved)

    # --- refs that are gone

    async def _closed(self) -> None:
        """Close changes whose ref is gone: as landed if their branch contains them, otherwise as abandoned. Close
        changes whose branch is gone, too; if it returns, they count as proposed again."""
        refs = {ref_names.FOR + name for name in self._proposed}
        gone = [s.change for s in self._known.values() if s.open and s.change.ref not in refs]
        landed: set[str] = set()
        for ref, head in self._heads.items():
            candidates = [change for change in gone if ref_names.HEADS + change.branch == ref]
            landed |= await self._landed_in(candidates, head)
        for change in gone:
            if change.ref in self._refs and change.key not in landed:
                reason = f"the branch {change.branch} of {change.project} was deleted"
                self._change_states.append(ChangeState(change, open=False, reason=reason))
                continue
            self._change_states.append(ChangeState(change, open=False, landed=change.key in landed))
            kind = EventKind.MERGED if change.key in landed else EventKind.ABANDONED
            self._tell(kind, change, change.commit)
        for change_state in self._known.values():
            # The gate has recorded the landing, but its event is still due: one commit reports it and clears the mark.
            if change_state.untold:
                self._change_states.append(replace(change_state, untold=False))
                self._tell(EventKind.MERGED, change_state.change, change_state.change.commit)

    async def _landed_in(self, candidates: Iterable[Change], head: str) -> set[str]:
        """Return the keys of the changes that `head` contains, possibly as another commit."""
        candidates = list(candidates)
        if not candidates:
            return set()
        gone = await self._mirror.missing([head, *(change.commit for change in candidates)])
        if head in gone:
            return set()
        present = [change.commit for change in candidates if change.commit not in gone]
        has = await contained(self._mirror, head, present)
        found = {change.key for change in candidates if change.commit in has}
        rest = [change for change in candidates if change.key not in found]
        if rest and NOTES in self._refs:
            notes = await read(self._mirror, self._refs[NOTES], [change.commit for change in rest])
            as_commits = {c.key: landed_as(notes.get(c.commit, ""), c.branch) for c in rest}
            landed = set(as_commits.values()) - {""}
            has = await contained(self._mirror, head, landed - await self._mirror.missing(landed))
            # The note alone proves nothing, since others may push notes: the branch must contain the commit that it
            # names.
            found |= {key for key, commit in as_commits.items() if commit in has}
        return found

    async def _branches(self, old: Mapping[str, str]) -> None:
        found = await moved_heads(self._connection, self._project, self._mirror, old, self._heads)
        self._heads, self.more = found.now, self.more or found.more
        for change in found.updates:
            self._tell(EventKind.REF_UPDATED, change, change.old_commit)

    def _tell(self, kind: EventKind, change: Change, before: str, *, fresh: bool = False) -> None:
        at_ms = int(time.time() * 1000)
        # The id contains the time, since withdrawing a change and proposing it again at the same commit is a new event.
        id = derived(kind, self._project, change.ref, before, change.commit, str(at_ms))
        self._events.append(TriggerEvent(kind, change, id, at_ms, fresh))


def _owner(author: str) -> str:
    """Return the name and address of an author in printable form."""
    shown = "".join(c if c.isprintable() else "\ufffd" for c in author)
    name, end, _ = shown.rpartition(">")
    return (name + end)[-OWNER_MAX_CHARS:]


def _cut(message: str) -> str:
    """Shorten a message, because it is stored many times; keep the footers at its end."""
    if len(message) <= MESSAGE_MAX_CHARS:
        return message
    return f"{message[: MESSAGE_MAX_CHARS - FOOTERS_MAX_CHARS]}\n[…]\n{message[-FOOTERS_MAX_CHARS:]}"
