"""Test that the driver sees everything, whatever deliveries contain."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest

from headgate.adapters.forges import watch
from headgate.gate.state.change import EventKind
from headgate.map.outbox import OutboxMessage
from headgate.ports.forge import Hint
from headgate.testing.forges.github import hosts
from headgate.testing.forges.github.mail import Delivery
from headgate.testing.forges.github.people import GitHub
from tests.integration.github.ground import PROJECT, Ground, ground, opened, watched
from tests.integration.github.test_reporting import report

DEEDS = ("labeled", "unlabeled", "closed", "reopened", "converted_to_draft", "ready_for_review")
"""Events whose author is in GitHub's timeline."""


@pytest.fixture
async def here(hub: GitHub, tmp_path: Path) -> AsyncIterator[Ground]:
    async with ground(hub, tmp_path) as found:
        yield found


@pytest.mark.long
async def test_a_change_that_exists_before_the_first_poll_is_found(here: Ground) -> None:
    pull = opened(here)
    here.bob.review(pull)
    async with watched(here) as gate:
        await gate.until(lambda: gate.known)
    change = gate.change_state(1).change
    assert (change.key, change.branch, change.commit) == (f"{PROJECT}#1", "main", pull.head_sha)
    assert (change.title, change.message, change.owner) == ("A title", "A title\n\nA body", "ada")
    assert (change.ref, change.files) == ("refs/pull/1/head", ("a.txt",))
    assert change.url == f"{here.hub.url}/acme/rocket/pull/1"
    assert [one for one in gate.reported if one != "push"] == ["pull_request.opened", "pull_request_review.submitted"]
    assert gate.events[0].kind is EventKind.PROPOSED and gate.events[0].fresh
    assert gate.heads[PROJECT].keys() == {"refs/heads/main", "refs/heads/topic"}


@pytest.mark.long
async def test_every_action_causes_one_event(here: Ground) -> None:
    """Test all actions of people, under the names of the triggers."""
    async with watched(here) as gate:
        pull = opened(here)
        await here.settled()
        for act in (
            lambda: here.ada.push(here.repository, "topic", {"a.txt": "3\n"}),
            lambda: here.ada.edit(pull, title="Better"),
            lambda: here.ada.set_draft(pull),
            lambda: here.ada.set_draft(pull, False),
            lambda: here.bob.label(pull, "ready"),
            lambda: here.eve.label(pull, "ready", off=True),
            lambda: here.bob.comment(pull, "recheck"),
            lambda: here.bob.review(pull, "CHANGES_REQUESTED", "No"),
            lambda: here.bob.review(pull),
            lambda: here.eve.status(pull, "lint", "failure"),
            lambda: here.ada.close(pull),
            lambda: here.ada.reopen(pull),
            lambda: here.ada.push(here.repository, "main", {"b.txt": "1\n"}),
        ):
            act()
            here.hub.world.clock.advance(1)
            await here.settled()
    assert [one for one in gate.reported if one != "push"] == [
        "pull_request.opened",
        "pull_request.changed",
        "pull_request.edited",
        "pull_request.converted_to_draft",
        "pull_request.ready_for_review",
        "pull_request.labeled",
        "pull_request.unlabeled",
        "pull_request.comment",
        "pull_request_review.submitted",
        "pull_request_review.submitted",
        "pull_request.status",
        "pull_request.closed",
        "pull_request.reopened",
    ]
    happenings = {one.happening.action: one.happening for one in gate.events if one.happening}
    assert happenings["comment"].comments == ("recheck",)
    assert happenings["comment"].who and (happenings["comment"].who.name, happenings["comment"].who.permission) == (
        "bob",
        "admin",
    )
    assert happenings["labeled"].added == ("ready",) == happenings["unlabeled"].removed
    assert {
        action: (one.who.name, one.who.permission) for action, one in happenings.items() if action in DEEDS and one.who
    } == {
        "converted_to_draft": ("ada", "write"),
        "ready_for_review": ("ada", "write"),
        "labeled": ("bob", "admin"),
        "unlabeled": ("eve", "read"),
        "closed": ("ada", "write"),
        "reopened": ("ada", "write"),
    }
    assert happenings["status"].statuses[0].spelled == "eve:lint:failure"
    assert happenings["submitted"].state == "approved"
    details = gate.change_state(1).details
    assert details is not None and details.votes is not None
    assert [(v.who.name, v.value, v.who.permission) for v in details.votes] == [("bob", "approved", "admin")]
    assert gate.reported.count("push") >= 3  # the branches of proposals, and the other one


@pytest.mark.long
async def test_the_gap_between_two_lives_is_found(here: Ground) -> None:
    """No poll and no delivery happened: the difference contains everything."""
    async with watched(here) as gate:
        pull = opened(here)
        await here.settled()
    here.hub.mail.lose(100)
    here.hub.world.clock.advance(60)
    other = here.ada.propose(here.repository, "other", {"b.txt": "1\n"})
    here.bob.comment(pull, "recheck")
    here.bob.label(pull, "ready")
    here.bob.review(other)
    here.ada.push(here.repository, "main", {"c.txt": "1\n"})
    before = len(gate.events)
    async with watched(here):
        await gate.until(lambda: len(gate.known) == 2 and "pull_request.labeled" in gate.reported)
    assert set(gate.reported[before:]) >= {
        "pull_request.opened",
        "pull_request.comment",
        "pull_request.labeled",
        "pull_request_review.submitted",
        "push",
    }


def backwards(held: list[Delivery]) -> list[Delivery]:
    return held[::-1]


@pytest.mark.long
@pytest.mark.parametrize(
    "badly",
    [
        lambda mail: mail.double(100),
        lambda mail: mail.hold(),
    ],
    ids=["doubled", "reordered"],
)
async def test_deliveries_may_come_as_they_like(here: Ground, badly: Callable[[object], None]) -> None:
    async with watched(here) as gate:
        badly(here.hub.mail)
        pull = opened(here)
        here.bob.comment(pull, "recheck")
        here.bob.review(pull)
        here.ada.push(here.repository, "topic", {"a.txt": "3\n"})
        here.hub.mail.release(backwards)
        await here.settled()
        change_state = gate.change_state(1)
    assert change_state.change.commit == pull.head_sha
    assert gate.reported.count("pull_request.comment") == 1 == gate.reported.count("pull_request_review.submitted")
    assert gate.reported.count("pull_request.opened") == 1


@pytest.mark.long
async def test_deliveries_that_failed_are_looked_up(here: Ground) -> None:
    """GitHub repeats no delivery on its own, and a status changes nothing in any list."""
    _, here.forge = here.driver("often", every_s=0.3)
    here.gate.forge = here.forge
    async with watched(here) as gate:
        pull = opened(here)
        await here.settled()
        here.hub.mail.fail(1)
        here.eve.status(pull, "lint")
        await gate.until(lambda: "pull_request.status" in gate.reported)


async def test_merged_by_hand_and_forgotten_forks(here: Ground) -> None:
    fork = here.eve.fork(here.repository)
    async with watched(here) as gate:
        pull = here.eve.propose(here.repository, "topic", {"a.txt": "2\n"}, "😀 \u202eright to left", fork=fork)
        await here.settled()
        assert gate.change_state(1).change.files == ("a.txt",)
        here.hub.remove_fork(fork)
        here.bob.comment(pull, "recheck")
        await here.settled()
        assert gate.reported[-1] == "pull_request.comment"
        here.bob.push(here.repository, "main", {}, "Merge", merges=pull.head_sha)
        await here.settled()
    assert gate.change_state(1).landed and not gate.change_state(1).open
    assert EventKind.MERGED in [event.kind for event in gate.events]


@pytest.mark.long
async def test_two_open_changes_with_one_head(here: Ground) -> None:
    here.ada.push(here.repository, "stable", {}, base="main")
    opened(here)
    here.ada.open(here.repository, "topic", base="stable")
    async with watched(here) as gate:
        await gate.until(lambda: len(gate.known) == 2)
        here.eve.status(here.repository.pulls[1], "lint")
        await here.settled()
    assert gate.reported.count("pull_request.status") == 2
    assert {gate.change_state(n).change.branch for n in (1, 2)} == {"main", "stable"}


@pytest.mark.long
async def test_three_thousand_files_and_a_title_that_people_misread(here: Ground) -> None:
    """GitHub lists at most 3,000 files; git lists all, with any names."""
    files = {f"dir/{n:04}.txt": "" for n in range(3_001)} | {"a b/50% #1 \u202etxt.é": ""}
    title = "\U0001f680 \u202eemit\u202c \u05e9\u05dc\u05d5\u05dd " + "x" * 300
    async with watched(here) as gate:
        here.ada.propose(here.repository, "100%#\U0001f680", files, title, "\u202e\0" + "y" * 65_534)
        await here.settled()
    change = gate.change_state(1).change
    assert change.files is not None and set(change.files) == set(files)
    assert change.title.startswith("\U0001f680") and "\n" not in change.title and len(change.message) <= 16_400


@pytest.mark.long
async def test_a_suspended_installation_and_a_dying_token_are_reported_and_lose_nothing(
    here: Ground, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watch, "AGAIN_MAX_S", 0.2)
    monkeypatch.setattr(watch, "ODD_S", 0.2)
    async with watched(here) as gate:
        here.installation.suspended = True
        opened(here)
        here.forge.stir(Hint("seen", PROJECT, "1"))  # deliveries do not arrive any more
        await gate.until(lambda: "suspended" in gate.problems.get(PROJECT, ""))
        here.installation.suspended = False
        await gate.until(lambda: f"{PROJECT}#1" in gate.known and not gate.problems[PROJECT])
        for token in here.hub.world.tokens.values():  # also what git is cloning with
            token.revoked = True
        here.ada.propose(here.repository, "second", {"b.txt": "2\n"})
        await gate.until(lambda: f"{PROJECT}#2" in gate.known and not gate.problems[PROJECT])
    assert gate.change_state(2).change.files == ("b.txt",)


@pytest.mark.long
async def test_a_renamed_repository_is_followed_and_a_transferred_one_is_reported(
    here: Ground, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watch, "AGAIN_MAX_S", 0.2)
    async with watched(here) as gate:
        opened(here)
        await here.settled()
        here.hub.rename(here.repository, "lander")
        here.ada.propose(here.repository, "second", {"b.txt": "2\n"})
        here.forge.stir(Hint("after", PROJECT))
        here.forge.stir(Hint("all", ""))
        await gate.until(lambda: f"{PROJECT}#2" in gate.known)
        here.hub.transfer(here.repository, here.eve.account)
        here.forge.stir(Hint("gone", ""))
        await gate.until(lambda: gate.problems.get(PROJECT))
        assert gate.change_state(1).open and gate.change_state(2).open, "what cannot be seen is not closed"


@pytest.mark.long
async def test_retargeted_to_another_branch(here: Ground) -> None:
    here.ada.push(here.repository, "stable", {}, base="main")
    async with watched(here) as gate:
        pull = opened(here)
        await here.settled()
        here.ada.edit(pull, base="stable")
        await here.settled()
    assert gate.change_state(1).change.branch == "stable"
    assert gate.reported[-1] == "pull_request.edited"


async def test_a_branch_with_odd_names_and_a_body_that_is_long(here: Ground) -> None:
    body = "x" * 65_000 + "\nDepends-On: https://example.com/1"
    here.ada.push(here.repository, "50%#odd", {"z": "1\n"}, base="main")
    async with watched(here) as gate:
        here.ada.propose(here.repository, "more%20", {"a.txt": "2\n"}, "Odd", body, base="50%#odd")
        await here.settled()
    change = gate.change_state(1).change
    assert change.branch == "50%#odd" and change.files == ("a.txt",)
    assert len(change.message) < 17_000 and change.message.endswith("Depends-On: https://example.com/1")


async def test_a_project_that_cannot_be_polled_delays_no_other(here: Ground) -> None:
    here.hub.repository("eve/away", {"a": "1"})
    async with watched(here, "acme/rocket", "eve/away") as gate:
        opened(here)
        await here.settled()
        await gate.until(lambda: gate.problems)
    assert "is not installed at eve/away" in gate.problems["127.0.0.1/eve/away"]
    assert f"{PROJECT}#1" in gate.known


@pytest.mark.long
async def test_a_limit_is_waited_for_and_nothing_is_lost(here: Ground) -> None:
    async with watched(here) as gate:
        here.hub.limits.punish(f"installation {here.installation.id}", 600)
        here.hub.limits.after_s = 1  # is what the answers say
        opened(here)
        await gate.until(lambda: "secondary rate limit" in gate.problems.get(PROJECT, ""))
        count = len(here.hub.server.log)
        here.hub.world.clock.advance(601)
        await gate.until(lambda: gate.known and not gate.problems[PROJECT])
    assert len(here.hub.server.log) > count


@pytest.mark.long
async def test_deliveries_that_are_nothing_cost_no_call(here: Ground) -> None:
    """Deliveries about something unknown, irrelevant, or Headgate's own actions."""
    other = here.hub.repository("acme/other", {"a": "1"})
    async with watched(here) as gate:
        pull = opened(here)
        await here.settled()
        before = len(here.hub.server.log)
        here.ada.propose(other, "topic", {"a": "2"})
        root = hosts.heads(here.repository)["main"]
        here.hub.forge.says.status(here.repository, here.eve.account, root, "success", "x", None, None)
        here.hub.forge.says.comment(pull, here.app.bot, "From the gate")
        here.ada.close(pull)
        await here.settled()
        after_close = len(here.hub.server.log)
        here.bob.comment(pull, "A word on what is closed")
        await here.settled()
        assert len(here.hub.server.log) == after_close
    assert after_close - before == 1  # that it was closed
    assert gate.answered


async def test_calls_that_fail_are_made_again(here: Ground, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watch, "ODD_S", 0.2)
    async with watched(here) as gate:
        here.hub.fail("POST", "graphql", times=1, status=503)
        opened(here)
        await gate.until(lambda: "503" in gate.problems.get(PROJECT, ""))
        here.forge.stir(Hint("again", PROJECT, "1"))
        await gate.until(lambda: gate.known and not gate.problems[PROJECT])


async def test_urls_of_changes_are_recognised(here: Ground) -> None:
    url, key = here.hub.url, f"{PROJECT}#12"
    for text in (f"{url}/acme/rocket/pull/12", f"{url}/acme/rocket/pull/12/files#x", f"{url}/acme/rocket/pull/12?a=b"):
        assert here.forge.named(text) == key
    for text in (
        "https://example.com/acme/rocket/pull/12",
        f"{url}/acme/rocket/issues/12",
        f"{url}/acme/rocket/pull/1x",
    ):
        assert here.forge.named(text) == ""
    opened(here)
    change_state = await here.forge.look_up(f"{PROJECT}#1")
    assert change_state is not None and change_state.open and change_state.change.number == "1"
    assert await here.forge.look_up(f"{PROJECT}#2") is None
    assert await here.forge.look_up("127.0.0.1/nobody/there#2") is None


@pytest.mark.long
async def test_a_rerequested_check_causes_an_event(here: Ground) -> None:
    async with watched(here) as gate:
        pull = opened(here)
        await here.settled()
        message = report("failure")
        await here.forge.report(
            OutboxMessage("", message, change=gate.change_state(1).change, how={"check": "failure"})
        )
        (run,) = here.repository.check_runs.values()
        here.bob.rerun(here.repository, run)
        await here.settled()
        here.bob.comment(pull, "Thanks")
        await here.settled()
    assert [one for one in gate.reported if one != "push"] == [
        "pull_request.opened",
        "check_run.completed",
        "check_run.rerequested",
        "pull_request.comment",
    ]
    happenings = [
        event.happening for event in gate.events if event.happening and event.happening.action == "rerequested"
    ]
    (status,) = [one for happening in happenings for one in happening.statuses]
    assert status.spelled == "headgate:acme/gate:failure"
