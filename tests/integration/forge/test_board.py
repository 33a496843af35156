"""Test that an unknown forge, written against the port alone, supports the complete life of a change.

Its driver is `board`; it uses the dialect of Gitea.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from headgate.adapters.forges.registry import Connected
from headgate.gate.state.works import BuildOutcome, BuildSpec, RepoState
from headgate.services import courier
from headgate.services.scheduler import connection
from headgate.store.memory import MemoryBackend
from headgate.testing.gate import Gate, gate
from headgate.testing.repositories import Repositories, run_git
from headgate.web.status import Status
from tests.waiting import until

from .board import HOST, Board, Pull

CONFIG = """
- pipeline:
    name: check
    manager: independent
    trigger:
      board:
        - {event: pull_request, action: [opened, changed]}
        - {event: pull_request, action: comment, comment: "^recheck$"}
      local: [{event: change-proposed}]
    start: {board: {status: pending, comment: false}}
    success: {board: {status: success}, local: {}}
    failure: {board: {status: failure}, local: {}}
- pipeline:
    name: gate
    manager: dependent
    trigger:
      board:
        - {event: pull_request, action: labeled, label: gate}
        - {event: pull_request_review, state: approved, require: {label: gate}}
      local: [{event: change-approved}]
    require:
      board: {open: true, review: [{type: approved}], status: "gatekeeper:example/(check|gate):success"}
      local: {approved: true}
    start: {board: {status: pending, comment: false}}
    success: {board: {status: success, merge: true}, local: {land: true}}
    failure: {board: {status: failure, unlabel: gate}, local: {}}
- job: {name: base, parent: null, abstract: true}
- job: {name: unit, run: jobs/unit}
- project: {name: ^code/.*, queue: integrated, check: {jobs: [unit]}, gate: {jobs: [unit]}}
- queue: {name: integrated, allow-circular-dependencies: true}
"""
TENANTS = """
- tenant:
    name: example
    source:
      local:
        config-projects: [ops]
        untrusted-projects: [code/lib]
      board:
        untrusted-projects: [code/api]
"""


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(courier, "PAUSE_FIRST_S", 0.02)


class Town:
    """Run a gate between plain git and a board."""

    def __init__(self, gate: Gate, board: Board, repositories: Repositories) -> None:
        self.gate, self.board, self.repositories = gate, board, repositories

    def deliver(self, pull: Pull) -> None:
        """Send one delivery, which only says where to poll."""
        headers, body = self.board.delivery(pull)
        hint = self.board.webhook({name.lower(): value for name, value in headers.items()}, body)
        self.board.stir(hint)  # type: ignore[arg-type]  # it is of a pull request

    async def proposed(self, title: str, files: dict[str, str], body: str = "") -> Pull:
        pull = self.board.propose("code/api", title, files, body)
        self.deliver(pull)
        return pull

    async def checked(self, pull: Pull, result: str = "success") -> None:
        await until(f"{pull.title} is checked: {result}", lambda: pull.statuses.get("example/check") == result)

    def approved(self, pull: Pull) -> None:
        self.board.review(pull, "bob", "approved")
        self.board.label(pull, "gate")
        self.deliver(pull)

    def results(self, pipeline: str) -> list[str]:
        return [one.result for one in self.gate.history.finished.values() if one.pipeline == pipeline]

    def note(self, topic: str) -> str:
        """Return the comments on a change of plain git."""
        commit = run_git("rev-parse", f"refs/for/master/{topic}", at=self.repositories.hub / "code/lib")
        return self.repositories.note("code/lib", commit)

    async def landed(self, pull: Pull) -> None:
        await until(f"{pull.title} lands: {pull.messages}, {pull.statuses}", lambda: pull.merged)


@asynccontextmanager
async def town(root: Path, fails: str = "", lands: str = "merge", config: str = CONFIG) -> AsyncIterator[Town]:
    """`fails`: changes whose job fails, by title."""

    def unit(spec: BuildSpec, state: RepoState) -> BuildOutcome:
        return BuildOutcome(spec.build, "FAILURE" if fails and fails in spec.change.message else "SUCCESS")

    repositories, board = Repositories(root / "plain"), Board(root / "board", lands=lands)
    repositories.create("ops", {"zuul.yaml": config, "jobs/unit": "#!/bin/sh\n"})
    repositories.create("code/lib", {"lib": "1\n"})
    board.repositories.create("code/api", {"api": "1\n"})
    forges = {"board": ("gitea", Connected(board.git, board))}
    async with gate(root, repositories.hub, MemoryBackend(), TENANTS, {"unit": unit}, forges=forges) as found:
        yield Town(found, board, repositories)


async def test_from_proposed_to_landed(tmp_path: Path) -> None:
    async with town(tmp_path) as here:
        pull = await here.proposed("Add a thing", {"thing": "1\n"})
        await here.checked(pull)
        assert pull.statuses == {"example/check": "success"} and pull.messages == [
            "Build succeeded.\n\n- unit : SUCCESS"
        ]
        here.approved(pull)
        await here.landed(pull)
        assert here.board.repositories.show("code/api", "thing") == "1"
        assert pull.statuses["example/gate"] == "success"
        await until("it is recorded", lambda: here.results("gate") == ["SUCCESS"])
        lands = here.board.calls.index("land")
        assert here.board.calls[:lands].count("report") == here.board.calls.count("report"), "votes go first"


@pytest.mark.long
async def test_three_are_tested_together_and_the_one_that_fails_is_reported(tmp_path: Path) -> None:
    async with town(tmp_path, fails="Broken") as here:
        pulls = [await here.proposed(title, {title.lower(): title}) for title in ("One", "Broken", "Three")]
        for pull in pulls:
            await here.checked(pull, "failure" if pull.title == "Broken" else "success")
        pulls[1].statuses["example/check"] = "success"  # another program reports that it passed
        for pull in pulls:
            here.approved(pull)
        await here.landed(pulls[0])
        await here.landed(pulls[2])
        await until("it is told", lambda: pulls[1].statuses.get("example/gate") == "failure")
        assert not pulls[1].merged and "gate" not in pulls[1].labels and "- unit : FAILURE" in pulls[1].messages[-1]
        merges = run_git("log", "--merges", "--format=%s", "master", at=here.board.repositories.hub / "code/api")
        assert merges.splitlines() == [f"Merge {pulls[2].url}", f"Merge {pulls[0].url}"]


async def test_a_forge_that_is_still_checking_is_polled_again(tmp_path: Path) -> None:
    async with town(tmp_path) as here:
        pull = await here.proposed("Add a thing", {"thing": "1\n"})
        await here.checked(pull)
        here.board.undecided = 3
        here.approved(pull)
        await here.landed(pull)
        assert here.board.calls.count("land") == 4


async def test_a_refused_landing_is_reported_in_the_words_of_the_forge(tmp_path: Path) -> None:
    async with town(tmp_path) as here:
        pull = await here.proposed("Add a thing", {"thing": "1\n"})
        await here.checked(pull)
        here.board.refuses = "the branch is frozen until Monday"
        here.approved(pull)
        await until("it is told", lambda: "frozen until Monday" in pull.messages[-1])
        assert not pull.merged and pull.statuses["example/gate"] == "failure" and "gate" not in pull.labels


async def test_while_a_forge_is_down_reports_wait_and_none_is_lost(tmp_path: Path) -> None:
    async with town(tmp_path) as here:
        pull = await here.proposed("Add a thing", {"thing": "1\n"})
        await here.checked(pull)
        here.board.away = "it is being upgraded"
        here.approved(pull)
        await until("it is asked again and again", lambda: here.board.calls.count("report") > 5)
        assert not pull.merged
        here.board.away = ""
        await here.landed(pull)
        head = here.board.repositories.head("code/api")
        assert head == pull.merged and len(pull.messages) == 2, "told once, however often it was asked"


async def test_a_push_at_the_moment_of_the_merge_is_an_alarm(tmp_path: Path) -> None:
    async with town(tmp_path) as here:
        pull = await here.proposed("Add a thing", {"thing": "1\n"})
        await here.checked(pull)
        here.board.meanwhile = {"code/api": "sneaked"}
        here.approved(pull)
        await here.landed(pull)
        await until("it is told", lambda: "ALARM" in pull.messages[-1])
        assert "does not have the tree that was tested" in pull.messages[-1]
        (shown,) = Status(here.gate.context, here.gate.scheduler.tenants).of("example").problems
        assert shown.project == f"gate: {pull.key}" and "the tree of master differs from the tested one" in shown.text


async def test_a_push_past_the_gate_causes_items_to_be_tested_again(tmp_path: Path) -> None:
    async with town(tmp_path) as here:
        pull = await here.proposed("Add a thing", {"thing": "1\n"})
        await here.checked(pull)
        here.gate.runner.hold = asyncio.Event()
        here.approved(pull)
        await here.gate.runner.begun(2)
        here.board.push("code/api", {"past": "1\n"})
        here.gate.runner.hold.set()  # no delivery announces the push: the forge itself finds that the branch has moved
        await here.landed(pull)
        assert sum(spec.pipeline == "gate" for spec in here.gate.runner.ran) == 2
        assert "ALARM" not in "".join(pull.messages)


async def test_plain_git_waits_for_a_pull_request_that_it_names_by_its_url(tmp_path: Path) -> None:
    async with town(tmp_path) as here:
        pull = await here.proposed("Add a thing", {"thing": "1\n"})
        await here.checked(pull)
        here.repositories.propose("code/lib", "use", {"use": "1\n"}, f"Use it\n\nDepends-On: {pull.url}/files")
        here.repositories.approve("code/lib", "use")
        await until("it waits", lambda: "is not ready" in here.note("use") or "Depends-On" in here.note("use"))
        here.approved(pull)
        await here.landed(pull)
        found = await here.gate.history.result_of("use", "gate")
        while found.result != "SUCCESS":
            here.gate.history.finished = {k: v for k, v in here.gate.history.finished.items() if v is not found}
            found = await here.gate.history.result_of("use", "gate")
        assert here.repositories.show("code/lib", "use") == "1"


async def test_a_pull_request_waits_for_a_change_of_plain_git(tmp_path: Path) -> None:
    async with town(tmp_path) as here:
        here.repositories.propose("code/lib", "base", {"base": "1\n"}, "A base")
        await until("it is seen before what needs it", lambda: here.results("check"))
        pull = await here.proposed("Use it", {"use": "1\n"}, "Depends-On: git.example/code/lib/master/base")
        await here.checked(pull)
        here.repositories.approve("code/lib", "base")
        here.approved(pull)
        await here.landed(pull)
        assert here.repositories.show("code/lib", "base") == "1", "it landed before"


@pytest.mark.long
async def test_names_of_projects_may_be_written_in_any_case_where_the_forge_takes_them_so(tmp_path: Path) -> None:
    async with town(tmp_path) as here:
        needed = await here.proposed("Add a thing", {"thing": "1\n"})
        await here.checked(needed)
        url = needed.url.replace("code/api", "Code/API")
        pull = await here.proposed("Use it", {"use": "1\n"}, f"Depends-On: <{url}/files>")
        await here.checked(pull)
        here.approved(pull)
        await until("it waits", lambda: "code/api#1 does not meet the requirement" in "".join(pull.messages))
        here.approved(needed)
        await here.landed(needed)
        await here.landed(pull)


@pytest.mark.long
async def test_a_circle_across_plain_git_and_a_forge_lands_as_one(tmp_path: Path) -> None:
    async with town(tmp_path) as here:
        url = f"https://{HOST}/code/api/pulls/1"
        here.repositories.propose("code/lib", "half", {"half": "1\n"}, f"One half\n\nDepends-On: {url}")
        await until("it is seen before what needs it: the circle is tested once", lambda: here.results("check"))
        pull = await here.proposed("The other", {"other": "1\n"}, "Depends-On: code/lib/master/half")
        assert pull.url == url
        await here.checked(pull)
        here.repositories.approve("code/lib", "half")
        here.approved(pull)
        await here.landed(pull)
        await until("the half on plain git lands, too", lambda: _has(here.repositories, "half"))


def _has(repositories: Repositories, path: str) -> bool:
    return path in run_git("ls-tree", "--name-only", "master", at=repositories.hub / "code/lib").splitlines()


async def test_an_unknown_url_is_reported_and_does_not_block(tmp_path: Path) -> None:
    async with town(tmp_path) as here:
        pull = await here.proposed("Add", {"thing": "1\n"}, "Depends-On: https://elsewhere.example/x/pull/1")
        await here.checked(pull)
        assert "https://elsewhere.example/x/pull/1: no connection has a change of this name" in pull.messages[-1]


@pytest.mark.long
async def test_a_change_of_a_project_that_nobody_watches_is_looked_up_and_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connection, "LOOK_UP_EVERY_S", 0.05)
    async with town(tmp_path) as here:
        here.board.repositories.create("up/stream", {"up": "1\n"})
        needed = here.board.propose("up/stream", "Upstream", {"more": "1\n"})
        pull = await here.proposed("Use it", {"use": "1\n"}, f"Depends-On: {needed.url}")
        await until("it is told what is waited for", lambda: "must land first" in "".join(pull.messages))
        assert here.board.lookups >= 1
        here.board.merge(needed)  # without any delivery to us
        await here.checked(pull)
        here.approved(pull)  # the gate requires a check that has passed
        await here.landed(pull)


async def test_a_missing_needed_change_counts_once_it_is_proposed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connection, "LOOK_UP_EVERY_S", 0.05)
    async with town(tmp_path) as here:
        here.board.repositories.create("up/stream", {"up": "1\n"})
        pull = await here.proposed("Use it", {"use": "1\n"}, f"Depends-On: https://{HOST}/up/stream/pulls/1")
        await here.checked(pull)
        assert "there is no such change" in pull.messages[-1]
        needed = here.board.propose("up/stream", "Upstream", {"more": "1\n"})
        await until("it is told what is waited for", lambda: "must land first" in "".join(pull.messages))
        checks = len(here.results("check"))
        here.board.merge(needed)
        await until("it is tested again", lambda: len(here.results("check")) > checks)


async def test_a_comment_causes_a_new_lookup_of_a_needed_change(tmp_path: Path) -> None:
    async with town(tmp_path) as here:
        here.board.repositories.create("up/stream", {"up": "1\n"})
        pull = await here.proposed("Use it", {"use": "1\n"}, f"Depends-On: https://{HOST}/up/stream/pulls/1")
        await here.checked(pull)
        assert "there is no such change" in pull.messages[-1]
        here.board.propose("up/stream", "Upstream", {"more": "1\n"})
        here.board.comment(pull, "It is there now.")
        here.deliver(pull)
        await until("it is told what is waited for", lambda: "must land first" in "".join(pull.messages))


@pytest.mark.long
async def test_a_forge_that_lands_by_push_gets_the_tested_commit_and_then_the_report(tmp_path: Path) -> None:
    async with town(tmp_path, lands="push") as here:
        pulls = [await here.proposed(title, {title.lower(): title}) for title in ("One", "Two")]
        for pull in pulls:
            await here.checked(pull)
            here.approved(pull)
        bare = here.board.repositories.hub / "code/api"
        await until("both land", lambda: here.results("gate") == ["SUCCESS", "SUCCESS"])
        await until("they are told", lambda: all(one.statuses["example/gate"] == "success" for one in pulls))
        tested = run_git("log", "--first-parent", "--format=%an %s", "-2", "master", at=bare).splitlines()
        assert all(line.startswith("Headgate ") for line in tested), tested
        assert "land" not in here.board.calls and not run_git("for-each-ref", "refs/notes", at=bare)
        here.deliver(pulls[0])
        await until("the forge marks them as merged", lambda: all(one.merged for one in pulls))


async def test_a_closed_change_leaves_its_pipeline(tmp_path: Path) -> None:
    async with town(tmp_path) as here:
        here.gate.runner.hold = asyncio.Event()
        pull = await here.proposed("Add", {"thing": "1\n"})
        await here.gate.runner.begun(1)
        here.board.close(pull)
        here.deliver(pull)
        await until("it leaves", lambda: here.gate.history.finished)
        assert [one.result for one in here.gate.history.finished.values()] == ["DEQUEUED"]
