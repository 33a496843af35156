"""The git work of mergers: merge chains, read files, land, report.  Failures of the world are answers."""

from __future__ import annotations

import asyncio
import logging
from collections import OrderedDict
from collections.abc import Mapping
from pathlib import Path
from typing import assert_never
from urllib.parse import quote

from headgate.adapters.git.command import GitError
from headgate.adapters.git.landing import land, report
from headgate.adapters.git.mirror import Conflict, MirrorRepository
from headgate.adapters.git.worktree import work_tree
from headgate.gate.work import (
    CatAnswer,
    CatRequest,
    LandAnswer,
    LandRequest,
    MergeAnswer,
    MergeItem,
    MergerAnswer,
    MergeRequest,
    MergerWork,
    ReportAnswer,
    ReportRequest,
    RepoState,
)
from headgate.ports.checkout import CheckoutError

log = logging.getLogger("headgate.git")

LOOKED_MAX = 300


class GitConnection:
    """Where the repositories of one connection are."""

    def __init__(self, name: str, baseurl: str, canonical_hostname: str = "", *, poll_interval_s: float = 30.0) -> None:
        self.name, self.baseurl = name, baseurl.removeprefix("file://").rstrip("/")
        self.poll_interval_s = poll_interval_s
        self.canonical_hostname = canonical_hostname or self._host() or name

    @property
    def local(self) -> bool:
        return self.baseurl.startswith("/")

    def _host(self) -> str:
        if "://" in self.baseurl:
            return self.baseurl.split("://", 1)[1].split("/")[0].rpartition("@")[2].partition(":")[0]
        if ":" in self.baseurl and not self.local:
            return self.baseurl.partition(":")[0].rpartition("@")[2]
        return ""

    def url(self, project: str) -> str:
        """Of a project by canonical name; locally the repository may end in `.git`."""
        short = project.removeprefix(f"{self.canonical_hostname}/")
        url = f"{self.baseurl}/{short}"
        if self.local and not Path(url).exists() and Path(url + ".git").exists():
            return url + ".git"
        return url


class GitEngine:
    """Does git work in bare copies under `root`; safe to use for many pieces of work at once."""

    def __init__(self, root: Path, connections: Mapping[str, GitConnection]) -> None:
        self._root, self._connections = root, connections
        self._mirrors: dict[str, MirrorRepository] = {}
        self._looked: OrderedDict[tuple[int, str], tuple[RepoState, asyncio.Future[dict[str, str]]]] = OrderedDict()
        """By state (which is kept, so that its identity is its own) and project: the heads it does not name."""

    def mirror(self, project: str, connection: str) -> MirrorRepository:
        known = self._mirrors.get(project)
        if known is None:
            if connection not in self._connections:
                raise GitError(("fetch",), 1, f"the connection {connection!r} is not configured")
            url = self._connections[connection].url(project)
            known = self._mirrors[project] = MirrorRepository(self._root / f"{quote(project, safe='')}.git", url)
        return known

    async def do(self, work: MergerWork) -> MergerAnswer:
        match work:
            case MergeRequest():
                return await self._merge(work)
            case CatRequest():
                return await self._cat(work)
            case LandRequest():
                return await self._land(work)
            case ReportRequest():
                return await self._report(work)
            case _:
                assert_never(work)

    async def _merge(self, work: MergeRequest) -> MergeAnswer:
        connections = {**work.projects, **{item.project: item.connection for item in work.chain}}
        own = work.chain[-1].item if work.chain else ""
        heads: dict[str, dict[str, str]] = {}
        for project, connection in connections.items():
            try:
                heads[project] = await self.mirror(project, connection).fetch()
            except (GitError, OSError) as error:
                blame = next((i.item for i in work.chain if i.project == project), own)
                return MergeAnswer(work.buildset, False, blame, f"{project} cannot be fetched: {error}")
        merged: dict[str, dict[str, str]] = {}
        for item in work.chain:
            why = await self._merge_one(item, heads, merged)
            if why:
                return MergeAnswer(work.buildset, False, item.item, why)
        state = RepoState(work.chain, heads, merged, connections)
        return MergeAnswer(work.buildset, True, state=state, config=self._config(work, state))

    async def _merge_one(
        self, item: MergeItem, heads: dict[str, dict[str, str]], merged: dict[str, dict[str, str]]
    ) -> str:
        """Why not; empty when it was merged."""
        here = merged.setdefault(item.project, {})
        head = here.get(item.branch) or heads[item.project].get(f"refs/heads/{item.branch}")
        if head is None:
            return f"{item.project} has no branch {item.branch}"
        try:
            here[item.branch] = await self.mirror(item.project, item.connection).merge(head, item)
        except Conflict as conflict:
            return f"{item.ref} of {item.project} does not merge into {item.branch}; conflicts in: {conflict}"
        except GitError as error:
            return f"{item.ref} of {item.project} cannot be merged into {item.branch}: {error}"
        return ""

    def _config(self, work: MergeRequest, state: RepoState) -> dict[str, dict[str, dict[str, str]]]:
        found: dict[str, dict[str, dict[str, str]]] = {}
        for project, paths in work.config_paths.items():
            mirror = self.mirror(project, state.connections[project])
            found[project] = {b: mirror.texts(commit, paths) for b, commit in state.merged.get(project, {}).items()}
        return found

    async def _cat(self, work: CatRequest) -> CatAnswer:
        try:
            mirror = self.mirror(work.project, work.connection)
            heads = await mirror.fetch()
            default = await mirror.default_branch()
            names = sorted((r.removeprefix("refs/heads/") for r in heads), key=lambda name: (name != default, name))
            wanted = [name for name in names if not work.branches or name in work.branches]
            branches = {name: heads[f"refs/heads/{name}"] for name in wanted}
            files = {name: mirror.texts(commit, work.paths) for name, commit in branches.items()}
        except (GitError, OSError) as error:
            return CatAnswer(work.project, False, str(error))
        return CatAnswer(work.project, True, branches=branches, files=files)

    async def _land(self, work: LandRequest) -> LandAnswer:
        change = work.change
        try:
            mirror = self.mirror(change.project, change.connection)
            await mirror.fetch()
            expected, commit = await self._replay(work.state, change.project, change.branch)
            if commit != work.commit:
                return LandAnswer(
                    work.buildset, False, error=f"merging again gave {commit}, not the tested {work.commit}"
                )
            moved = await land(mirror, change, expected, commit, work.pipeline, work.note)
            return LandAnswer(work.buildset, not moved, moved=moved)
        except Conflict as conflict:
            return LandAnswer(work.buildset, False, moved=True, error=f"conflicts in {conflict}")
        except (GitError, OSError) as error:
            return LandAnswer(work.buildset, False, error=str(error))

    async def _report(self, work: ReportRequest) -> ReportAnswer:
        change = work.change
        try:
            mirror = self.mirror(change.project, change.connection)
            if not (await self._known(mirror, change.commit)):
                return ReportAnswer(False, f"commit {change.commit} is not in {mirror.url}")
            await report(mirror, change.commit, work.pipeline, work.note)
        except (GitError, OSError) as error:
            return ReportAnswer(False, str(error))
        return ReportAnswer(True)

    async def _known(self, mirror: MirrorRepository, commit: str) -> bool:
        await mirror.ready()
        if not mirror.has(commit):
            await mirror.fetch()
        return mirror.has(commit)

    async def _replay(self, state: RepoState, project: str, branch: str) -> tuple[str, str]:
        """The commit before the last item of this project and branch, and after it: made anew if need be."""
        mirror = self.mirror(project, state.connections[project])
        head = state.heads[project].get(f"refs/heads/{branch}")
        if head is None:
            raise GitError(("merge",), 1, f"{project} has no branch {branch}")
        if not await self._known(mirror, head):
            raise GitError(("merge",), 1, f"commit {head} is no longer in {mirror.url}")
        before = head
        for item in state.chain:
            if item.project == project and item.branch == branch:
                if not await self._known(mirror, item.commit):
                    raise GitError(("merge",), 1, f"commit {item.commit} is no longer in {mirror.url}")
                before, head = head, await mirror.merge(head, item)
        return before, head

    async def checkout(
        self, state: RepoState, project: str, branch: str, dest: Path, *, speculative: bool = True
    ) -> str:
        """See `ports.checkout`."""
        connection = state.connections.get(project) or self._connection_of(project)
        mirror = self.mirror(project, connection)
        try:
            heads = await self._heads(state, project)
            await mirror.ready()
            if speculative and branch in state.merged.get(project, {}):
                _, commit = await self._replay(state, project, branch)
            else:
                commit = heads.get(f"refs/heads/{branch}", "")
            if not commit or not await self._known(mirror, commit):
                raise CheckoutError(f"{project} has no branch {branch}")
            await work_tree(mirror, await self._refs(state, project, speculative), branch, commit, dest)
        except Conflict as conflict:
            raise CheckoutError(f"{project} {branch}: conflicts in {conflict}", conflict=True) from conflict
        except GitError as error:
            raise CheckoutError(f"{project} {branch}: {error}") from error
        return commit

    def _connection_of(self, project: str) -> str:
        found = (c.name for c in self._connections.values() if project.startswith(f"{c.canonical_hostname}/"))
        return next(found, "")

    async def _refs(self, state: RepoState, project: str, speculative: bool) -> dict[str, str]:
        """Branches as they are to be tested; `origin/…` as they were before the item's own change."""
        heads = await self._heads(state, project)
        refs = {f"refs/remotes/origin/{ref.removeprefix('refs/heads/')}": commit for ref, commit in heads.items()}
        own = state.chain[-1].project if state.chain else ""
        for branch in state.merged.get(project, {}) if speculative else ():
            before, after = await self._replay(state, project, branch)
            heads = {**heads, f"refs/heads/{branch}": after}
            is_own = project == own and branch == state.chain[-1].branch
            refs[f"refs/remotes/origin/{branch}"] = before if is_own else after
        return {**refs, **heads}

    async def _heads(self, state: RepoState, project: str) -> Mapping[str, str]:
        """As the state says.  A project it does not name is looked at once, for all builds on this state."""
        if project in state.heads:
            return state.heads[project]
        key = (id(state), project)
        if key not in self._looked:
            connection = state.connections.get(project) or self._connection_of(project)
            self._looked[key] = (state, asyncio.ensure_future(self.mirror(project, connection).fetch()))
            if len(self._looked) > LOOKED_MAX:
                self._looked.popitem(last=False)
        looking = self._looked[key][1]
        try:
            return await asyncio.shield(looking)
        except (GitError, OSError):
            self._looked.pop(key, None)
            raise
