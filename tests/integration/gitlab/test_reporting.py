"""Test reports on a merge request: each once, even if it is delivered again."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from headgate.gate.state.change import Change
from headgate.map.outbox import OutboxMessage
from headgate.ports.reporter import ReporterAway, ReportRefused
from headgate.testing.forges.gitlab.model import GUEST, FakeGitLabMergeRequest
from tests.integration.github.test_reporting import report
from tests.integration.gitlab.ground import PROJECT, Ground, change_of, opened


def outbox_message(
    one: FakeGitLabMergeRequest, kind: str, text: str = "Build succeeded.", how: Any = None
) -> OutboxMessage:
    return OutboxMessage("", report(kind, text), key=f"key-{kind}", change=change_of(one), how=how or {})


def jobs(one: FakeGitLabMergeRequest) -> dict[str, str]:
    assert one.source is not None
    return {job.name: job.state for job in one.source.jobs(one.sha, one.source_branch)}


async def test_a_status_has_the_name_of_the_pipeline_and_is_of_the_head_pipeline(here: Ground) -> None:
    one = opened(here)
    here.project.only_if_pipeline_succeeds = True
    for kind, state in (("start", "running"), ("start", "running"), ("success", "success")):
        await here.forge.report(outbox_message(one, kind, how={"status": state, "comment": False}))
    (status,) = here.project.statuses
    assert (status.name, status.state, status.ref, status.sha) == ("acme/gate", "success", "topic", one.sha)
    assert status.description == "gate passed"
    assert status.target_url == "https://gate.example.org/t/acme/buildset/b1"
    assert one.notes == []
    change_state = await here.forge.look_up(f"{PROJECT}#1")
    assert change_state is not None and change_state.details is not None and change_state.details.rules == ()


async def test_of_a_fork_the_status_is_where_we_may_write(here: Ground) -> None:
    fork = here.eve.fork(here.project)
    one = here.eve.propose(here.project, "topic", {"a.txt": "2\n"}, fork=fork)
    message = outbox_message(one, "success", how={"status": "success", "comment": False})
    await here.forge.report(message)
    assert fork.statuses == [] and [status.name for status in here.project.statuses] == ["acme/gate"]
    fork.members["gate"] = 30
    await here.forge.report(message)
    assert [status.ref for status in fork.statuses] == ["topic"]
    here.hub.remove_fork(fork)
    await here.forge.report(message)


async def test_one_comment_is_edited_and_calls_nobody(here: Ground) -> None:
    one = opened(here)
    here.eve.comment(one, "copied <!-- headgate acme/gate -->")
    await here.forge.report(outbox_message(one, "start", "Being tested."))
    await here.forge.report(outbox_message(one, "failure", "Oh no, @all and ada@example.org <!-- x"))
    assert [note.author.username for note in one.notes] == ["eve", "gate"]
    text = one.notes[1].body
    assert text.startswith("**gate: failed**") and text.endswith("<!-- headgate acme/gate -->")
    assert "@all" not in text and "ada@example.org" in text and text.count("<!--") == 1
    _, other = here.driver("other")  # another process finds it
    await other.report(outbox_message(one, "success"))
    await other.close()
    assert len(one.notes) == 2 and one.notes[1].body.startswith("**gate: passed**")
    del one.notes[1]  # somebody removes it
    await here.forge.report(outbox_message(one, "success"))
    assert len(one.notes) == 2
    await here.forge.report(outbox_message(one, "failure", "😀" * 1_100_000))
    assert len(one.notes[1].body) <= 65_000 and "The rest is left out" in one.notes[1].body


async def test_a_report_sets_labels_and_an_approval_once(here: Ground) -> None:
    one = opened(here)
    here.bob.label(one, "old one")
    how = {"label": ["gated", "50%"], "unlabel": "old one", "approval": True, "comment": False}
    for _ in range(2):
        await here.forge.report(outbox_message(one, "success", how=how))
    assert one.labels == ["gated", "50%"]
    assert [user.username for user in one.approvers] == ["gate"]
    for _ in range(2):
        await here.forge.report(outbox_message(one, "failure", how={"approval": False, "comment": False}))
    assert one.approvers == []
    stale = outbox_message(one, "success", how={"approval": True, "comment": False})
    here.ada.push(here.project, "topic", {"a.txt": "3\n"})
    await here.forge.report(stale)
    assert one.approvers == [], "what was not tested is not approved"


async def test_errors_of_the_forge_refuse_or_postpone_a_report(here: Ground) -> None:
    one = opened(here)
    gone = replace(outbox_message(one, "success"), change=replace(change_of(one), number="77"))
    with pytest.raises(ReportRefused, match="no longer has 77"):
        await here.forge.report(gone)
    here.project.members["gate"] = GUEST
    with pytest.raises(ReportRefused, match="may not approve"):
        await here.forge.report(outbox_message(one, "success", how={"approval": True, "comment": False}))
    with pytest.raises(ReportRefused, match="403 Forbidden"):
        await here.forge.report(outbox_message(one, "success", how={"status": "success", "comment": False}))
    here.hub.world.tokens[here.token].revoked = True
    with pytest.raises(ReporterAway, match="Token was revoked"):
        await here.forge.report(outbox_message(one, "success"))
    here.hub.world.tokens[here.token].revoked = False
    here.hub.limits.punish("gate", 600)
    with pytest.raises(ReporterAway) as away:
        await here.forge.report(outbox_message(one, "success"))
    assert away.value.wait_s == 61


async def test_a_ref_has_a_status_and_nothing_else(here: Ground) -> None:
    tip = here.bob.push(here.project, "main", {"z": "1\n"})
    change = Change("hub", PROJECT, "main", commit=tip, ref="refs/heads/main")
    how = {"status": "success", "comment": True, "label": "x", "approval": True}
    await here.forge.report(OutboxMessage("", report("success"), change=change, how=how))
    assert [(one.sha, one.ref, one.state) for one in here.project.statuses] == [(tip, "main", "success")]
    assert {one.method for one in here.hub.server.log} == {"POST"}
