"""Test people who propose, or withdraw approvals, just as the tested commit is pushed to its branch: no rule of the
forge keeps Headgate's own account from pushing there."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from headgate.adapters.git.engine import GitEngine
from headgate.gate.state.works import LandAnswer, LandRequest, MergerAnswer, MergerWork
from headgate.ports.work import Unreachable
from headgate.services import courier, merger
from headgate.testing.repositories import run_git
from tests.integration.forge.test_board import town
from tests.integration.forge.test_pushing import held, log, released
from tests.waiting import until


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(courier, "PAUSE_FIRST_S", 0.02)
    monkeypatch.setattr(merger, "RETRY_MIN_S", 0.02)


async def test_an_objection_that_no_delivery_announced_prevents_the_push(tmp_path: Path) -> None:
    """No delivery announces it."""
    async with town(tmp_path, lands="push") as here:
        pull = await held(here)
        pull.votes["bob"] = "changes_requested"
        released(here)
        await until("it ends", lambda: here.results("gate") == ["MERGE_FAILURE"])
        await until("it is told", lambda: len(pull.messages) == 2)
        assert "review" in pull.messages[-1] and pull.open and log(here) == []


async def test_a_change_that_was_merged_into_another_branch_is_not_pushed(tmp_path: Path) -> None:
    async with town(tmp_path, lands="push") as here:
        here.board.push("code/api", {"other": "1\n"}, "stable")
        pull = await held(here)
        pull.branch = "stable"
        here.board.merge(pull)
        released(here)
        await until("it ends", lambda: here.results("gate") == ["MERGE_FAILURE"])
        assert log(here) == []


class Away:
    """A repository that fails once, when a change is pushed there, or only after it has accepted the push."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *, pushed: bool) -> None:
        self.monkeypatch, self.pushed = monkeypatch, pushed
        self.tries = 0

    def meanwhile(self, happens: Callable[[], None]) -> None:
        """Actions of people at that moment."""
        do = GitEngine.do

        async def away(engine: GitEngine, work: MergerWork) -> MergerAnswer:
            if not isinstance(work, LandRequest):
                return await do(engine, work)
            self.tries += 1
            if self.tries > 1:
                return await do(engine, work)
            answer = await do(engine, work) if self.pushed else LandAnswer(work.buildset, ok=False)
            happens()
            raise Unreachable(work.change.project, "does not answer", answer)

        self.monkeypatch.setattr(GitEngine, "do", away)


async def test_a_change_that_becomes_a_draft_while_its_repository_is_down_is_not_pushed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with town(tmp_path, lands="push") as here:
        pull, away = await held(here), Away(monkeypatch, pushed=False)
        away.meanwhile(lambda: setattr(pull, "draft", True))
        released(here)
        await until("it ends", lambda: here.results("gate") == ["MERGE_FAILURE"])
        await until("it is told", lambda: "is a draft" in pull.messages[-1])
        assert away.tries == 2 and log(here) == []


async def test_a_pushed_change_has_landed_even_if_its_pull_request_has_a_new_head(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with town(tmp_path, lands="push") as here:
        pull, away = await held(here), Away(monkeypatch, pushed=True)
        head = pull.head
        more = run_git("rev-parse", "master", at=here.board.repositories.hub / "code/api")
        here.board.blind = True
        away.meanwhile(lambda: setattr(pull, "head", more))
        released(here)
        await until(f"it lands: {pull.messages}", lambda: here.results("gate") == ["SUCCESS"])
        assert away.tries == 2 and head in log(here)[0]
