"""Test landing by a push: the tested commit itself lands if the forge's state is unchanged, and the forge shows it."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from headgate.adapters.git.engine import GitEngine
from headgate.gate.state.works import LandRequest, MergerAnswer, MergerWork
from headgate.ports.work import Unreachable
from headgate.services import courier, forgework, merger
from headgate.services.courier import outbox
from headgate.services.quarantine import Quarantine
from headgate.testing.repositories import run_git
from tests.integration.forge.board import Pull
from tests.integration.forge.test_board import CONFIG, Town, town
from tests.waiting import until

SQUASHING = CONFIG.replace("- project: {name: ^code/.*,", "- project: {name: ^code/.*, merge-mode: squash-merge,")
HOOK = """#!/bin/sh
test "$1" != refs/heads/master || { echo "GH006: Protected branch update failed."; exit 1; }
"""


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(courier, "PAUSE_FIRST_S", 0.02)
    monkeypatch.setattr(merger, "RETRY_MIN_S", 0.02)


async def held(here: Town) -> Pull:
    """Return the changes in the gate whose builds have begun."""
    pull = await here.proposed("Add", {"thing": "1\n"})
    await here.checked(pull)
    here.gate.runner.hold = asyncio.Event()
    begun = len(here.gate.runner.ran)
    here.approved(pull)
    await here.gate.runner.begun(begun + 1)
    return pull


def released(here: Town) -> None:
    assert here.gate.runner.hold is not None
    here.gate.runner.hold.set()


def log(here: Town, branch: str = "master") -> list[str]:
    """Return the commits of the branch since its creation, each with its parents."""
    bare = here.board.repositories.hub / "code/api"
    return run_git("log", "--first-parent", "--format=%H %P", f"refs/heads/{branch}", at=bare).splitlines()[:-1]


@pytest.mark.long
async def test_a_change_whose_landing_the_forge_does_not_see_is_closed_with_a_comment(tmp_path: Path) -> None:
    async with town(tmp_path, lands="push", config=SQUASHING) as here:
        pull = await held(here)
        released(here)
        await until(f"it is closed: {pull.messages}", lambda: not pull.open)
        (line,) = log(here)
        commit, _ = line.split()
        assert not pull.merged and pull.head not in line
        assert f"It has landed in master as {commit}" in pull.messages[-1]
        here.deliver(pull)
        other = await here.proposed("Rest", {"rest": "1\n"}, f"Depends-On: {pull.url}")
        await here.checked(other)
        here.approved(other)
        await until(f"what needs it lands, too: {other.messages}", lambda: not other.open)
        assert [len(log(here)), here.results("gate")] == [2, ["SUCCESS", "SUCCESS"]]
        assert here.results("check") == ["SUCCESS"] * 2, "nothing of it was taken for new"


@pytest.mark.long
async def test_a_push_that_the_forge_does_not_see_is_reported_after_a_wait(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with town(tmp_path, lands="push") as here:
        here.board.blind = True
        pull = await held(here)
        released(here)
        await until("it lands", lambda: here.results("gate") == ["SUCCESS"])
        looks = here.board.lookups
        await until("it is waited for", lambda: here.board.lookups > looks + 2)
        here.deliver(pull)
        await until("whoever looks meanwhile takes it for nothing new", lambda: here.board.lookups > looks + 4)
        assert pull.open and len(here.results("check")) == 1
        monkeypatch.setattr(forgework, "SEEN_MAX_MS", 0)
        await until("it is closed", lambda: not pull.open)
        assert "It has landed in master as" in pull.messages[-1] and here.board.calls.count("conclude") == 1


@pytest.mark.long
async def test_a_landed_change_that_the_forge_does_not_recognise_is_closed_even_without_a_comment(
    tmp_path: Path,
) -> None:
    async with town(tmp_path, lands="push", config=SQUASHING) as here:
        pull = await held(here)
        here.board.mute = "the conversation is locked"
        released(here)
        await until("it is closed", lambda: not pull.open)
        await until("what was not told is set aside", lambda: len(Quarantine(here.gate.context)) == 1)
        assert here.results("gate") == ["SUCCESS"] and len(log(here)) == 1


@pytest.mark.long
async def test_a_landed_change_that_is_reopened_does_not_land_again(tmp_path: Path) -> None:
    """Its commits are not on the branch, so only our records say that it has landed."""
    async with town(tmp_path, lands="push", config=SQUASHING) as here:
        pull = await held(here)
        released(here)
        await until(f"it is closed: {pull.messages}", lambda: not pull.open)
        await until("all is told", lambda: outbox(here.gate.context, "board").waiting == 0)
        here.board.reopen(pull)
        here.approved(pull)
        await until("it is said", lambda: any("has already landed" in text for text in pull.messages))
        assert here.results("gate") == ["SUCCESS"] and len(log(here)) == 1
        here.board.amend(pull, {"more": "1\n"})
        here.deliver(pull)
        await until("it is checked", lambda: pull.statuses.get("example/check") == "success")
        here.approved(pull)
        await until("what is new in it lands", lambda: len(log(here)) == 2)


@pytest.mark.long
async def test_changes_that_are_closed_updated_or_moved_at_the_last_moment_are_not_pushed(tmp_path: Path) -> None:
    """No poll happens before: even Headgate's own statuses trigger none."""
    async with town(tmp_path, lands="push", config=CONFIG.replace(", unlabel: gate", "")) as here:
        here.board.push("code/api", {"other": "1\n"}, "stable")
        words = {"is closed": "closed", "is no longer": "pushed", "its target branch is now stable": "moved"}
        pulls = [await here.proposed(title, {title: "1\n"}) for title in words.values()]
        for pull in pulls:
            await here.checked(pull)
        here.gate.runner.hold = asyncio.Event()
        for pull in pulls:
            here.approved(pull)
        await here.gate.runner.begun(6)
        pulls[0].open = False  # and no delivery announces it
        pulls[1].head = run_git("rev-parse", "stable", at=here.board.repositories.hub / "code/api")
        pulls[2].branch = "stable"
        released(here)
        for pull, word in zip(pulls, words, strict=True):
            await until(f"it is told: {pull.messages}", lambda pull=pull, word=word: word in pull.messages[-1])
        assert log(here) == [] and here.results("gate") == ["MERGE_FAILURE"] * 3


@pytest.mark.long
async def test_nothing_is_pushed_to_a_branch_that_moved_and_the_change_is_tested_again(tmp_path: Path) -> None:
    async with town(tmp_path, lands="push") as here:
        pull = await held(here)
        here.board.push("code/api", {"past": "the gate\n"})
        released(here)
        await here.landed(pull)
        commits = [line.split() for line in log(here)]
        assert len(commits) == 2 and commits[0][1] == commits[1][0], "on top of what came in between"
        gates = [one for one in here.gate.runner.ran if one.pipeline == "gate"]
        assert len(gates) == 2, "tested there as well"


@pytest.mark.long
async def test_a_refused_push_is_reported_with_its_reason(tmp_path: Path) -> None:
    async with town(tmp_path, lands="push") as here:
        hook = here.board.repositories.hub / "code/api" / "hooks" / "update"
        hook.write_text(HOOK)
        hook.chmod(0o755)
        pull = await held(here)
        released(here)
        await until("it ends", lambda: here.results("gate"))
        await until("it is told", lambda: len(pull.messages) == 2)
        assert "GH006: Protected branch update failed." in pull.messages[-1]
        assert "Let Headgate's account push to the branch past its rules" in pull.messages[-1]
        assert pull.open and log(here) == [] and here.results("gate") == ["MERGE_FAILURE"]


@pytest.mark.long
async def test_a_change_is_pushed_to_its_target_branch_whatever_the_name_of_that(tmp_path: Path) -> None:
    async with town(tmp_path, lands="push") as here:
        for number, branch in enumerate(("-delete", "50%2Foff", "a#b", "refs/heads/master")):
            here.board.push("code/api", {"own": "1\n"}, branch)
            pull = here.board.propose("code/api", f"Add {number}", {"thing": "1\n"}, branch=branch)
            here.deliver(pull)
            await here.checked(pull)
            here.approved(pull)
            await here.landed(pull)
            assert [pull.head in line for line in log(here, branch)] == [True, False]
        assert log(here) == []


async def test_a_merger_that_dies_between_push_and_record_lands_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pushed = list[MergerAnswer]()
    do = GitEngine.do

    async def dies(self: GitEngine, work: MergerWork) -> MergerAnswer:
        answer = await do(self, work)
        if isinstance(work, LandRequest):
            pushed.append(answer)
            if len(pushed) == 1:
                raise Unreachable(work.change.project, "died before it could say so", answer)
        return answer

    monkeypatch.setattr(GitEngine, "do", dies)
    async with town(tmp_path, lands="push") as here:
        pull = await held(here)
        released(here)
        await until("it lands", lambda: here.results("gate") == ["SUCCESS"])
        await here.landed(pull)
        assert [one.ok for one in pushed] == [True, True] and len(log(here)) == 1  # type: ignore[union-attr]  # of landings
        await until("it is told, once by each pipeline", lambda: len(pull.messages) == 2)
        assert pull.head in log(here)[0], "the branch has the very commit that was proposed"
        assert "conclude" not in here.board.calls, "the forge sees by itself that it is merged"
