"""A connection to plain git: changes are refs, and whoever pushes them proposes, approves, abandons."""

from __future__ import annotations

import asyncio
import logging
import re
import time
from collections.abc import AsyncIterator, Mapping
from pathlib import Path

from watchfiles import awatch

from headgate.adapters.git.command import GitError, git
from headgate.adapters.git.engine import GitConnection, GitEngine
from headgate.adapters.git.landing import NOTES, landed_line
from headgate.adapters.git.mirror import MirrorRepository
from headgate.base.ids import derived
from headgate.config.tenants import TenantProject
from headgate.gate.change import Change, EventKind, Standing, TriggerEvent
from headgate.ports.git import Sighting

log = logging.getLogger("headgate.git")

RETRY_MAX_S = 30.0
ZEROS = "0" * 40
_DEPENDS = re.compile(r"^Depends-On:\s*(\S+)\s*$", re.IGNORECASE | re.MULTILINE)
_FOR, _APPROVED, _HEADS = "refs/for/", "refs/approved/", "refs/heads/"


class GitForge:
    """See `ports.git.Forge`."""

    def __init__(self, connection: GitConnection, engine: GitEngine, projects: Mapping[str, TenantProject]) -> None:
        self.name = connection.name
        self._connection, self._engine = connection, engine
        self._projects = dict(projects)
        self._heads: dict[str, dict[str, str]] = {}

    async def sightings(
        self, known: Mapping[str, Standing], heads: Mapping[str, Mapping[str, str]]
    ) -> AsyncIterator[Sighting]:
        """One look at each project after the other, then at those that stir."""
        stirred = {project: asyncio.Event() for project in self._projects}
        wake = asyncio.Event()
        watchers = [asyncio.ensure_future(self._watch(p, stirred[p], wake)) for p in self._projects]
        try:
            await asyncio.sleep(0)  # the watchers watch before the first look
            for event in stirred.values():
                event.set()
            while True:
                wake.clear()
                for project, event in stirred.items():
                    if not event.is_set():
                        continue
                    event.clear()
                    sighting = await self._look(project, known, heads.get(project), event, wake)
                    if sighting is not None:
                        yield sighting
                await wake.wait()
        finally:
            for watcher in watchers:
                watcher.cancel()
            await asyncio.gather(*watchers, return_exceptions=True)

    async def _watch(self, project: str, stirred: asyncio.Event, wake: asyncio.Event) -> None:
        """A local repository tells when its refs change; a remote one is looked at again after the interval."""
        git_dir = self._git_dir(project)
        if git_dir is None:
            while True:
                await asyncio.sleep(self._connection.poll_interval_s)
                stirred.set()
                wake.set()
        async for _ in awatch(git_dir, recursive=True, step=5, debounce=30, watch_filter=_about_refs):
            stirred.set()
            wake.set()

    def _git_dir(self, project: str) -> Path | None:
        if not self._connection.local:
            return None
        path = Path(self._connection.url(project))
        for candidate in (path / ".git", path):
            if (candidate / "HEAD").exists():
                return candidate
        return None

    async def _look(
        self,
        project: str,
        known: Mapping[str, Standing],
        heads: Mapping[str, str] | None,
        stirred: asyncio.Event,
        wake: asyncio.Event,
    ) -> Sighting | None:
        mirror = self._engine.mirror(project, self.name)
        try:
            await mirror.ready()
            _, out = await git("ls-remote", "origin", at=mirror.path)
            refs = {ref: commit for commit, ref in (line.split("\t", 1) for line in out.splitlines())}
            look = _Look(self, project, mirror, refs, {k: s for k, s in known.items() if s.change.project == project})
            return await look.compare(heads)
        except (GitError, OSError) as error:
            wait_s = min(self._connection.poll_interval_s, RETRY_MAX_S)
            log.error("%s cannot be read, looking again in %.0f s: %s", project, wait_s, error)
            loop = asyncio.get_running_loop()
            loop.call_later(wait_s, stirred.set)
            loop.call_later(wait_s, wake.set)
            return None

    def resolve(self, footer: str) -> str:
        """Key of the change a Depends-On footer names; empty when it names no project of ours."""
        footer = footer.strip("/")
        for project in sorted(self._projects.values(), key=lambda p: -len(p.name)):
            for name in (project.project, project.name):
                if footer.startswith(f"{name}/"):
                    rest = footer.removeprefix(f"{name}/")
                    branch, topic = self.split(project.project, rest)
                    return f"{project.project}/{branch}/{topic}" if topic else ""
        return ""

    def saw(self, project: str, heads: Mapping[str, str]) -> None:
        self._heads[project] = dict(heads)

    def split(self, project: str, name: str) -> tuple[str, str]:
        """`<branch>/<topic>`: the longest branch there is; without one, up to the first slash."""
        parts = name.split("/")
        for cut in range(len(parts) - 1, 0, -1):
            branch = "/".join(parts[:cut])
            if f"{_HEADS}{branch}" in self._heads.get(project, {}):
                return branch, "/".join(parts[cut:])
        return parts[0], "/".join(parts[1:])


def _about_refs(_: object, path: str) -> bool:
    return not path.endswith(".lock") and ("/refs/" in path or path.endswith(("packed-refs", "/HEAD")))


class _Look:
    """One comparison of a repository with what is known of it."""

    def __init__(
        self,
        forge: GitForge,
        project: str,
        mirror: MirrorRepository,
        refs: Mapping[str, str],
        known: Mapping[str, Standing],
    ) -> None:
        self.forge, self.project, self.mirror, self.refs, self.known = forge, project, mirror, refs, known
        self.standings: list[Standing] = []
        self.events: list[TriggerEvent] = []

    async def compare(self, old_heads: Mapping[str, str] | None) -> Sighting | None:
        heads = {ref: commit for ref, commit in self.refs.items() if ref.startswith(_HEADS)}
        self.forge.saw(self.project, heads)
        proposed = self._named(_FOR)
        approved = self._named(_APPROVED)
        if self._needs_fetch(heads, old_heads, proposed):
            await self.mirror.fetch()
        for name, commit in proposed.items():
            await self._change(name, commit, approved.get(name, ""))
        await self._gone(set(proposed), heads)
        moved = old_heads is None or dict(old_heads) != heads
        if old_heads is not None and moved:
            await self._branches(old_heads, heads)
        if not (self.standings or self.events or moved):
            return None
        return Sighting(tuple(self.standings), tuple(self.events), {self.project: heads} if moved else {})

    def _named(self, prefix: str) -> dict[str, str]:
        return {
            r.removeprefix(prefix): c for r, c in self.refs.items() if r.startswith(prefix) and "/" in r[len(prefix) :]
        }

    def _needs_fetch(
        self, heads: Mapping[str, str], old: Mapping[str, str] | None, proposed: Mapping[str, str]
    ) -> bool:
        return any(not self.mirror.has(commit) for commit in {*heads.values(), *proposed.values()}) or old is None

    async def _change(self, name: str, commit: str, approved: str) -> None:
        branch, topic = self.forge.split(self.project, name)
        if f"{_HEADS}{branch}" not in self.refs or not topic:
            log.warning("%s: refs/for/%s is for no branch that exists; it is not looked at", self.project, name)
            return
        was = self.known.get(f"{self.project}/{branch}/{topic}")
        same = was is not None and was.open and was.change.commit == commit
        if same and was is not None and was.approved == approved:
            return
        change = was.change if same and was is not None else await self._describe(branch, topic, commit)
        now = Standing(change, approved=approved)
        self.standings.append(now)
        if not same:
            self._tell(EventKind.PROPOSED, change, was.change.commit if was else "")
        if now.is_approved and not (same and was is not None and was.is_approved):
            self._tell(EventKind.APPROVED, change, "")

    async def _describe(self, branch: str, topic: str, commit: str) -> Change:
        found = self.mirror.commit(commit)
        head = self.refs[f"{_HEADS}{branch}"]
        _, out = await git("diff", "--name-only", "-z", f"{head}...{commit}", at=self.mirror.path, ok=(0, 128))
        footers = _DEPENDS.findall(found.message)
        keys = [(footer, self.forge.resolve(footer)) for footer in footers]
        return Change(
            connection=self.forge.name,
            project=self.project,
            branch=branch,
            topic=topic,
            commit=commit,
            ref=f"{_FOR}{branch}/{topic}",
            message=found.message,
            owner=f"{found.author.name} <{found.author.email}>",
            files=tuple(name for name in out.split("\0") if name),
            needs=tuple(dict.fromkeys(key for _, key in keys if key)),
            unresolved=tuple(footer for footer, key in keys if not key),
        )

    async def _gone(self, proposed: set[str], heads: Mapping[str, str]) -> None:
        """Changes whose ref is no more: landed if their branch has them, abandoned if not."""
        for standing in self.known.values():
            change = standing.change
            if not standing.open or f"{change.branch}/{change.topic}" in proposed:
                continue
            landed = await self._landed(change, heads.get(f"{_HEADS}{change.branch}"))
            self.standings.append(Standing(change, open=False, landed=landed))
            if not landed:
                self._tell(EventKind.ABANDONED, change, change.commit)

    async def _landed(self, change: Change, head: str | None) -> bool:
        if head is not None and self.mirror.has(change.commit) and self.mirror.contains(head, change.commit):
            return True
        if NOTES not in self.refs or head is None:
            return False
        await git("fetch", "-q", "--no-write-fetch-head", "origin", f"+{NOTES}:{NOTES}-seen", at=self.mirror.path)
        code, note = await git("notes", f"--ref={NOTES}-seen", "show", change.commit, at=self.mirror.path, ok=(0, 1))
        return code == 0 and landed_line(change.branch, "") in note

    async def _branches(self, old: Mapping[str, str], new: Mapping[str, str]) -> None:
        for ref in sorted({*old, *new}):
            before, after = old.get(ref, ZEROS), new.get(ref, ZEROS)
            if before == after:
                continue
            files: tuple[str, ...] | None = None
            if ZEROS not in (before, after):
                code, out = await git("diff", "--name-only", "-z", before, after, at=self.mirror.path, ok=(0, 128))
                files = tuple(name for name in out.split("\0") if name) if code == 0 else None
            change = Change(
                connection=self.forge.name,
                project=self.project,
                branch=ref.removeprefix(_HEADS),
                commit=after,
                old_commit=before,
                ref=ref,
                files=files,
            )
            self._tell(EventKind.REF_UPDATED, change, before)

    def _tell(self, kind: EventKind, change: Change, before: str) -> None:
        at_ms = int(time.time() * 1000)
        id = derived(kind, self.project, change.ref, before, change.commit, str(at_ms))
        self.events.append(TriggerEvent(kind, change, id, at_ms))
