"""Merging, landing and watching, on real repositories."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from headgate.adapters.git.connection import GitConnection
from headgate.adapters.git.engine import GitEngine
from headgate.adapters.git.forge import GitForge
from headgate.config.tenants import TenantProject
from headgate.gate.change import Change, EventKind, Standing
from headgate.gate.work import (
    CatAnswer,
    CatRequest,
    LandAnswer,
    LandRequest,
    MergeAnswer,
    MergeItem,
    MergeRequest,
    ReportRequest,
    RepoState,
)
from headgate.ports.git import Sighting
from headgate.testing.repositories import Repositories, run_git

PROJECT = "git.example/code"


@pytest.fixture
def repositories(tmp_path: Path) -> Repositories:
    found = Repositories(tmp_path)
    found.create("code", {"a": "1\n2\n3\n4\n5\n6\n7\n8\n9\n", "b": "b\n"})
    return found


def engine(repositories: Repositories, name: str = "git") -> GitEngine:
    at = {"local": GitConnection("local", str(repositories.hub), "git.example")}
    return GitEngine(repositories.root / name, at)


def item(commit: str, topic: str, mode: str = "merge") -> MergeItem:
    ref = f"refs/for/master/{topic}"
    return MergeItem(topic, PROJECT, "local", "master", ref, commit, mode, at_s=1_700_000_000, message=topic)


def change(commit: str, topic: str) -> Change:
    return Change("local", PROJECT, "master", topic, commit, ref=f"refs/for/master/{topic}")


async def merged(git: GitEngine, *chain: MergeItem) -> MergeAnswer:
    answer = await git.do(MergeRequest("b", chain, {PROJECT: "local"}))
    assert isinstance(answer, MergeAnswer)
    return answer


async def landed(git: GitEngine, state: RepoState, what: Change) -> LandAnswer:
    answer = await git.do(LandRequest("b", state, what, state.merged[PROJECT]["master"], "It passed.", "gate"))
    assert isinstance(answer, LandAnswer)
    return answer


@pytest.mark.parametrize("mode", ["merge", "squash-merge", "cherry-pick", "rebase"])
async def test_same_input_same_commit_on_every_machine(repositories: Repositories, mode: str) -> None:
    one = repositories.propose("code", "one", {"a": "one\n2\n3\n4\n5\n6\n7\n8\n9\n"})
    two = repositories.propose("code", "two", {"a": "1\n2\n3\n4\n5\n6\n7\n8\ntwo\n"})
    chain = (item(one, "one", mode), item(two, "two", mode))
    here, there = await merged(engine(repositories, "x"), *chain), await merged(engine(repositories, "y"), *chain)
    assert here.ok and here.state is not None and here.state == there.state
    git = engine(repositories, "x")
    await git.checkout(here.state, PROJECT, "master", repositories.root / "tree")
    assert (repositories.root / "tree" / "a").read_text() == "one\n2\n3\n4\n5\n6\n7\n8\ntwo\n"


async def test_a_conflict_names_files_and_the_change(repositories: Repositories) -> None:
    one = repositories.propose("code", "one", {"a": "x\n", "b": "x\n"})
    two = repositories.propose("code", "two", {"a": "y\n", "b": "y\n"})
    answer = await merged(engine(repositories), item(one, "one"), item(two, "two"))
    assert (answer.ok, answer.blame) == (False, "two")
    assert "conflicts in: a, b" in answer.error


async def test_a_chain_extended_by_one_costs_one_merge(repositories: Repositories) -> None:
    commits = [repositories.propose("code", f"t{n}", {f"f{n}": "x\n"}) for n in range(4)]
    git = engine(repositories)
    for count in range(1, 5):
        await merged(git, *(item(commit, f"t{n}") for n, commit in enumerate(commits[:count])))
    assert git.mirror(PROJECT, "local").merges == 4


async def test_what_is_missing_is_said(repositories: Repositories) -> None:
    answer = await merged(engine(repositories), item("1" * 40, "ghost"))
    assert not answer.ok and "1" * 40 in answer.error
    gone = await engine(repositories).do(CatRequest("git.example/nowhere", "local"))
    assert isinstance(gone, CatAnswer) and not gone.ok and gone.error


async def test_landing_pushes_the_tested_commit_and_ends_the_change(repositories: Repositories) -> None:
    commit = repositories.propose("code", "one", {"c": "x\n"})
    repositories.approve("code", "one")
    git = engine(repositories)
    state = (await merged(git, item(commit, "one"))).state
    assert state is not None
    answer = await landed(git, state, change(commit, "one"))
    assert answer.ok and repositories.head("code") == state.merged[PROJECT]["master"]
    assert "refs/for" not in run_git("for-each-ref", at=repositories.hub / "code")
    assert "It passed." in repositories.note("code", commit)
    again = await landed(engine(repositories, "other"), state, change(commit, "one"))
    assert again.ok, "landed twice is as landed once"


async def test_a_branch_that_moved_is_not_overwritten(repositories: Repositories) -> None:
    commit = repositories.propose("code", "one", {"c": "x\n"})
    git = engine(repositories)
    state = (await merged(git, item(commit, "one"))).state
    assert state is not None
    work = repositories.work("code")
    run_git("checkout", "-q", "-B", "direct", "origin/master", at=work)
    repositories.write("code", {"d": "x\n"})
    run_git("commit", "-q", "-m", "direct", at=work)
    run_git("push", "-q", "origin", "direct:master", at=work)
    head = repositories.head("code")
    answer = await landed(git, state, change(commit, "one"))
    assert (answer.ok, answer.moved) == (False, True) and repositories.head("code") == head


async def test_a_refused_push_gives_the_servers_reason(repositories: Repositories) -> None:
    commit = repositories.propose("code", "one", {"c": "x\n"})
    hook = repositories.hub / "code" / "hooks" / "pre-receive"
    hook.write_text("#!/bin/sh\necho 'not on a friday' >&2\nexit 1\n")
    hook.chmod(0o755)
    git = engine(repositories)
    state = (await merged(git, item(commit, "one"))).state
    assert state is not None
    answer = await landed(git, state, change(commit, "one"))
    assert not answer.ok and not answer.moved and "pre-receive hook declined" in answer.error


async def test_reports_of_two_pipelines_stand_side_by_side(repositories: Repositories) -> None:
    commit = repositories.propose("code", "one", {"c": "x\n"})
    git = engine(repositories)
    for pipeline, note in (("check", "first"), ("gate", "second"), ("check", "third")):
        await git.do(ReportRequest(change(commit, "one"), pipeline, note))
    note = repositories.note("code", commit)
    assert "first" not in note and "Headgate (check):\nthird" in note and "Headgate (gate):\nsecond" in note


def forge(repositories: Repositories) -> GitForge:
    connection = GitConnection("local", str(repositories.hub), "git.example")
    git = GitEngine(repositories.root / "watch", {"local": connection})
    return GitForge(connection, git, {PROJECT: TenantProject(PROJECT, "code", "local", False)})


async def test_pushes_are_seen_without_polling(repositories: Repositories) -> None:
    known: dict[str, Standing] = {}
    heads: dict[str, dict[str, str]] = {}
    seen = forge(repositories).sightings(known, heads)

    async def next_one() -> Sighting:
        async with asyncio.timeout(10):
            sighting = await anext(seen)
        known.update({s.change.key: s for s in sighting.standings})
        heads.update(sighting.heads)
        return sighting

    async def until(kind: EventKind) -> Change:
        while True:
            for event in (await next_one()).events:
                if event.kind is kind:
                    return event.change

    await next_one()
    commit = repositories.propose("code", "one", {"c": "x\n"}, "One\n\nDepends-On: code/master/zero\nDepends-On: x/y/z")
    proposed = await until(EventKind.PROPOSED)
    assert (proposed.commit, proposed.files) == (commit, ("c",))
    assert (proposed.needs, proposed.unresolved) == ((f"{PROJECT}/master/zero",), ("x/y/z",))
    repositories.approve("code", "one")
    assert (await until(EventKind.APPROVED)).topic == "one"
    repositories.abandon("code", "one")
    assert (await until(EventKind.ABANDONED)).topic == "one"
    await seen.aclose()  # type: ignore[attr-defined]


async def test_what_was_pushed_while_nobody_looked_is_found(repositories: Repositories) -> None:
    repositories.propose("code", "one", {"c": "x\n"})
    repositories.approve("code", "one")
    seen = forge(repositories).sightings({}, {})
    async with asyncio.timeout(10):
        sighting = await anext(seen)
    assert [event.kind for event in sighting.events] == [EventKind.PROPOSED, EventKind.APPROVED]
    await seen.aclose()  # type: ignore[attr-defined]
