"""Test that the driver sees everything, whatever deliveries contain."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from headgate.adapters.forges import rest, watch
from headgate.adapters.forges.gitlab.client import GitLabClient
from headgate.adapters.forges.rest import Query
from headgate.config.operator.model import Protection
from headgate.gate.state.change import ChangeState, EventKind
from headgate.ports.forge import Hint
from headgate.ports.reporter import ReporterAway
from headgate.testing.forges.github import hosts
from headgate.testing.forges.github.mail import Delivery
from headgate.testing.forges.gitlab.model import DEVELOPER, Protected
from tests.integration.gitlab.ground import PATH, PROJECT, Ground, M, opened, watched


def of_requests(events: list[str]) -> list[str]:
    return [one.removeprefix("gl_merge_request.") for one in events if one != "gl_push"]


async def test_a_change_that_exists_before_the_first_poll_is_found(here: Ground) -> None:
    one = opened(here)
    here.bob.approve(one)
    async with watched(here) as gate:
        await gate.until(lambda: gate.known)
        change_state = gate.known[f"{PROJECT}#1"]
    change, details = change_state.change, change_state.details
    assert (change.key, change.branch, change.commit) == (f"{PROJECT}#1", "main", one.sha)
    assert (change.title, change.message, change.owner) == ("A title", "A text", "ada")
    assert (change.ref, change.files) == ("refs/merge-requests/1/head", ("a.txt",))
    assert change.url == f"{here.hub.url}/{PATH}/-/merge_requests/1"
    assert of_requests(gate.reported) == ["opened", "approved"]
    assert gate.events[0].kind is EventKind.PROPOSED and gate.events[0].fresh
    assert gate.heads[PROJECT].keys() == {"refs/heads/main", "refs/heads/topic"}
    assert details is not None and details.us == ("gate",)
    assert (details.approved, details.draft, details.mergeable, details.rules) == (True, False, True, ())
    assert change_state.is_approved and not change_state.landed


async def test_every_action_causes_one_event(here: Ground) -> None:
    """Test all actions of people, under the names of the triggers."""
    here.ada.push(here.project, "stable", {}, base="main")
    async with watched(here) as gate:
        one = opened(here)
        await here.settled()
        for act in (
            lambda: here.ada.push(here.project, "topic", {"a.txt": "3\n"}),
            lambda: here.ada.edit(one, description="Better"),
            lambda: here.ada.edit(one, title="Draft: A title"),
            lambda: here.ada.edit(one, title="A title"),
            lambda: here.ada.edit(one, target_branch="stable"),
            lambda: here.bob.label(one, "ready", "fast"),
            lambda: here.bob.label(one, "ready", off=True),
            lambda: here.bob.comment(one, "recheck"),
            lambda: here.bob.approve(one),
            lambda: here.bob.unapprove(one),
            lambda: here.ada.close(one),
            lambda: here.ada.reopen(one),
        ):
            act()
            here.hub.world.clock.advance(1)
            await here.settled()
    assert of_requests(gate.reported) == [
        "opened",
        "changed",
        "changed",  # the description
        "changed",  # it is no longer a draft
        "changed",  # it targets another branch
        "labeled",
        "labeled",
        "comment",
        "approved",
        "unapproved",
        "closed",
        "reopened",
    ]
    events = [event for event in gate.events if event.happening and event.happening.event == "gl_merge_request"]
    happenings = [event.happening for event in events]
    assert [event.kind for event in events[:3]] == [EventKind.PROPOSED, EventKind.PROPOSED, EventKind.STIRRED]
    assert happenings[5].added == ("fast", "ready") and happenings[6].removed == ("ready",)  # type: ignore[union-attr]
    assert happenings[7].comments == ("recheck",)  # type: ignore[union-attr]
    who = happenings[7].who  # type: ignore[union-attr]
    assert who is not None and (who.name, who.permission) == ("bob", "admin")
    assert gate.known[f"{PROJECT}#1"].change.branch == "stable"


async def test_comments_carry_the_permission_that_their_author_has_in_the_project(here: Ground) -> None:
    levels = {"none": 0, "guest": 10, "reporter": 20, "developer": 30, "owner": 50}
    for name, level in levels.items():
        here.project.members[name] = level
    one = opened(here)
    async with watched(here) as gate:
        for name in levels:
            here.hub.person(name).comment(one, "recheck")
        await here.settled()
    happenings = [event.happening for event in gate.events if event.happening and event.happening.action == "comment"]
    assert {one.who.name: one.who.permission for one in happenings if one.who} == {
        "none": "none",
        "guest": "read",
        "reporter": "read",
        "developer": "write",
        "owner": "admin",
    }


async def test_the_gap_between_two_lives_is_found(here: Ground) -> None:
    """No poll and no delivery happened: the difference contains everything."""
    async with watched(here) as gate:
        one = opened(here)
        await here.settled()
    here.hub.mail.lose(100)
    here.hub.world.clock.advance(60)
    here.ada.propose(here.project, "other", {"b.txt": "1\n"})
    here.bob.comment(one, "recheck")
    here.bob.label(one, "ready")
    here.bob.approve(one)
    here.ada.push(here.project, "main", {"c.txt": "1\n"})
    before = len(gate.events)
    async with watched(here):
        await gate.until(lambda: len(gate.known) == 2 and "gl_merge_request.labeled" in gate.reported)
    assert {*of_requests(gate.reported[before:])} == {"opened", "comment", "labeled", "approved"}
    assert "gl_push" in gate.reported[before:]


def backwards(held: list[Delivery]) -> list[Delivery]:
    return held[::-1]


@pytest.mark.parametrize(
    "badly", [lambda mail: mail.double(100), lambda mail: mail.hold()], ids=["doubled", "reordered"]
)
async def test_deliveries_may_come_as_they_like(here: Ground, badly: Callable[[object], None]) -> None:
    async with watched(here) as gate:
        badly(here.hub.mail)
        one = opened(here)
        here.bob.comment(one, "recheck")
        here.ada.push(here.project, "topic", {"a.txt": "3\n"})
        here.bob.approve(one)
        here.hub.mail.release(backwards)
        await here.settled()
    assert gate.known[f"{PROJECT}#1"].change.commit == one.sha
    events = of_requests(gate.reported)
    assert {name: events.count(name) for name in ("opened", "comment", "approved")} == dict(
        opened=1, comment=1, approved=1
    )


async def test_a_push_revokes_approvals_and_a_new_approval_causes_an_event(here: Ground) -> None:
    one = opened(here)
    async with watched(here) as gate:
        here.bob.approve(one)
        await here.settled()
        here.hub.mail.lose(2)  # the push, and the merge request that it created
        here.hub.world.clock.advance(5)
        here.ada.push(here.project, "topic", {"a.txt": "3\n"})
        here.bob.approve(one)
        await here.settled()
        change_state = gate.known[f"{PROJECT}#1"]
        assert change_state.is_approved and change_state.change.commit == one.sha
        assert of_requests(gate.reported) == ["opened", "approved", "changed", "approved"]
        here.project.keeps_approvals = True
        here.hub.world.clock.advance(5)
        here.ada.push(here.project, "topic", {"a.txt": "4\n"})
        await here.settled()
    assert of_requests(gate.reported)[4:] == ["changed"], "what was kept is no new approval"


async def test_merged_by_hand_and_forgotten_forks(here: Ground) -> None:
    fork = here.eve.fork(here.project)
    async with watched(here) as gate:
        one = here.eve.propose(here.project, "topic", {"a.txt": "2\n"}, "😀 \u202eright to left", fork=fork)
        await here.settled()
        assert gate.known[f"{PROJECT}#1"].change.files == ("a.txt",)
        here.hub.remove_fork(fork)
        here.bob.comment(one, "recheck")
        await here.settled()
        assert gate.reported[-1] == "gl_merge_request.comment"
        details = gate.known[f"{PROJECT}#1"].details
        assert details is not None and details.rules is not None
        assert "its branch, which is gone" in details.rules[0].text and details.rules[0].met is False
        here.bob.push(here.project, "main", {}, "Merge", merges=one.sha)
        await here.settled()
    change_state = gate.known[f"{PROJECT}#1"]
    assert change_state.landed and not change_state.open
    assert "gl_merge_request.merged" in gate.reported


async def test_a_branch_with_odd_names_and_a_text_that_is_long(here: Ground) -> None:
    text = "x" * 65_000 + "\nDepends-On: https://example.com/1"
    here.ada.push(here.project, "50%#odd", {"z": "1\n"}, base="main")
    async with watched(here) as gate:
        here.ada.propose(here.project, "more%20", {"a.txt": "2\n"}, "Odd", text, target="50%#odd")
        await here.settled()
    change = gate.known[f"{PROJECT}#1"].change
    assert change.branch == "50%#odd" and change.files == ("a.txt",)
    assert len(change.message) < 17_000 and change.message.endswith("Depends-On: https://example.com/1")


async def test_values_that_gitlab_computes_later_are_polled_again(
    here: Ground, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watch, "SETTLES_S", 0.1)
    here.hub.world.undecided_asks = 2
    seen: list[ChangeState] = []
    async with watched(here) as gate:
        take = gate.take
        monkeypatch.setattr(gate, "take", lambda sighting: (seen.extend(sighting.change_states), take(sighting)))
        opened(here)
        await gate.until(lambda: seen and seen[-1].details and seen[-1].details.mergeable)
    details = [one.details for one in seen if one.details is not None]
    assert [(one.mergeable, [rule.met for rule in one.rules or ()]) for one in details] == [(None, [None]), (True, [])]
    requests = [one for one in here.hub.server.log if one.template == M and one.method == "GET"]
    assert len(requests) == 3


async def test_a_pipeline_that_ends_is_seen_whatever_deliveries_do(here: Ground) -> None:
    """It changes no timestamp of a merge request."""
    here.project.only_if_pipeline_succeeds = True
    one = opened(here)
    here.eve.status(one, "lint", "running")

    def lacking() -> list[tuple[bool | None, tuple[str, ...]]]:
        details = gate.known[f"{PROJECT}#1"].details
        return [(rule.met, rule.missing) for rule in details.rules or ()] if details is not None else []

    async with watched(here) as gate:
        await gate.until(lambda: gate.known)
        assert lacking() == [(None, ("lint",))]
        here.eve.status(one, "lint", "failed")
        await here.settled()
        assert lacking() == [(False, ("lint",))]
        here.hub.mail.lose(1)
        here.eve.status(one, "lint", "success")
        here.forge.stir(Hint("anywhere"))
        await gate.until(lambda: lacking() == [])


async def test_the_limit_that_gitlab_reports_is_respected(here: Ground) -> None:
    here.hub.limits.limit = 20
    opened(here)
    assert await here.forge.look_up(f"{PROJECT}#1") is not None
    budget = here.client.budget(here.client.key)
    used = here.hub.limits.used["gate"]
    assert (budget.limit, budget.remaining) == (20, 20 - used) and used > 2
    with pytest.raises(ReporterAway, match="the request limit") as away:
        for _ in range(30):
            await here.forge.look_up(f"{PROJECT}#1")
    assert 0 < away.value.wait_s <= 62 and here.hub.limits.used["gate"] == 20


async def test_a_project_under_another_path_is_still_seen(here: Ground) -> None:
    async with watched(here) as gate:
        one = opened(here)
        await here.settled()
        here.hub.rename(here.project, "acme/space/shuttle")
        here.ada.push(here.project, "topic", {"a.txt": "3\n"})
        here.forge.stir(Hint("look", PROJECT, "1"))
        await gate.until(lambda: "look" in gate.answered)
    assert gate.known[f"{PROJECT}#1"].change.commit == one.sha
    assert any("acme/space/shuttle is in no tenant" in why for why in here.ignored)


@pytest.mark.long
async def test_two_open_changes_with_one_head_of_three_thousand_files(here: Ground) -> None:
    files = {f"dir/{n:04}.txt": "" for n in range(3_001)} | {"a b/50% #1 \u202etxt.é": ""}
    title = "\U0001f680 \u202eemit\u202c \u05e9\u05dc\u05d5\u05dd " + "x" * 150
    here.bob.push(here.project, "stable", {"s": "1\n"}, base="main")
    async with watched(here) as gate:
        here.ada.propose(here.project, "many", files, title, "y" * 65_536)
        here.ada.acts.open(here.project, here.project, "many", "stable", here.ada.user, "Same", "")
        await here.settled()
        await gate.until(lambda: len(gate.known) == 2)
    one, other = (gate.known[f"{PROJECT}#{n}"].change for n in (1, 2))
    assert one.commit == other.commit and (one.branch, other.branch) == ("main", "stable")
    assert one.files is not None and set(one.files) == set(files)
    assert one.title.startswith("\U0001f680") and "\n" not in one.title and len(one.message) <= 16_400


@pytest.mark.long
async def test_a_revoked_token_is_reported_and_a_valid_one_continues(here: Ground) -> None:
    async with watched(here) as gate:
        here.hub.world.tokens[here.token].revoked = True
        opened(here)
        await gate.until(lambda: "Token was revoked" in gate.problems.get(PROJECT, ""))
        assert "api_token of [connection hub]" in gate.problems[PROJECT]
        here.hub.world.tokens[here.token].revoked = False
        await gate.until(lambda: gate.known and not gate.problems[PROJECT])


@pytest.mark.long
async def test_a_limit_is_waited_for_and_nothing_is_lost(here: Ground) -> None:
    async with watched(here) as gate:
        here.hub.limits.punish("gate", 600, after_s=1)
        opened(here)
        await gate.until(lambda: "it cannot be queried" in gate.problems.get(PROJECT, ""))
        count = len(here.hub.server.log)
        here.hub.world.clock.advance(601)
        await gate.until(lambda: gate.known and not gate.problems[PROJECT])
    assert len(here.hub.server.log) > count


async def test_calls_that_fail_are_made_again(here: Ground) -> None:
    async with watched(here) as gate:
        here.hub.fail("GET", M, status=503)
        opened(here)
        await gate.until(lambda: "503" in gate.problems.get(PROJECT, ""))
        here.forge.stir(Hint("once more", PROJECT, "1"))
        await gate.until(lambda: gate.known and not gate.problems[PROJECT])


async def test_a_project_that_cannot_be_polled_delays_no_other(here: Ground) -> None:
    here.hub.project("eve/away", {"a": "1"}).private = True
    async with watched(here, PATH, "eve/away") as gate:
        opened(here)
        await here.settled()
        await gate.until(lambda: gate.problems)
    assert "127.0.0.1/eve/away" in gate.problems and f"{PROJECT}#1" in gate.known


@pytest.mark.long
async def test_lists_of_several_pages_are_read_completely(here: Ground) -> None:
    tip = hosts.heads(here.project)["main"]
    for n in range(5):
        hosts.point(here.project, f"refs/heads/t{n}", tip)
        here.hub.acts.open(here.project, here.project, f"t{n}", "main", here.ada.user, "T", "")
    for n in range(120):
        here.eve.comment(here.project.requests[1], f"word {n}")
    key, path = here.client.key, f"{here.account.path(PROJECT)}/merge_requests"
    found = [one["iid"] async for page in here.client.pages(key, path, {"per_page": 2}) for one in page]
    assert sorted(found) == [1, 2, 3, 4, 5]
    query: Query = {"pagination": "keyset", "per_page": 50}
    notes = [one["id"] async for page in here.client.pages(key, f"{path}/1/notes", query) for one in page]
    assert len(notes) == 120 == len(set(notes))
    async with watched(here) as gate:
        await gate.until(lambda: len(gate.known) == 5)
    first = gate.reported.count("gl_merge_request.comment")
    assert first == 100, "of what nobody knew, one page"
    for n in range(130):
        here.eve.comment(here.project.requests[1], f"more {n}")
    async with watched(here):
        await gate.until(lambda: gate.reported.count("gl_merge_request.comment") == first + 130)


async def test_protected_branches_are_reported_where_somebody_needs_them(here: Ground) -> None:
    here.ada.push(here.project, "release", {"r": "1\n"})
    async with watched(here) as gate:
        assert gate.protections == []
    async with watched(here, exclude_unprotected_branches=True) as gate:
        await gate.until(lambda: gate.protections)
        assert gate.protections[-1] == Protection(frozenset({"main"}), frozenset())
        here.project.protected["release"] = Protected("release")
        here.forge.stir(Hint("anywhere"))
        await gate.until(lambda: gate.protections[-1] == Protection(frozenset({"main", "release"}), frozenset()))


@pytest.mark.parametrize("elsewhere", [False, True], ids=["cut", "elsewhere"])
async def test_an_incomplete_list_of_branches_reports_nothing(
    here: Ground, monkeypatch: pytest.MonkeyPatch, elsewhere: bool
) -> None:
    """Anybody who may push could create so many that protected ones are on no requested page."""
    here.ada.push(here.project, "another", {"r": "1\n"})
    monkeypatch.setattr(GitLabClient, "page_size", {"per_page": 1})
    if elsewhere:
        monkeypatch.setattr(rest, "_next", lambda link, api: None)
    else:
        monkeypatch.setattr(rest, "PAGES_MAX", 1)
    async with watched(here, exclude_unprotected_branches=True) as gate:
        await gate.until(lambda: "too many branches to read" in gate.problems.get(PROJECT, ""))
    assert gate.protections == []


async def test_urls_of_changes_are_recognised(here: Ground) -> None:
    url, key = here.hub.url, f"{PROJECT}#12"
    for text in (
        f"{url}/{PATH}/-/merge_requests/12",
        f"{url}/{PATH}/merge_requests/12",
        f"{url}/{PATH}/-/merge_requests/12/diffs?a=b#note_1",
    ):
        assert here.forge.named(text) == key
    for text in (
        f"https://example.com/{PATH}/-/merge_requests/12",
        f"{url}/{PATH}/-/issues/12",
        f"{url}/{PATH}/-/merge_requests/1x",
        f"{url}/rocket/-/merge_requests/1",
        f"{url}/acme/../rocket/-/merge_requests/1",
    ):
        assert here.forge.named(text) == ""
    opened(here)
    change_state = await here.forge.look_up(f"{PROJECT}#1")
    assert change_state is not None and change_state.open and change_state.change.number == "1"
    assert await here.forge.look_up(f"{PROJECT}#2") is None
    assert await here.forge.look_up("127.0.0.1/nobody/there#2") is None


async def test_an_address_with_a_path_is_no_part_of_names(here: Ground) -> None:
    _, forge = here.driver("below", web="https://example.com/lab")
    assert forge.named(f"https://example.com/lab/{PATH}/-/merge_requests/3") == f"{PROJECT}#3"
    assert forge.named(f"https://example.com/{PATH}/-/merge_requests/3") == ""
    assert forge.named(f"https://example.com/label/{PATH}/-/merge_requests/3") == ""


async def test_deliveries_that_are_nothing_cost_no_call(here: Ground) -> None:
    """Deliveries about something unknown, irrelevant, or Headgate's own actions."""
    other = here.hub.project("acme/other", {"a": "1"})
    other.hooks, other.members["ada"] = here.project.hooks, DEVELOPER
    async with watched(here):
        one = opened(here)
        await here.settled()
        before = len(here.hub.server.log)
        here.ada.propose(other, "topic", {"a": "2"})
        gate_account = here.hub.world.user("gate")
        here.hub.acts.note(one, gate_account, "From the gate")
        here.hub.acts.status(here.project, gate_account, one.sha, "topic", "acme/gate", "success", None, None)
        here.hub.acts.label(one, gate_account, ("gated",))
        here.hub.acts.approve(one, gate_account)
        here.ada.status(one, "lint", "running")
        await here.settled()
        assert len(here.hub.server.log) == before
        here.ada.close(one)
        await here.settled()
        after_close = len(here.hub.server.log)
        here.bob.comment(one, "A word on what is closed")
        await here.settled()
        assert len(here.hub.server.log) == after_close
    assert after_close - before == 1  # that it was closed


async def test_a_project_transferred_beyond_our_access_is_reported_and_nothing_is_lost(here: Ground) -> None:
    async with watched(here) as gate:
        opened(here)
        await here.settled()
        before = here.hub.transfer(here.project, "others/rocket")
        here.forge.stir(Hint("all", ""))
        await gate.until(lambda: "not found" in gate.problems.get(PROJECT, ""))
        assert gate.known[f"{PROJECT}#1"].open, "nobody has closed it"
        here.project.members = before
        here.ada.propose(here.project, "second", {"b.txt": "1\n"}, "Second")
        await gate.until(lambda: f"{PROJECT}#2" in gate.known and not gate.problems[PROJECT])
    assert gate.reported.count("gl_merge_request.opened") == 2 and "gl_merge_request.closed" not in gate.reported
