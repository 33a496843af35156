"""Test reports on a pull request: each once, even if it is delivered again."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from headgate.gate.state.change import Change
from headgate.gate.state.returns import FileComment, Range
from headgate.map.outbox import OutboxMessage
from headgate.ports.reporter import ReporterAway, ReportRefused
from headgate.testing.forges.gitea.model import FakeGiteaPull
from tests.integration.gitea.ground import PROJECT, Ground, opened
from tests.integration.github.test_reporting import report


def change_of(pull: FakeGiteaPull) -> Change:
    return Change("hub", PROJECT, "main", commit=pull.head_sha, ref="refs/pull/1/head", number="1", title=pull.title)


def outbox_message(
    pull: FakeGiteaPull, kind: str, text: str = "Build succeeded.", how: Any = None, **more: Any
) -> OutboxMessage:
    return OutboxMessage("", report(kind, text, **more), key=f"key-{kind}", change=change_of(pull), how=how or {})


async def test_a_status_has_the_name_of_the_pipeline(here: Ground) -> None:
    pull = opened(here)
    await here.forge.report(outbox_message(pull, "start", how={"status": "pending", "comment": False}))
    await here.forge.report(outbox_message(pull, "success", how={"status": "success", "comment": False}))
    statuses = here.repository.statuses[pull.head_sha]
    assert [(s.context, s.state, s.description) for s in statuses] == [
        ("acme/gate", "pending", "gate status: pending"),
        ("acme/gate", "success", "gate status: success"),
    ]
    assert statuses[0].target_url == "https://gate.example.org/t/acme/buildset/b1"
    assert pull.comments == []


async def test_one_comment_is_edited_and_calls_nobody(here: Ground) -> None:
    pull = opened(here)
    here.eve.comment(pull, "**gate: passed**\n\n<!-- headgate acme/gate -->")  # a stranger's comment is not ours
    await here.forge.report(outbox_message(pull, "start", "Being tested."))
    await here.forge.report(outbox_message(pull, "failure", "Oh no, @octocat <!-- x " + "y" * 70_000))
    _, other = here.driver("other")
    await other.report(outbox_message(pull, "success"))
    await other.close()
    _, ours = pull.comments
    assert len(pull.comments) == 2 and ours.body.startswith("**gate: passed**")
    pull.comments.remove(ours)
    await here.forge.report(outbox_message(pull, "failure", "Oh no, @octocat <!-- x " + "y" * 70_000))
    body = pull.comments[-1].body
    assert "@octocat" not in body and body.count("<!--") == 1 and len(body) <= 65_536


async def test_a_report_sets_labels_and_a_review_once(here: Ground) -> None:
    pull = opened(here)
    here.bob.label(pull, "waits")
    how = {
        "label": ["gated", "50%"], "unlabel": ["waits", "never"], "review": "approve", "review-body": "Good",
        "comment": False,
    }  # fmt: skip
    for _ in range(2):
        await here.forge.report(outbox_message(pull, "success", how=how))
    assert [one.name for one in pull.labels] == ["gated", "50%"]
    assert [(r.state, r.commit_id, r.official) for r in pull.reviews] == [("APPROVED", pull.head_sha, True)]
    assert pull.reviews[0].body.startswith("Good")
    assert sorted(here.repository.labels) == ["50%", "gated", "waits"]


async def test_line_comments_of_jobs_become_one_review(here: Ground) -> None:
    pull = opened(here)
    notes = {
        "a.txt": (FileComment("Narrow", 1, "warning"), FileComment("Narrow", 1, "warning"), FileComment("Nowhere", 0)),
        "other": (FileComment("Not of this change", 1),),
        "b.txt": (FileComment("Wide", 0, "error", Range(3, 1, 4, 2)),),
    }
    message = outbox_message(pull, "failure", comments=notes)
    for _ in range(2):
        await here.forge.report(replace(message, change=replace(change_of(pull), files=("a.txt",))))
    (review,) = pull.reviews
    assert (review.state, review.notes) == ("COMMENT", (("a.txt", 1, "**warning**: Narrow"),))
    await here.forge.report(outbox_message(pull, "failure", "Again", comments=notes))  # the effect is unknown
    assert len(pull.reviews) == 1 and "The jobs' comments on lines could not be posted" in pull.comments[0].body


async def test_errors_of_the_forge_refuse_or_postpone_a_report(here: Ground) -> None:
    pull = opened(here)
    gone = replace(outbox_message(pull, "success"), change=replace(change_of(pull), number="77"))
    with pytest.raises(ReportRefused, match="no longer has 77"):
        await here.forge.report(gone)
    here.repository.roles["headgate"] = "read"
    with pytest.raises(ReportRefused, match="let the account of its api_token write there"):
        await here.forge.report(outbox_message(pull, "success", how={"status": "success"}))
    here.hub.server.limit(60)
    with pytest.raises(ReporterAway) as away:
        await here.forge.report(outbox_message(pull, "success"))
    assert away.value.wait_s == 61


async def test_a_ref_has_a_status_and_nothing_else(here: Ground) -> None:
    tip = here.ada.push(here.repository, "main", {"z": "1\n"})
    change = Change("hub", PROJECT, "main", commit=tip, ref="refs/heads/main")
    await here.forge.report(
        OutboxMessage("", report("success"), change=change, how={"status": "success", "comment": True, "label": "x"})
    )
    assert [one.state for one in here.repository.statuses[tip]] == ["success"]
