"""Test that the driver sees everything, whatever deliveries contain."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from headgate.config.forges.facts import Details
from headgate.gate.state.change import EventKind
from headgate.ports.forge import Hint
from headgate.testing.forges.github.mail import Delivery, Mail
from headgate.testing.forges.pagure.model import FakePagureRequest
from tests.integration.github.ground import Gate
from tests.integration.pagure.ground import PROJECT, Ground, opened, watched


def details(gate: Gate, number: int = 1) -> Details:
    found = gate.change_state(number).details
    assert found is not None
    return found


async def test_a_change_that_exists_before_the_first_poll_is_found(here: Ground) -> None:
    pull = opened(here)
    here.bob.thumb(pull)
    async with watched(here) as gate:
        await gate.until(lambda: gate.known)
    change = gate.change_state(1).change
    assert (change.key, change.branch, change.commit) == (f"{PROJECT}#1", "main", pull.commit_stop)
    assert (change.title, change.message, change.owner) == ("A title", "A text", "ada")
    assert (change.ref, change.files) == ("refs/pull/1/head", ("a.txt",))
    assert change.url == f"{here.hub.url}/acme/rocket/pull-request/1"
    assert [one for one in gate.reported if one != "pg_push"] == [
        "pg_pull_request.opened",
        "pg_pull_request_review.thumbsup",
    ]
    assert gate.events[0].kind is EventKind.PROPOSED and gate.events[0].fresh
    assert details(gate).score == 1
    assert (details(gate).approved, details(gate).mergeable, details(gate).draft) == (None, None, None), "not known"


@pytest.mark.long
async def test_every_action_causes_one_event(here: Ground, monkeypatch: pytest.MonkeyPatch) -> None:
    """Test all actions of people, under the names of the triggers. Pagure's times have whole seconds, and all of this
    happens in one, except for the flag: a flag in the second of a push may belong to the earlier commits."""
    now_s = here.hub.world.clock.now_s()
    monkeypatch.setattr(here.hub.world.clock, "now_s", lambda: now_s)

    def flag(pull: FakePagureRequest) -> None:
        monkeypatch.setattr(here.hub.world.clock, "now_s", lambda: now_s + 1)
        here.eve.flag(pull, "lint", "failure")

    async with watched(here) as gate:
        pull = opened(here)
        await here.settled()
        for act in (
            lambda: here.ada.push(here.project, "topic", {"a.txt": "3\n"}),
            lambda: here.ada.edit(pull, initial_comment="Depends-On: nothing"),
            lambda: here.bob.tag(pull, "ready"),
            lambda: here.bob.tag(pull, "ready", off=True),
            lambda: here.bob.comment(pull, "recheck"),
            lambda: here.bob.thumb(pull, "down"),
            lambda: here.bob.thumb(pull),
            lambda: here.bob.comment(pull, ":thumbsup: to this line", commit=pull.commit_stop),
            lambda: flag(pull),
            lambda: here.ada.close(pull),
            lambda: here.ada.reopen(pull),
            lambda: here.ada.push(here.project, "main", {"b.txt": "1\n"}),
        ):
            act()
            await here.settled()
    assert [one for one in gate.reported if one != "pg_push"] == [
        "pg_pull_request.opened",
        "pg_pull_request.changed",
        "pg_pull_request.changed",
        "pg_pull_request.tagged",
        "pg_pull_request.comment",
        "pg_pull_request_review.thumbsdown",
        "pg_pull_request_review.thumbsup",
        "pg_pull_request.comment",
        "pg_pull_request.status",
        "pg_pull_request.closed",
        "pg_pull_request.opened",
    ]
    happenings = [one.happening for one in gate.events if one.happening]
    comments = [one for one in happenings if one.action == "comment"]
    assert [one.comments for one in comments] == [("recheck",), (":thumbsup: to this line",)]
    assert comments[0].who and (comments[0].who.name, comments[0].who.permission) == ("bob", "admin")
    assert next(one for one in happenings if one.action == "tagged").added == ("ready",)
    assert [(one.state, one.statuses[0].spelled) for one in happenings if one.statuses] == [
        ("failure", "eve:lint:failure")
    ]
    assert gate.reported.count("pg_push") >= 3  # the branches of proposals, and the other one


@pytest.mark.long
async def test_votes_on_former_commits_no_longer_count(here: Ground) -> None:
    """Whether or not a comment of Pagure announces new commits, each person has one vote, the last."""
    async with watched(here) as gate:
        pull = opened(here)
        for _ in range(3):
            here.bob.thumb(pull)
        here.eve.thumb(pull, "down")
        here.eve.thumb(pull)
        here.bot.flag(pull, "own")
        here.eve.flag(pull, "lint")
        await here.settled()
        assert details(gate).score == 2
        assert [one.name for one in details(gate).statuses or ()] == ["lint"], "ours names its commit"
        here.hub.world.clock.advance(5)
        here.ada.push(here.project, "topic", {"a.txt": "3\n"})
        await here.settled()
        assert (details(gate).score, details(gate).statuses, details(gate).votes) == (0, (), ())
        here.bob.thumb(pull)
        await here.settled()
        assert details(gate).score == 1
        here.hub.world.announces = False
        here.ada.push(here.project, "topic", {"a.txt": "4\n"})
        here.bob.comment(pull, "More?")
        await here.settled()
        assert gate.change_state(1).change.commit == pull.commit_stop and details(gate).score == 0
        here.bob.comment(pull, "recheck")
        await here.settled()
        assert details(gate).score == 0, "nor when it is looked at once more"


async def test_the_gap_between_two_lives_is_found(here: Ground) -> None:
    """No poll and no delivery happened: the difference contains everything."""
    async with watched(here) as gate:
        pull = opened(here)
        await here.settled()
    here.hub.mail.lose(100)
    other = here.ada.propose(here.project, "other", {"b.txt": "1\n"})
    here.bob.comment(pull, "recheck")
    here.bob.tag(pull, "ready")
    here.bob.thumb(other)
    here.eve.flag(pull, "lint")
    here.ada.push(here.project, "main", {"c.txt": "1\n"})
    before = len(gate.events)
    async with watched(here):
        await gate.until(lambda: len(gate.known) == 2 and "pg_pull_request.status" in gate.reported)
    assert set(gate.reported[before:]) >= {
        "pg_pull_request.opened",
        "pg_pull_request.comment",
        "pg_pull_request.tagged",
        "pg_pull_request.status",
        "pg_push",
    }


def backwards(held: list[Delivery]) -> list[Delivery]:
    return held[::-1]


@pytest.mark.parametrize("badly", [lambda mail: mail.double(100), lambda mail: mail.hold()], ids=["doubled", "late"])
async def test_deliveries_may_come_as_they_like(here: Ground, badly: Callable[[Mail], None]) -> None:
    async with watched(here) as gate:
        badly(here.hub.mail)
        pull = opened(here)
        here.bob.comment(pull, "recheck")
        here.ada.push(here.project, "topic", {"a.txt": "3\n"})
        here.bob.thumb(pull)
        here.hub.mail.release(backwards)
        await here.settled()
        change_state = gate.change_state(1)
    assert change_state.change.commit == pull.commit_stop
    assert gate.reported.count("pg_pull_request.comment") == 1 == gate.reported.count("pg_pull_request_review.thumbsup")
    assert gate.reported.count("pg_pull_request.opened") == 1


async def test_odd_changes_are_changes(here: Ground) -> None:
    """Of a deleted fork, of a deleted account, with long texts; finally merged by hand."""
    fork = here.eve.fork(here.project)
    text = "x" * 65_000 + "\nDepends-On: https://example.com/1"
    async with watched(here) as gate:
        pull = here.eve.propose(here.project, "topic", {"a.txt": "2\n"}, "😀 \u202eright to left", text, home=fork)
        await here.settled()
        assert gate.change_state(1).change.files == ("a.txt",)
        assert here.forge.named(f"{here.hub.url}/fork/eve/acme/rocket/pull-request/7") == (
            "127.0.0.1/forks/eve/acme/rocket#7"
        )
        here.hub.remove_fork(fork)
        pull.user = None
        here.bob.comment(pull, "recheck")
        await here.settled()
        change = gate.change_state(1).change
        assert gate.reported[-1] == "pg_pull_request.comment" and change.owner == ""
        assert len(change.message) < 17_000 and change.message.endswith("Depends-On: https://example.com/1")
        here.hub.acts.merge(pull, here.bob.account)
        await here.settled()
    assert gate.change_state(1).landed and not gate.change_state(1).open
    assert [e.happening.action for e in gate.events if e.kind is EventKind.MERGED and e.happening] == ["merged"]


async def test_many_pages_and_one_that_is_too_long(here: Ground, monkeypatch: pytest.MonkeyPatch) -> None:
    """A change that is too long to be read is reported; the others are seen."""
    pulls = [here.ada.propose(here.project, f"topic{n}", {f"{n}": ""}) for n in range(5)]
    monkeypatch.setattr("headgate.adapters.forges.pagure.client.PAGE", 2)
    here.eve.comment(pulls[3], "x" * 100_000)
    monkeypatch.setattr("headgate.adapters.forges.rest.ANSWER_MAX_BYTES", 50_000)
    async with watched(here) as gate:
        await gate.until(lambda: len(gate.known) == 4)
        assert gate.known.keys() == {f"{PROJECT}#{n}" for n in (1, 2, 3, 5)}
        here.forge.stir(Hint("four", PROJECT, "4"))
        await gate.until(lambda: "pull request 4 cannot be read" in gate.problems.get(PROJECT, ""))


@pytest.mark.long
async def test_the_options_of_a_project_are_its_rules(here: Ground) -> None:
    """Unmet options are explained; unknown ones count as neither; changes of them are seen."""
    async with watched(here) as gate:
        pull = opened(here)
        await here.settled()
        assert details(gate).rules == ()
        here.hub.options(
            here.project,
            Minimum_score_to_merge_pull__request=2,
            Only_assignee_can_merge_pull__request=True,
            Enforce_signed__off_commits_in_pull__request=True,
            disable_non_fast__forward_merges=True,
        )
        await here.settled()
        assert [(one.text.partition(",")[0], one.met) for one in details(gate).rules or ()] == [
            ("needs the score of 2 that its project requires", False),
            ("needs to be assigned to headgate", False),
            ("needs a line Signed-off-by in each of its commits", False),
            ("needs to contain the newest commit of main; a gate makes that rule needless: disable that option", None),
        ]
        here.ada.push(here.project, "topic", {"a.txt": "3\n"}, "One\n\nSigned-off-by: Ada <ada@example.com>")
        await here.settled()
        assert [one.met for one in details(gate).rules or ()] == [False, False, False, None], "the first is not signed"
        here.hub.options(here.project, Enforce_signed__off_commits_in_pull__request=False)
        here.bob.assign(pull, here.bot)
        here.bob.thumb(pull)
        here.eve.thumb(pull)
        here.hub.acts.view(pull)
        await here.settled()
        assert [one.met for one in details(gate).rules or ()] == [True, True, True]
        assert (details(gate).approved, details(gate).mergeable) == (True, True)
        signed = here.ada.propose(
            here.project, "signed", {"s": "1\n"}, "Signed", message="One\n\nSigned-off-by: Ada <ada@example.com>"
        )
        here.hub.options(here.project, Enforce_signed__off_commits_in_pull__request=True)
        await here.settled()
        assert [one.met for one in details(gate, signed.id).rules or () if "Signed-off" in one.text] == [True]


async def test_settings_that_our_token_may_not_read_are_unknown(here: Ground) -> None:
    """Without the ACL to modify projects; groups grant the rights of their members."""
    here.hub.world.groups["pilots"] = {"zoe"}
    here.project.groups["pilots"] = "commit"
    zoe = here.hub.person("zoe")
    here.hub.options(here.project, Only_assignee_can_merge_pull__request=True, Minimum_score_to_merge_pull__request=1)
    token = here.hub.token("headgate", frozenset({"pull_request_flag"}))
    _, here.forge = here.driver("less", api_token=token)
    here.gate.forge = here.forge
    async with watched(here) as gate:
        pull = opened(here)
        zoe.thumb(pull)
        here.eve.thumb(pull)
        await here.hub.mail.delivered()
        here.forge.stir(Hint("look", PROJECT, "1"))
        await gate.until(lambda: "look" in gate.answered)
        assert [(one.text, one.met) for one in details(gate).rules or ()] == [
            ("needs the score that its project requires", True)
        ]
        assert {one.who.name: one.who.permission for one in details(gate).votes or ()} == {
            "zoe": "write",
            "eve": "read",
        }
    await here.forge.close()
    assert "Missing ACLs: modify_project" in here.refused[0] and "webhook_token" in here.refused[0]


@pytest.mark.long
async def test_limits_and_failures_are_waited_for_and_nothing_is_lost(here: Ground) -> None:
    async with watched(here, "acme/rocket", "eve/away") as gate:
        await gate.until(lambda: "it cannot be read" in gate.problems.get("127.0.0.1/eve/away", ""))
        here.ada.push(here.project, "main", {"b": "1\n"})
        await here.settled()  # the token of its webhooks is known from now on
        here.hub.server.limit(600, after_s=1)
        opened(here)
        await gate.until(lambda: "Too Many Requests" in gate.problems.get(PROJECT, ""))
        here.hub.world.clock.advance(601)
        await gate.until(lambda: gate.known and not gate.problems[PROJECT])
        here.hub.fail("GET", "/{project}/pull-request/{id}/flag", times=1, status=500)
        here.forge.stir(Hint("again", PROJECT, "1"))
        await gate.until(lambda: "has an internal error" in gate.problems[PROJECT])
        here.forge.stir(Hint("once more", PROJECT, "1"))
        await gate.until(lambda: not gate.problems[PROJECT])


async def test_urls_of_changes_are_recognised(here: Ground) -> None:
    url, key = here.hub.url, f"{PROJECT}#12"
    for path in ("pull-request/12", "pull-request/12/", "pull-request/12#comment-3", "pull-request/12?a=b"):
        assert here.forge.named(f"{url}/acme/rocket/{path}") == key
    assert here.forge.named(f"{url}/rocket/pull-request/3") == "127.0.0.1/rocket#3"
    for text in (
        "https://example.com/code/acme/rocket/pull-request/12",
        f"{url}/acme/rocket/pull-request/1x",
        f"{url}/acme/rocket/issue/12",
        f"{url.removesuffix('/code')}/acme/rocket/pull-request/12",
        f"{url}/acme/../pull-request/12",
    ):
        assert here.forge.named(text) == ""
    opened(here)
    change_state = await here.forge.look_up(f"{PROJECT}#1")
    assert change_state is not None and change_state.open and change_state.change.number == "1"
    assert await here.forge.look_up(f"{PROJECT}#2") is None
    assert await here.forge.look_up("127.0.0.1/nobody/there#2") is None


@pytest.mark.long
async def test_a_renamed_project_is_reported_and_nothing_is_lost(here: Ground) -> None:
    """Pagure itself cannot rename projects; an administrator does, and nothing redirects from the old name."""
    async with watched(here) as gate:
        opened(here)
        await here.settled()
        here.hub.rename(here.project, "others/rocket")
        here.forge.stir(Hint("all", ""))
        await gate.until(lambda: gate.problems.get(PROJECT))
        assert "not found" in gate.problems[PROJECT].lower() and gate.change_state(1).open, "nobody has closed it"
        here.ada.propose(here.project, "second", {"b.txt": "1\n"})
        here.hub.rename(here.project, "acme/rocket")
        await gate.until(lambda: f"{PROJECT}#2" in gate.known and not gate.problems[PROJECT])
    assert gate.reported.count("pg_pull_request.opened") == 2 and "pg_pull_request.closed" not in gate.reported
