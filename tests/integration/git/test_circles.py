"""Test landing of changes that belong together: in one repository in one step, in several one after the other, none
moved back."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

from headgate.adapters.git.engine import GitEngine
from headgate.gate.state.change import Change
from headgate.gate.state.gitwork import MergeItem
from headgate.gate.state.works import (
    LandAnswer,
    Landing,
    LandRequest,
    MergeAnswer,
    MergeRequest,
    ReportRequest,
    RepoState,
)
from headgate.ports.work import Unreachable
from headgate.testing.clock import DEADLINE_S
from headgate.testing.repositories import Repositories, run_git

from .words import HOST, engine, refs


@dataclass(slots=True)
class Circle:
    """Propose changes that are merged as one item."""

    repositories: Repositories
    git: GitEngine
    changes: tuple[Change, ...]
    state: RepoState

    def request(self, *projects: str, rest: bool = False, later: Sequence[str] = ()) -> LandRequest:
        """Land the changes of one repository; `later` follow afterwards."""
        first, *others = self.parts(projects)
        return LandRequest(
            "b", self.state, first.change, first.commit, first.note, "gate", approved=True,
            others=tuple(others), later=tuple(self.parts(later)), rest=rest,
        )  # fmt: skip

    def parts(self, projects: Sequence[str]) -> list[Landing]:
        here = [c for c in self.changes if c.project.removeprefix(f"{HOST}/") in projects]
        return [Landing(c, self.commit(c), f"{c.topic} passed.", approved=True) for c in here]

    def commit(self, change: Change) -> str:
        return self.state.merged[change.project][change.branch]

    async def lands(self, request: LandRequest) -> LandAnswer:
        answer = await self.git.do(request)
        assert isinstance(answer, LandAnswer)
        return answer

    def has_landed(self, name: str) -> bool:
        return self.repositories.head(name) == self.state.merged[f"{HOST}/{name}"]["master"]


async def circle(repositories: Repositories, *named: tuple[str, str, str]) -> Circle:
    """(repository, branch, topic) of each, all approved."""
    git, changes = engine(repositories), list[Change]()
    for name, branch, topic in named:
        commit = repositories.propose(name, topic, {topic: "x\n"}, branch=branch)
        repositories.approve(name, topic, branch)
        ref = f"refs/for/{branch}/{topic}"
        changes.append(Change("local", f"{HOST}/{name}", branch, topic, commit, ref=ref))
    chain = tuple(MergeItem("item", c.project, "local", c.branch, c.ref, c.commit, at_s=1_700_000_000) for c in changes)
    answer = await git.do(MergeRequest("b", chain, {c.project: "local" for c in changes}))
    assert isinstance(answer, MergeAnswer) and answer.state is not None
    return Circle(repositories, git, tuple(changes), answer.state)


@pytest.fixture
def two(repositories: Repositories) -> Repositories:
    repositories.create("lib", {"l": "l\n"})
    return repositories


def hook(repositories: Repositories, name: str, script: str) -> Path:
    file = repositories.hub / name / "hooks" / "pre-receive"
    file.write_text(f"#!/bin/sh\n{script}\n")
    file.chmod(0o755)
    return file


@pytest.mark.parametrize("branch", ["master", "stable"])
async def test_in_one_repository_all_of_it_is_one_push(repositories: Repositories, branch: str) -> None:
    if branch != "master":
        run_git("push", "-q", "origin", f"HEAD:refs/heads/{branch}", at=repositories.work("code"))
    pushes = repositories.root / "pushes"
    found = await circle(repositories, ("code", "master", "one"), ("code", branch, "two"))
    hook(repositories, "code", f"echo push >> {pushes}")
    assert (await found.lands(found.request("code"))).ok
    assert pushes.read_text() == "push\n"
    one, two = found.changes
    assert repositories.head("code") == found.commit(one) and repositories.head("code", branch) == found.commit(two)
    assert refs(repositories) == {"refs/heads/master", f"refs/heads/{branch}", "refs/notes/headgate"}
    for change in found.changes:
        note = repositories.note("code", change.commit)
        assert f"{change.topic} passed." in note and f"Landed on {change.branch} as {found.commit(change)}" in note
    assert (await found.lands(found.request("code"))).ok, "landed twice is as landed once"


async def test_in_one_repository_nothing_lands_if_one_approval_is_withdrawn(repositories: Repositories) -> None:
    found = await circle(repositories, ("code", "master", "one"), ("code", "master", "two"))
    before = repositories.head("code")
    run_git("push", "-q", "origin", ":refs/approved/master/two", at=repositories.work("code"))
    answer = await found.lands(found.request("code"))
    assert not answer.ok and "its approval was withdrawn: refs/approved/master/two" in answer.error
    assert repositories.head("code") == before


async def test_of_several_the_later_ones_are_tried_before_the_first(two: Repositories) -> None:
    found = await circle(two, ("code", "master", "one"), ("lib", "master", "two"))
    before = two.head("code")
    run_git("push", "-q", "origin", ":refs/approved/master/two", at=two.work("lib"))
    answer = await found.lands(found.request("code", later=["lib"]))
    assert not answer.ok and "git.example/lib: its approval was withdrawn" in answer.error
    assert answer.project == f"{HOST}/code" and two.head("code") == before
    two.approve("lib", "two")
    run_git("commit", "-q", "--allow-empty", "-m", "direct", at=two.work("lib"))
    run_git("push", "-q", "-f", "origin", "HEAD:refs/heads/master", at=two.work("lib"))
    answer = await found.lands(found.request("code", later=["lib"]))
    assert answer.moved and two.head("code") == before, "the other branch is not where it was"


async def test_a_trial_push_changes_nothing_and_a_step_lands_only_its_own_repository(two: Repositories) -> None:
    found = await circle(two, ("code", "master", "one"), ("lib", "master", "two"))
    before = two.head("lib")
    assert (await found.lands(found.request("code", later=["lib"]))).ok
    assert found.has_landed("code") and two.head("lib") == before
    assert "refs/for/master/two" in refs(two, "lib")
    assert (await found.lands(found.request("lib", rest=True))).ok and found.has_landed("lib")


async def test_after_the_first_step_nothing_is_tried_any_more(two: Repositories) -> None:
    found = await circle(two, ("code", "master", "one"), ("lib", "master", "two"))
    assert (await found.lands(found.request("code", later=["lib"]))).ok
    run_git("push", "-q", "origin", ":refs/approved/master/two", at=two.work("lib"))
    again = await found.lands(found.request("code", later=["lib"]))  # the merger that landed it died before it answered
    assert again.ok, "it has landed, whatever becomes of the rest"


async def test_the_rest_is_requested_again_when_a_server_refuses_it(two: Repositories) -> None:
    found = await circle(two, ("code", "master", "one"), ("lib", "master", "two"))
    assert (await found.lands(found.request("code", later=["lib"]))).ok
    refusing = hook(two, "lib", 'echo "not today" >&2; exit 1')
    with pytest.raises(
        Unreachable, match="refuses a change that belongs together with changes that have landed"
    ) as caught:
        await found.lands(found.request("lib", rest=True))
    assert caught.value.max_s < 3_600 and isinstance(caught.value.answer, LandAnswer)
    assert "not today" in caught.value.answer.error
    refusing.unlink()
    assert (await found.lands(found.request("lib", rest=True))).ok and found.has_landed("lib")


async def test_the_rest_of_a_circle_is_given_up_when_its_approval_is_withdrawn(two: Repositories) -> None:
    found = await circle(two, ("code", "master", "one"), ("lib", "master", "two"))
    assert (await found.lands(found.request("code", later=["lib"]))).ok
    run_git("push", "-q", "origin", ":refs/approved/master/two", at=two.work("lib"))
    answer = await found.lands(found.request("lib", rest=True))
    assert not answer.ok and not answer.moved and "its approval was withdrawn" in answer.error
    assert found.has_landed("code"), "no branch is moved back"


async def test_a_later_note_on_a_landed_commit_still_says_that_it_has_landed(two: Repositories) -> None:
    found = await circle(two, ("code", "master", "one"), ("lib", "master", "two"))
    assert (await found.lands(found.request("code", later=["lib"]))).ok
    one = found.changes[0]
    await found.git.do(ReportRequest(one, "gate", "ALARM: …", landed=found.commit(one)))
    note = two.note("code", one.commit)
    assert "ALARM" in note and f"Landed on master as {found.commit(one)}" in note


async def test_two_circles_that_land_in_opposite_order_do_not_wait_for_each_other(two: Repositories) -> None:
    there = await circle(two, ("code", "master", "one"), ("lib", "master", "two"))
    back = await circle(two, ("lib", "master", "three"), ("code", "master", "four"))
    async with asyncio.timeout(DEADLINE_S):
        answers = await asyncio.gather(
            there.lands(there.request("code", later=["lib"])), back.lands(back.request("lib", later=["code"]))
        )
    assert any(answer.ok for answer in answers)


async def test_a_build_has_the_branch_before_the_entire_item_as_origin(repositories: Repositories) -> None:
    found = await circle(repositories, ("code", "master", "one"), ("code", "master", "two"))
    dest = repositories.root / "src"
    done = await found.git.checkout(found.state, f"{HOST}/code", "master", dest)
    assert done.commit == found.commit(found.changes[0]) and {"one", "two"} <= {path.name for path in dest.iterdir()}
    assert run_git("rev-parse", "origin/master", at=dest) == repositories.head("code")
