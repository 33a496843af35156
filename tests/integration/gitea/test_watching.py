"""Test that the driver sees everything, whatever deliveries contain."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from headgate.base.tasks import end
from headgate.gate.state.change import EventKind
from headgate.ports.forge import Hint
from headgate.testing.forges.github import hosts
from headgate.testing.forges.github.mail import Delivery, Mail
from tests.integration.gitea.ground import PROJECT, Ground, opened, watched


async def test_a_change_that_exists_before_the_first_poll_is_found(here: Ground) -> None:
    pull = opened(here)
    here.bob.review(pull)
    async with watched(here) as gate:
        await gate.until(lambda: gate.known)
    change = gate.change_state(1).change
    assert (change.key, change.branch, change.commit) == (f"{PROJECT}#1", "main", pull.head_sha)
    assert (change.title, change.message, change.owner) == ("A title", "A title\n\nA body", "ada")
    assert (change.ref, change.files) == ("refs/pull/1/head", ("a.txt",))
    assert change.url == f"{here.hub.url}/acme/rocket/pulls/1"
    assert [one for one in gate.reported if one != "push"] == ["pull_request.opened", "pull_request_review.submitted"]
    assert gate.events[0].kind is EventKind.PROPOSED and gate.events[0].fresh
    assert gate.heads[PROJECT].keys() == {"refs/heads/main", "refs/heads/topic"}


async def test_every_action_causes_one_event(here: Ground) -> None:
    """Test all actions of people, under the names of the triggers."""
    async with watched(here) as gate:
        pull = opened(here)
        await here.settled()
        for act in (
            lambda: here.ada.push(here.repository, "topic", {"a.txt": "3\n"}),
            lambda: here.ada.edit(pull, body="Depends-On: nothing"),
            lambda: here.bob.label(pull, "ready"),
            lambda: here.bob.label(pull, "ready", off=True),
            lambda: here.bob.comment(pull, "recheck"),
            lambda: here.bob.review(pull, "REQUEST_CHANGES", "No"),
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
    assert happenings["status"].statuses[0].spelled == "eve:lint:failure"
    assert happenings["submitted"].state == "approved"
    details = gate.change_state(1).details
    assert details is not None and details.votes is not None
    assert [(v.who.name, v.value, v.who.permission) for v in details.votes] == [("bob", "approved", "admin")]
    assert gate.reported.count("push") >= 3  # the branches of proposals, and the other one


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


async def test_a_status_whose_delivery_is_lost_is_found_in_turn(here: Ground) -> None:
    """It changes nothing in the list of pull requests."""
    _, here.forge = here.driver("often", every_s=0.3)
    here.gate.forge = here.forge
    async with watched(here) as gate:
        pull = opened(here)
        await here.settled()
        here.hub.mail.lose(1)
        here.eve.status(pull, "lint")
        await gate.until(lambda: "pull_request.status" in gate.reported)
    await here.forge.close()


def backwards(held: list[Delivery]) -> list[Delivery]:
    return held[::-1]


@pytest.mark.parametrize("badly", [lambda mail: mail.double(100), lambda mail: mail.hold()], ids=["doubled", "late"])
async def test_deliveries_may_come_as_they_like(here: Ground, badly: Callable[[Mail], None]) -> None:
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


async def test_a_fork_is_deleted_and_its_change_is_merged_by_hand(here: Ground) -> None:
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
async def test_two_open_changes_with_one_head_of_three_thousand_files(here: Ground) -> None:
    files = {f"dir/{n:04}.txt": "" for n in range(3_001)} | {"a b/50% #1 \u202etxt.é": ""}
    title = "\U0001f680 \u202eemit\u202c \u05e9\u05dc\u05d5\u05dd " + "x" * 150
    here.bob.push(here.repository, "stable", {"s": "1\n"}, base="main")
    async with watched(here) as gate:
        here.ada.propose(here.repository, "many", files, title, "y" * 65_536)
        here.ada.open(here.repository, "many", "Same", base="stable")
        await here.settled()
        await gate.until(lambda: len(gate.known) == 2)
    one, other = gate.change_state(1).change, gate.change_state(2).change
    assert one.commit == other.commit and (one.branch, other.branch) == ("main", "stable")
    assert one.files is not None and set(one.files) == set(files)
    assert one.title.startswith("\U0001f680") and "\n" not in one.title and len(one.message) <= 16_400


async def test_a_title_makes_a_draft(here: Ground) -> None:
    async with watched(here) as gate:
        pull = opened(here, "WIP: not yet")
        await here.settled()
        assert (details := gate.change_state(1).details) and details.draft is True
        here.ada.edit(pull, title="Now")
        await here.settled()
    assert (details := gate.change_state(1).details) and details.draft is False
    assert gate.reported[-1] == "pull_request.ready_for_review"


async def test_retargeted_to_another_branch_with_an_odd_name(here: Ground) -> None:
    here.ada.push(here.repository, "rel/50%#odd", {"z": "1\n"}, base="main")
    here.hub.protect(here.repository, "rel/50%#odd", approvals=2)
    async with watched(here) as gate:
        pull = opened(here)
        await here.settled()
        here.ada.edit(pull, base="rel/50%#odd")
        await here.settled()
    assert gate.change_state(1).change.branch == "rel/50%#odd"
    assert gate.reported[-1] == "pull_request.edited"
    assert [one.text for one in gate.change_state(1).details.rules or ()] == [  # type: ignore[union-attr]
        "needs 2 approvals that count for rel/50%#odd, and has 0"
    ]


async def test_a_body_that_is_long_and_many_pages(here: Ground) -> None:
    here.hub.world.page_max = 2  # the server's own limit is lower than the requested one
    body = "x" * 65_000 + "\nDepends-On: https://example.com/1"
    pulls = [here.ada.propose(here.repository, f"topic{n}", {f"{n}": ""}, "T", body) for n in range(5)]
    for _ in range(5):
        here.eve.review(pulls[0], "COMMENT")
    here.bob.review(pulls[0])
    async with watched(here) as gate:
        await gate.until(lambda: len(gate.known) == 5)
    change = gate.change_state(1).change
    assert len(change.message) < 17_000 and change.message.endswith("Depends-On: https://example.com/1")
    votes = gate.change_state(1).details.votes or ()  # type: ignore[union-attr]
    assert [(one.who.name, one.value) for one in votes] == [("bob", "approved"), ("eve", "commented")]


async def test_a_project_that_cannot_be_polled_delays_no_other(here: Ground) -> None:
    async with watched(here, "acme/rocket", "eve/away") as gate:
        opened(here)
        await here.settled()
        await gate.until(lambda: "127.0.0.1/eve/away" in gate.problems)
    assert "it cannot be read" in gate.problems["127.0.0.1/eve/away"]
    assert f"{PROJECT}#1" in gate.known


async def test_a_renamed_repository_is_reported_and_still_followed(here: Ground) -> None:
    """Git would take the token to any redirected address, so redirects are not followed."""
    opened(here)
    here.hub.rename(here.repository, "starship")
    change_state = await here.forge.look_up(f"{PROJECT}#1")
    assert change_state is not None and change_state.change.project == PROJECT
    here.watch("acme/rocket")
    task = asyncio.ensure_future(here.gate.run())
    try:
        await here.gate.until(lambda: "it cannot be read" in here.gate.problems.get(PROJECT, ""))
    finally:
        await end(task)


@pytest.mark.long
async def test_a_limit_is_waited_for_and_nothing_is_lost(here: Ground) -> None:
    async with watched(here) as gate:
        here.hub.server.limit(600, after_s=1)
        opened(here)
        await gate.until(lambda: "Too Many Requests" in gate.problems.get(PROJECT, ""))
        here.hub.world.clock.advance(601)
        await gate.until(lambda: gate.known and not gate.problems[PROJECT])


async def test_a_revoked_token_is_reported(here: Ground) -> None:
    for one in here.hub.world.tokens.values():
        one.revoked = True
    here.watch()
    change_state = None
    try:
        change_state = await here.forge.look_up(f"{PROJECT}#1")
    except OSError as error:
        assert "refuses the api_token: create another one" in str(error)
    assert change_state is None and here.hub.server.log


async def test_deliveries_that_are_nothing_cost_no_call(here: Ground) -> None:
    """Deliveries about something unknown, irrelevant, or Headgate's own actions."""
    other = here.hub.repository("acme/other", {"a": "1"})
    async with watched(here) as gate:
        pull = opened(here)
        await here.settled()
        before = len(here.hub.server.log)
        here.ada.propose(other, "topic", {"a": "2"})
        root = hosts.heads(here.repository)["main"]
        here.hub.acts.status(here.repository, here.eve.account, root, "success", "x", "", "")
        here.bot.comment(pull, "From the gate")
        here.bot.status(pull, "example/gate")
        await here.settled()
        assert len(here.hub.server.log) == before
        here.ada.close(pull)
        await here.settled()
        after_close = len(here.hub.server.log)
        here.bob.comment(pull, "A word on what is closed")
        await here.settled()
        assert len(here.hub.server.log) == after_close
    assert after_close - before == 4  # that it was closed, and comments until then
    assert gate.answered


async def test_calls_that_fail_are_made_again(here: Ground) -> None:
    async with watched(here) as gate:
        here.hub.fail("GET", "/repos/{owner}/{repo}/pulls/{index}/reviews", times=1, status=503)
        opened(here)
        await gate.until(lambda: "503" in gate.problems.get(PROJECT, ""))
        here.forge.stir(Hint("again", PROJECT, "1"))
        await gate.until(lambda: gate.known and not gate.problems[PROJECT])


async def test_urls_of_changes_are_recognised(here: Ground) -> None:
    url, key = here.hub.url, f"{PROJECT}#12"
    for path in ("pulls/12", "pull/12", "issues/12", "pulls/12/files#x", "pulls/12?a=b"):
        assert here.forge.named(f"{url}/acme/rocket/{path}") == key
    for text in (
        "https://example.com/code/acme/rocket/pulls/12",
        f"{url}/acme/rocket/pulls/1x",
        f"{url.removesuffix('/code')}/acme/rocket/pulls/12",
        f"{url}/acme/rocket/../pulls/12",
    ):
        assert here.forge.named(text) == ""
    opened(here)
    change_state = await here.forge.look_up(f"{PROJECT}#1")
    assert change_state is not None and change_state.open and change_state.change.number == "1"
    assert await here.forge.look_up(f"{PROJECT}#2") is None
    assert await here.forge.look_up("127.0.0.1/nobody/there#2") is None


async def test_a_transferred_repository_is_reported_and_nothing_is_lost(here: Ground) -> None:
    async with watched(here) as gate:
        opened(here)
        await here.settled()
        owner = here.repository.owner
        here.hub.transfer(here.repository, here.eve.account)
        here.forge.stir(Hint("all", ""))
        await gate.until(lambda: "it cannot be read" in gate.problems.get(PROJECT, ""))
        assert gate.change_state(1).open, "nobody has closed it"
        here.ada.propose(here.repository, "second", {"b.txt": "1\n"})
        here.hub.transfer(here.repository, owner)
        await gate.until(lambda: f"{PROJECT}#2" in gate.known and not gate.problems[PROJECT])
    assert gate.reported.count("pull_request.opened") == 2 and "pull_request.closed" not in gate.reported
