"""Do the git work of mergers: merge chains, read files, land, report. An answer reports a failure of the work."""

from __future__ import annotations

import asyncio
import logging
from collections import OrderedDict
from collections.abc import Collection, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import NamedTuple, assert_never
from urllib.parse import quote

import pygit2
from msgspec.structs import replace

from headgate.adapters.git import chains
from headgate.adapters.git.command import GitError, GitImpossible, RemoteError
from headgate.adapters.git.connection import GitConnection
from headgate.adapters.git.merge import MergeConflict
from headgate.adapters.git.mirror import MirrorRepository
from headgate.adapters.git.objects import IDENTITY, bound_packs
from headgate.adapters.git.push import PushRefused, Shut, land, refusal, report, tried
from headgate.adapters.git.refstate import noted, peeled, ref_state
from headgate.adapters.git.remote import HEADS, Remote
from headgate.adapters.git.reviewer import Reviewer
from headgate.adapters.git.series import changes
from headgate.adapters.git.worktree import work_tree
from headgate.gate.rules.refs import section
from headgate.gate.state import works
from headgate.gate.state.gitwork import MergeItem, PatchRequest, RemarksRequest, ReviewRequest, SayRequest, Trees
from headgate.ports.work import CheckedOut, CheckoutError, Unreachable

log = logging.getLogger("headgate.git")

LOOKED_MAX = 300
MERGES_MAX = 8
"""Concurrent merges; more would only wait for the processors. A slow merge gives its place back."""
REST_MAX_S = 600.0
"""How long to retry if a repository refuses its part of a landing whose other parts have landed."""
OPEN_MAX = 100
"""Maximum number of repositories that stay open."""
_FAILURES = (GitError, OSError, pygit2.GitError)
"""Errors of git and of the machine: except after GitImpossible, the same work may succeed later."""


class _Step(NamedTuple):
    """Represent the merge of one change into its branch: the commits before and after it."""

    change: MergeItem
    before: str
    after: str


class GitEngine:
    """Do git work in bare copies under `root`. Several requests may run concurrently."""

    def __init__(self, root: Path, connections: Mapping[str, GitConnection], who: bytes = IDENTITY) -> None:
        """Set up the engine; `who` is the committer, which must be the same in every process, as it affects the
        commits' ids."""
        self._root, self._connections, self._who = root, connections, who
        self._mirrors: dict[str, MirrorRepository] = {}
        self._open: OrderedDict[str, MirrorRepository] = OrderedDict()
        """The most recently used repositories, the latest use last."""
        self._merging = asyncio.Semaphore(MERGES_MAX)
        self._reviewer = Reviewer(self.mirror)
        bound_packs()
        self._looked: OrderedDict[tuple[int, str], tuple[works.RepoState, asyncio.Future[dict[str, str]]]] = (
            OrderedDict()
        )
        """(`id()` of the state, project) -> heads that the state lacks; the entry references the state, so that its
        `id()` stays unique."""

    def mirror(self, project: str, connection: str) -> MirrorRepository:
        """Return the bare copy of a project. Raise GitError if the connection is not configured."""
        if connection not in self._connections:
            raise GitError(("fetch",), 1, f"the connection {connection!r} is not configured")
        known = self._mirrors.get(project)
        if known is None:
            path = self._root / f"{quote(project, safe='')}.git"
            at = self._connections[connection]
            access = partial(at.access, project) if at.access is not None else None
            forget = partial(at.forget, project) if at.forget is not None else None
            remote = Remote("", at.talks, access, forget)
            known = self._mirrors[project] = MirrorRepository(path, remote, self._who, self._merging)
        self._open[project] = known
        self._open.move_to_end(project)
        # Open repositories take descriptors and memory, so the least recently used one is closed.
        if len(self._open) > OPEN_MAX:
            self._open.popitem(last=False)[1].rest()
        known.remote.move(self._connections[connection].url(project))
        return known

    async def do(self, work: works.MergerWork) -> works.MergerAnswer:
        """Do one piece of git work; see `ports.work.GitWork`."""
        match work:
            case works.MergeRequest():
                return await self._merge(work)
            case works.CatRequest():
                return await self._cat(work)
            case works.LandRequest():
                return await self._land(work)
            case works.ReportRequest():
                return await self._report(work)
            case ReviewRequest() | PatchRequest() | RemarksRequest() | SayRequest():
                return await self._reviewer.do(work)
            case _:
                assert_never(work)

    async def _merge(self, work: works.MergeRequest) -> works.MergeAnswer:
        connections = {**work.projects, **{item.project: item.connection for item in work.chain}}
        own = work.chain[-1].item if work.chain else ""  # blamed for errors that are no other item's fault
        heads: dict[str, dict[str, str]] = {}
        for project, connection in connections.items():
            try:
                heads[project] = await self._now(project, connection, work.chain)
            except _FAILURES as error:
                blame = next((i.item for i in work.chain if i.project == project), own)
                answer = works.MergeAnswer(work.buildset, False, blame, f"{project} cannot be fetched: {error}")
                raise _later(project, error, answer) from error
        branches: tuple[str, ...] = ()
        if (at := work.at) is not None:
            try:
                mirror = self.mirror(at.project, at.connection)
                heads[at.project], branches = await ref_state(mirror, at, heads[at.project])
            # Another attempt would have the same result, so this is an answer.
            except GitImpossible as error:
                return works.MergeAnswer(work.buildset, False, at.item, error.message)
            except _FAILURES as error:
                answer = works.MergeAnswer(work.buildset, False, at.item, f"{at.ref} of {at.project}: {error}")
                raise _later(at.project, error, answer) from error
        merged: dict[str, dict[str, str]] = {}
        steps = list[_Step]()
        for item in work.chain:
            before = merged.get(item.project, {}).get(item.branch) or heads[item.project].get(HEADS + item.branch) or ""
            try:
                why = await self._merge_one(item, before, merged)
            except _FAILURES as error:
                answer = works.MergeAnswer(work.buildset, False, item.item, _unmerged(item, error))
                raise _later(item.project, error, answer) from error
            if why:
                return works.MergeAnswer(work.buildset, False, item.item, why)
            # Of a ref, or of a change that has landed, nothing is merged: the chain ends with an item ahead.
            if item.item == own and work.at is None and not work.landed:
                steps.append(_Step(item, before, merged[item.project][item.branch]))
        state = works.RepoState(work.chain, heads, merged, connections, work.landed, branches)
        return await self._completed(work, state, steps, own)

    async def _completed(
        self, work: works.MergeRequest, state: works.RepoState, steps: Sequence[_Step], own: str
    ) -> works.MergeAnswer:
        """Return the answer for a merged chain, with its trees and its configuration; `steps` are the merges of the
        item's own changes. Raise Unreachable."""
        trees, config, project = dict[str, dict[str, str]](), dict[str, dict[str, dict[str, str]]](), ""
        touched, bases = list[tuple[str, ...] | None](), dict[str, dict[str, str]]()
        try:
            for change, before, after in steps:
                project, pair = change.project, (after, before)
                # Git applies an edit of a file that the branch has renamed to the new path, so these paths need not be
                # those of the change.
                found = await changes(self.mirror(project, change.connection), [pair])
                touched.append(found.get(pair, ()))
                # The tree beneath the item's own change is an input of jobs with `reuse`.
                if project in work.given:
                    bases.setdefault(project, {}).setdefault(change.branch, before)
            for project, commits in state.merged.items():
                trees[project] = await chains.trees_of(self.mirror(project, state.connections[project]), commits)
            known = await self._known(work, state.heads, bases)
            connections = {project: work.given.get(project) or state.connections[project] for project in state.heads}
            state = replace(state, connections=connections, trees=trees, known=known)
            for project in work.config_paths:
                mirror = self.mirror(project, connections[project])
                config[project] = await chains.configuration(mirror, work, state, project)
        except _FAILURES as error:
            answer = works.MergeAnswer(work.buildset, False, own, f"{project}: {error}")
            if isinstance(error, GitImpossible):
                return answer
            raise _later(project, error, answer) from error
        return works.MergeAnswer(work.buildset, True, state=state, config=config, touched=tuple(touched))

    async def _known(
        self, work: works.MergeRequest, heads: dict[str, dict[str, str]], bases: dict[str, dict[str, str]]
    ) -> Trees:
        """Return the trees of the `given` projects, after adding heads that are not known yet. Projects that cannot be
        fetched are left out."""
        absent = [project for project in work.given if project not in heads]
        # These trees only help to reuse results, so a project that cannot be fetched must not fail the merge.
        looks = (self._now(project, work.given[project], ()) for project in absent)
        for project, found in zip(absent, await asyncio.gather(*looks, return_exceptions=True), strict=True):
            if isinstance(found, dict):
                heads[project] = found
            elif not isinstance(found, _FAILURES):
                raise found
        mirrors = {p: self.mirror(p, connection) for p, connection in work.given.items() if p in heads}
        return await chains.known_trees(mirrors, heads, bases)

    async def _now(self, project: str, connection: str, chain: tuple[MergeItem, ...]) -> dict[str, str]:
        """Fetch the project's branches, and the chain's changes as far as possible; return branch ref -> commit."""
        mirror = self.mirror(project, connection)
        heads = await mirror.remote.heads()
        changes = {item.ref: item.commit for item in chain if item.project == project}
        moved = await mirror.bring({**heads, **changes})
        # Make one more attempt; after that, merging into the affected branch reports the problem.
        if moved & set(heads.values()):
            heads = await mirror.remote.heads()
            await mirror.bring(heads)
        return heads

    async def _merge_one(self, item: MergeItem, head: str, merged: dict[str, dict[str, str]]) -> str:
        """Merge the item into its branch, which is at `head`; return the reason if that is impossible, otherwise "".
        Raise GitError, OSError."""
        if not head:
            return f"{item.project} has no branch {item.branch}"
        mirror = self.mirror(item.project, item.connection)
        await chains.check_present(mirror, head, item)
        try:
            merged.setdefault(item.project, {})[item.branch] = await mirror.merge(head, item)
        except MergeConflict as conflict:
            return f"{item.ref} of {item.project} does not merge into {item.branch}; conflicts in: {conflict}"
        except GitImpossible as error:
            return _unmerged(item, error)
        return ""

    async def _cat(self, work: works.CatRequest) -> works.CatAnswer:
        try:
            mirror = self.mirror(work.project, work.connection)
            heads = await self._now(work.project, work.connection, ())
            default = await mirror.remote.default_branch()
            names = sorted((r.removeprefix("refs/heads/") for r in heads), key=lambda name: (name != default, name))
            wanted = [name for name in names if not work.branches or name in work.branches]
            branches = {name: heads[f"refs/heads/{name}"] for name in wanted}
            files = {name: await mirror.texts(commit, work.paths) for name, commit in branches.items()}
        except _FAILURES as error:
            return works.CatAnswer(work.project, False, str(error))
        return works.CatAnswer(work.project, True, branches=branches, files=files)

    async def _land(self, work: works.LandRequest) -> works.LandAnswer:
        project = work.change.project
        own = project if work.later or work.rest else ""
        try:
            mirror, bases = await self._bases(work.state, work.parts)
            later = [] if mirror is None or work.shut or work.withheld else _by_project(work.later)
            for parts in later:  # find refusals before the first part lands
                project = parts[0].change.project
                other, later_bases = await self._bases(work.state, parts)
                if other is not None and await tried(other, parts, later_bases):
                    return works.LandAnswer(work.buildset, False, moved=True, project=own)
            project = work.change.project
            repository = mirror or self.mirror(project, work.change.connection)
            moved = await land(repository, work, bases)
            return works.LandAnswer(work.buildset, not moved, moved=moved, project=own)
        except Shut:
            return works.LandAnswer(work.buildset, False, shut=True, project=own)
        except _FAILURES as error:
            answer = works.LandAnswer(work.buildset, False, error=refusal(project, error, work), project=own)
            if work.rest and isinstance(error, PushRefused):  # half of a circular dependency must not stay landed alone
                problem = f"refuses a change that belongs together with changes that have landed: {error}"
                raise Unreachable(project, problem, answer, max_s=REST_MAX_S) from error
            if isinstance(error, GitImpossible):
                return answer
            raise _later(project, error, answer) from error

    async def _bases(
        self, state: works.RepoState, parts: Sequence[works.Landing]
    ) -> tuple[MirrorRepository | None, dict[str, str]]:
        """Return the repository of these parts (None if all have landed), and branch -> commit at which it must be for
        its part to land ("" if the part has landed or the branch has moved)."""
        change = parts[0].change
        mirror = self.mirror(change.project, change.connection)
        branches = {f"refs/heads/{part.change.branch}": part.commit for part in parts}
        heads = await mirror.remote.refs(*branches)
        await mirror.bring({**heads, **{part.change.ref: part.change.commit for part in parts}})
        bases, landed = dict[str, str](), True
        for branch, commit in branches.items():
            head = heads.get(branch, "")
            has = bool(head) and mirror.has(commit) and await mirror.contains(head, commit)
            bases[branch] = "" if has else await chains.expected(mirror, state, change.project, branch, commit, head)
            landed = landed and has
        return None if landed else mirror, bases

    async def _report(self, work: works.ReportRequest) -> works.ReportAnswer:
        change = work.change
        try:
            mirror = self.mirror(change.project, change.connection)
            commit = change.old_commit if change.deletes else change.commit
            if await mirror.bring({change.ref: commit}) and not work.landed:  # the ref of a landed change is gone
                return works.ReportAnswer(False, f"commit {commit} is not in {mirror.remote.url}")
            if not change.is_change:
                commit = await asyncio.to_thread(noted, mirror, commit)
            await report(mirror, work, commit, section(work.pipeline, change))
        except _FAILURES as error:
            if isinstance(error, GitImpossible):
                return works.ReportAnswer(False, str(error), refused=True)
            raise _later(change.project, error, works.ReportAnswer(False, str(error))) from error
        return works.ReportAnswer(True)

    async def branches(self, state: works.RepoState, project: str) -> Collection[str]:
        """Return the names of a project's branches; see `ports.work`."""
        try:
            heads = await self._heads(state, project)
        except _FAILURES as error:
            raise CheckoutError(f"{project}: {error}") from error
        return {ref.removeprefix("refs/heads/") for ref in heads} | set(state.merged.get(project, {}))

    async def checkout(
        self,
        state: works.RepoState,
        project: str,
        branch: str,
        dest: Path,
        *,
        speculative: bool = True,
        files: bool = True,
    ) -> CheckedOut:
        """Check out a branch of a state; see `ports.work`."""
        connection = state.connections.get(project) or self._connection_of(project)
        try:
            mirror = self.mirror(project, connection)
            heads = await self._heads(state, project)
            wanted = state.merged.get(project, {}).get(branch) if speculative else None
            if wanted is not None:
                _, commit = await chains.replay(mirror, state, project, branch)
            else:
                ref = branch if branch in heads else f"refs/heads/{branch}"
                commit = heads.get(ref, "")
            if not commit or not await chains.brought(mirror, heads, commit):
                raise CheckoutError(f"{project} has no branch {branch}")
            if branch in heads:
                commit = peeled(mirror, commit, branch)
            if wanted not in (None, commit):  # builds must test exactly what the gate will land
                raise CheckoutError(f"{project} {branch}: merging again gave {commit}, not {wanted}")
            refs = await self._refs(state, project, speculative)
            shared = await work_tree(mirror, refs, branch, commit, dest, files=files)
        except MergeConflict as conflict:
            raise CheckoutError(f"{project} {branch}: conflicts in {conflict}", conflict=True) from conflict
        except (GitError, pygit2.GitError, chains.LostCommit) as error:
            raise CheckoutError(f"{project} {branch}: {error}") from error
        return CheckedOut(commit, (shared,))

    def _connection_of(self, project: str) -> str:
        found = (c.name for c in self._connections.values() if project.startswith(f"{c.canonical_hostname}/"))
        return next(found, "")

    async def _refs(self, state: works.RepoState, project: str, speculative: bool) -> dict[str, str]:
        """Return ref -> commit: the branches to test, and below `origin/` the same without the item's own change."""
        heads = await self._heads(state, project)
        refs = {f"refs/remotes/origin/{r.removeprefix(HEADS)}": c for r, c in heads.items() if r.startswith(HEADS)}
        own = {(one.project, one.branch) for one in state.chain if one.item == state.chain[-1].item}
        for branch in state.merged.get(project, {}) if speculative else ():
            mirror = self.mirror(project, state.connections[project])
            before, after = await chains.replay(mirror, state, project, branch)
            heads = {**heads, f"refs/heads/{branch}": after}
            refs[f"refs/remotes/origin/{branch}"] = before if (project, branch) in own else after
        return {**refs, **heads}

    async def _heads(self, state: works.RepoState, project: str) -> Mapping[str, str]:
        """Return the heads in the state; look up a project that the state lacks once, for all builds on this state."""
        if project in state.heads:
            return state.heads[project]
        key = (id(state), project)
        if key not in self._looked:
            connection = state.connections.get(project) or self._connection_of(project)
            self._looked[key] = (state, asyncio.ensure_future(self._now(project, connection, ())))
            if len(self._looked) > LOOKED_MAX:
                self._looked.popitem(last=False)
        reading = self._looked[key][1]
        try:
            return await asyncio.shield(reading)  # other builds wait for the same answer, so do not cancel it
        except _FAILURES:
            self._looked.pop(key, None)  # so that the next build tries again
            raise


def _by_project(parts: Sequence[works.Landing]) -> list[list[works.Landing]]:
    found: dict[str, list[works.Landing]] = {}
    for part in parts:
        found.setdefault(part.change.project, []).append(part)
    return list(found.values())


def _unmerged(item: MergeItem, error: Exception) -> str:
    return f"{item.ref} of {item.project} cannot be merged into {item.branch}: {error}"


def _later(project: str, error: Exception, answer: works.MergerAnswer) -> Unreachable:
    state = "cannot be reached" if isinstance(error, RemoteError) else "cannot be processed here"
    return Unreachable(project, f"{state}: {error}", answer)
