"""Test reports on a pull request: each once, even if it is delivered again."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from headgate.gate.state.change import Change
from headgate.map.outbox import OutboxMessage
from headgate.ports.forge import Hint
from headgate.ports.reporter import ReporterAway, ReportRefused
from headgate.testing.forges.pagure.model import FakePagureRequest
from tests.integration.github.test_reporting import report
from tests.integration.pagure.ground import PROJECT, Ground, opened, watched
from tests.integration.pagure.test_landing import change_of


def outbox_message(
    pull: FakePagureRequest, kind: str, text: str = "Build succeeded.", how: Any = None, **more: Any
) -> OutboxMessage:
    return OutboxMessage("", report(kind, text, **more), key=f"key-{kind}", change=change_of(pull), how=how or {})


async def test_each_pipeline_has_one_flag(here: Ground) -> None:
    pull = opened(here)
    for pipeline in ("check", "gate"):
        for kind, status in (("start", "pending"), ("success", "success")):
            message = outbox_message(pull, kind, how={"status": status, "comment": False})
            await here.forge.report(replace(message, report=replace(message.report, pipeline=pipeline)))
    head = pull.commit_stop[:12]
    assert [(one.username, one.status, one.comment) for one in pull.flags] == [
        ("Zuul: acme/check", "success", f"check passed ({head})"),
        ("Zuul: acme/gate", "success", f"gate passed ({head})"),
    ]
    assert pull.flags[0].url == "https://gate.example.org/t/acme/buildset/b1" and pull.comments == []
    how = {"status": "failure", "status-url": "https://other.example.org", "comment": False}
    await here.forge.report(outbox_message(pull, "failure", how=how))
    assert (pull.flags[1].status, pull.flags[1].url) == ("failure", "https://other.example.org")


async def test_a_comment_is_posted_once_and_mentions_nobody(here: Ground) -> None:
    pull, text = opened(here), "Oh no, @octocat <!-- x " + "y" * 70_000
    for _ in range(2):
        await here.forge.report(outbox_message(pull, "failure", text))
    _, other = here.driver("other")
    await other.report(outbox_message(pull, "failure", text))
    await other.close()
    (comment,) = pull.comments
    assert comment.text.startswith("**gate: failed**") and len(comment.text) <= 65_536
    assert "@octocat" not in comment.text and comment.text.count("<!--") == 1
    await here.forge.report(outbox_message(pull, "success"))
    assert len(pull.comments) == 2, "Pagure lets nobody edit a comment"
    assert {one.user.login for one in pull.comments} == {"headgate"}


async def test_errors_of_the_forge_refuse_or_postpone_a_report(here: Ground) -> None:
    pull = opened(here)
    gone = replace(outbox_message(pull, "success"), change=replace(change_of(pull), number="77"))
    with pytest.raises(ReportRefused, match="no longer has 77"):
        await here.forge.report(gone)
    _, less = here.driver("less", api_token=here.hub.token("headgate", frozenset()))
    with pytest.raises(ReportRefused, match=r"Missing ACLs: pull_request_flag.*give the api_token the ACLs"):
        await less.report(outbox_message(pull, "success", how={"status": "success"}))
    await less.close()
    here.hub.world.tokens[here.account.api_token].revoked = True
    with pytest.raises(ReporterAway, match="create another one"):
        await here.forge.report(outbox_message(pull, "success"))
    here.hub.world.tokens[here.account.api_token].revoked = False
    here.hub.server.limit(60)
    with pytest.raises(ReporterAway) as away:
        await here.forge.report(outbox_message(pull, "success"))
    assert away.value.wait_s == 61


async def test_a_ref_has_a_flag_on_its_commit_and_nothing_else(here: Ground) -> None:
    tip = here.ada.push(here.project, "main", {"z": "1\n"})
    change = Change("hub", PROJECT, "main", commit=tip, ref="refs/heads/main")
    for status in ("pending", "success"):
        await here.forge.report(
            OutboxMessage("", report("success"), change=change, how={"status": status, "comment": True})
        )
    assert [one.status for one in here.project.flags[tip]] == ["success"]


async def test_with_a_revoked_token_polling_continues_and_reports_wait(here: Ground) -> None:
    """Anybody may read a public project."""
    token = here.hub.world.tokens[here.account.api_token]
    async with watched(here) as gate:
        token.revoked = True
        pull = opened(here)
        await here.settled()
        here.forge.stir(Hint("all", ""))  # no delivery can be verified without a request
        await gate.until(lambda: f"{PROJECT}#1" in gate.known)
        with pytest.raises(ReporterAway, match=r"refuses the api_token.*create another one"):
            await here.forge.report(outbox_message(pull, "success"))
        token.revoked = False
        await here.forge.report(outbox_message(pull, "success"))
    assert sum("passed" in one.text for one in pull.comments) == 1
