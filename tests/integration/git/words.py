"""Provide helpers for tests of plain git: repositories at a hub, and mergers that work on them."""

from __future__ import annotations

import asyncio
import os
import shutil
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from headgate.adapters.git.connection import GitConnection
from headgate.adapters.git.engine import GitEngine
from headgate.adapters.git.forge import GitForge
from headgate.config.operator.model import TenantProject
from headgate.gate.state.change import Change, ChangeState, EventKind, TriggerEvent
from headgate.gate.state.gitwork import MergeItem
from headgate.gate.state.works import LandAnswer, LandRequest, MergeAnswer, MergeRequest, RepoState
from headgate.ports.forge import Hint, Sighting
from headgate.testing.clock import DEADLINE_S
from headgate.testing.repositories import Repositories, run_git

HOST = "git.example"
PROJECT = f"{HOST}/code"


def connection(repositories: Repositories, baseurl: str = "", poll_interval_s: float = 30.0) -> GitConnection:
    return GitConnection("local", baseurl or str(repositories.hub), HOST, poll_interval_s=poll_interval_s)


def engine(repositories: Repositories, name: str = "git", baseurl: str = "") -> GitEngine:
    """Create a separate merger with its own copies of the repositories."""
    return GitEngine(repositories.root / name, {"local": connection(repositories, baseurl)})


def item(commit: str, topic: str, mode: str = "merge", branch: str = "master", message: str = "") -> MergeItem:
    ref = f"refs/for/{branch}/{topic}"
    at_s = 1_700_000_000
    return MergeItem(topic, PROJECT, "local", branch, ref, commit, mode, at_s=at_s, message=message or topic)


def change(commit: str, topic: str, branch: str = "master") -> Change:
    return Change("local", PROJECT, branch, topic, commit, ref=f"refs/for/{branch}/{topic}")


async def merged(git: GitEngine, *chain: MergeItem) -> MergeAnswer:
    answer = await git.do(MergeRequest("b", chain, {PROJECT: "local"}))
    assert isinstance(answer, MergeAnswer)
    return answer


async def state_of(git: GitEngine, *chain: MergeItem) -> RepoState:
    answer = await merged(git, *chain)
    assert answer.state is not None, answer.error
    return answer.state


async def landed(
    git: GitEngine, state: RepoState, what: Change, note: str = "It passed.", *, approved: bool = False
) -> LandAnswer:
    answer = await git.do(LandRequest("b", state, what, state.merged[PROJECT][what.branch], note, "gate", approved))
    assert isinstance(answer, LandAnswer)
    return answer


def refs(repositories: Repositories, name: str = "code") -> set[str]:
    return set(run_git("for-each-ref", "--format=%(refname)", at=repositories.hub / name).splitlines())


def push_past_the_gate(repositories: Repositories, files: Mapping[str, str], branch: str = "master") -> str:
    """Commit to the branch as somebody else."""
    work = repositories.work("code")
    run_git("fetch", "-q", "origin", at=work)
    run_git("checkout", "-q", "--detach", f"origin/{branch}", at=work)
    repositories.write("code", files)
    run_git("commit", "-q", "-m", "direct", at=work)
    run_git("push", "-q", "origin", f"HEAD:refs/heads/{branch}", at=work)
    return repositories.head("code", branch)


@dataclass(slots=True)
class Watch:
    """Keep what a connection sees."""

    git: GitEngine
    seen: AsyncIterator[Sighting]
    stir: Callable[[Hint], None]
    known: dict[str, ChangeState] = field(default_factory=dict)
    heads: dict[str, dict[str, str]] = field(default_factory=dict)
    refs: dict[str, dict[str, str]] = field(default_factory=dict)
    problems: dict[str, str] = field(default_factory=dict)
    lingering: dict[str, frozenset[str]] = field(default_factory=dict)
    events: list[TriggerEvent] = field(default_factory=list)

    async def next(self) -> Sighting:
        async with asyncio.timeout(DEADLINE_S):
            sighting = await anext(self.seen)
        self.known.update({change_state.change.key: change_state for change_state in sighting.change_states})
        self.heads.update(sighting.heads)
        for project, moved in sighting.refs.items():
            seen = self.refs.setdefault(project, {})
            for ref, object in moved.items():
                seen[ref] = object
                if not object:
                    del seen[ref]
        self.problems.update(sighting.problems)
        self.lingering.update(sighting.lingering)
        self.events += sighting.events
        return sighting

    async def until(self, kind: EventKind) -> Change:
        """Return the change of the next such event."""
        while True:
            for at, event in enumerate(self.events):
                if event.kind is kind:
                    del self.events[: at + 1]
                    return event.change
            await self.next()

    async def until_problem(self, text: str) -> str:
        """Return the problem of the project, once there is one; with an empty text, wait until there is none."""
        while True:
            problem = self.problems.get(PROJECT, "")
            if text in problem and bool(text) == bool(problem):
                return problem
            await self.next()


@asynccontextmanager
async def watching(
    repositories: Repositories,
    baseurl: str = "",
    poll_interval_s: float = 30.0,
    known: Mapping[str, ChangeState] | None = None,
    refs: Mapping[str, Mapping[str, str]] | None = None,
) -> AsyncIterator[Watch]:
    at = connection(repositories, baseurl, poll_interval_s)
    git = GitEngine(repositories.root / "watch", {"local": at})
    forge = GitForge(at, git, {PROJECT: TenantProject(PROJECT, "code", "local", False)})
    change_states, heads = dict(known or {}), dict[str, dict[str, str]]()
    others = {project: dict(found) for project, found in (refs or {}).items()}
    seen = forge.sightings(change_states, heads, others)
    try:
        yield Watch(git, seen, forge.stir, change_states, heads, others)
    finally:
        await seen.aclose()  # type: ignore[attr-defined]  # the iterator is a generator


def counted_git(at: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Put a git in front of the path that writes a line into `<at>/log` at each use."""
    at.mkdir()
    log, real = at / "log", shutil.which("git")
    log.touch()
    (at / "git").write_text(f'#!/bin/sh\nprintf \'%s\\n\' "$*" >> {log}\nexec {real} "$@"\n')
    (at / "git").chmod(0o755)
    monkeypatch.setenv("PATH", f"{at}:{os.environ['PATH']}")
    return log
