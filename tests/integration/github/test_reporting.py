"""Test reports on a pull request: each once, even if it is delivered again."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from headgate.gate.state.change import Change
from headgate.gate.state.returns import FileComment, Range
from headgate.map.outbox import OutboxMessage, QueueReport
from headgate.ports.reporter import ReporterAway, ReportRefused
from headgate.testing.forges.github.model import FakeGitHubPull
from headgate.testing.forges.github.people import GitHub
from tests.integration.github.ground import PROJECT, Ground, ground, opened


@pytest.fixture
async def here(hub: GitHub, tmp_path: Path) -> AsyncIterator[Ground]:
    async with ground(hub, tmp_path) as found:
        yield found


def change_of(pull: FakeGitHubPull) -> Change:
    return Change("hub", PROJECT, "main", commit=pull.head_sha, ref="refs/pull/1/head", number="1", title=pull.title)


def report(kind: str, text: str = "Build succeeded.", **more: Any) -> QueueReport:
    return QueueReport(
        v=1, kind="report", id=f"id-{kind}-{text}", at_ms=1, tenant="acme", pipeline="gate", project=PROJECT,
        branch="main", change="1,abc", commit="abc", item="i", report=kind, message=text, root="https://gate.example.org",
        buildset="b1", **more,
    )  # fmt: skip


def outbox_message(
    pull: FakeGitHubPull, kind: str, text: str = "Build succeeded.", how: Any = None, **more: Any
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
    await here.forge.report(outbox_message(pull, "start", "Being tested."))
    await here.forge.report(outbox_message(pull, "failure", "Oh no, @octocat and ada@example.org <!-- x"))
    assert len(pull.comments) == 1
    body = pull.comments[0].body
    assert body.startswith("**gate: failed**")
    assert "@octocat" not in body and "ada@example.org" in body
    assert body.count("<!--") == 1
    _, other = here.driver("other")  # another process finds it
    await other.report(outbox_message(pull, "success"))
    await other.close()
    assert len(pull.comments) == 1
    pull.comments.clear()  # somebody removes it
    await here.forge.report(outbox_message(pull, "success"))
    assert len(pull.comments) == 1


async def test_a_comment_of_somebody_else_is_left_alone(here: Ground) -> None:
    pull = opened(here)
    await here.forge.report(outbox_message(pull, "start"))
    copied = pull.comments[0].body
    pull.comments.clear()
    here.eve.comment(pull, copied)
    _, other = here.driver("other")
    await other.report(outbox_message(pull, "success"))
    await other.close()
    assert [one.user.login for one in pull.comments] == ["eve", "headgate[bot]"]
    assert pull.comments[0].body == copied


async def test_long_reports_are_cut_to_the_limit(here: Ground) -> None:
    pull = opened(here)
    await here.forge.report(outbox_message(pull, "failure", "😀" * 70_000, how={"check": "failure"}))
    assert len(pull.comments[0].body) <= 65_536
    assert "The rest is left out" in pull.comments[0].body


@pytest.mark.long
async def test_a_report_sets_labels_and_a_review_once(here: Ground) -> None:
    pull = opened(here)
    here.bob.label(pull, "old one")
    how = {
        "label": ["gated", "50%"],
        "unlabel": "old one",
        "review": "approve",
        "review-body": "Good",
        "comment": False,
    }
    for _ in range(2):
        await here.forge.report(outbox_message(pull, "success", how=how))
    assert [one.name for one in pull.labels] == ["gated", "50%"]
    assert [(r.state, r.commit_id) for r in pull.reviews] == [("APPROVED", pull.head_sha)]
    assert pull.reviews[0].body.startswith("Good")


async def test_a_check_run_begins_and_ends_once(here: Ground) -> None:
    pull = opened(here)
    await here.forge.report(outbox_message(pull, "start", how={"check": "in_progress", "comment": False}))
    for _ in range(2):
        await here.forge.report(outbox_message(pull, "success", how={"check": "success", "comment": False}))
    (run,) = here.repository.check_runs.values()
    assert (run.name, run.status, run.conclusion) == ("acme/gate", "completed", "success")
    assert run.details_url == "https://gate.example.org/t/acme/buildset/b1"
    _, other = here.driver("other")
    await other.report(outbox_message(pull, "success", how={"check": "success", "comment": False}))
    await other.close()
    assert len(here.repository.check_runs) == 1
    await here.forge.report(outbox_message(pull, "start", how={"check": "in_progress", "comment": False}))
    assert [one.status for one in here.repository.check_runs.values()] == ["completed", "in_progress"]


async def test_annotations_beyond_fifty_come_in_batches(here: Ground) -> None:
    pull = opened(here)
    notes = tuple(FileComment(f"Line {n}", n, "warning") for n in range(1, 120))
    wide = FileComment("Wide", 0, "error", Range(3, 1, 4, 2))
    narrow = FileComment("Narrow", 0, "info", Range(3, 1, 3, 2))
    nowhere = FileComment("Nowhere", 0)
    comments = {"a.txt": (*notes, wide, narrow, nowhere, notes[0]), "other": notes[:1]}
    message = outbox_message(pull, "failure", how={"check": "failure", "comment": False}, comments=comments)
    await here.forge.report(replace(message, change=replace(change_of(pull), files=("a.txt",))))
    (run,) = here.repository.check_runs.values()
    assert run.batches == [50, 50, 21]
    assert (run.annotations[0]["message"], run.annotations[0]["annotation_level"]) == ("Wide", "failure")
    assert "start_column" not in run.annotations[0]
    assert (run.annotations[-1]["start_column"], run.annotations[-1]["end_column"]) == (2, 3)
    assert {one["path"] for one in run.annotations} == {"a.txt"}


async def test_without_an_app_there_are_no_check_runs_but_a_warning(here: Ground) -> None:
    pull = opened(here)
    token = here.hub.token("bob")
    _, plain = here.driver("plain", app_id="", app_key="", api_token=token)
    await plain.report(outbox_message(pull, "success", how={"check": "success", "comment": False}))
    await plain.close()
    assert "check runs need an app: set app_id and app_key" in pull.comments[0].body


async def test_errors_of_the_forge_refuse_or_postpone_a_report(here: Ground) -> None:
    pull = opened(here)
    gone = replace(outbox_message(pull, "success"), change=replace(change_of(pull), number="77"))
    with pytest.raises(ReportRefused, match="no longer has 77"):
        await here.forge.report(gone)
    here.app.permissions["issues"] = "read"
    with pytest.raises(ReportRefused, match="the app lacks a permission"):
        await here.forge.report(outbox_message(pull, "success"))
    here.hub.limits.punish(f"installation {here.installation.id}", 60)
    with pytest.raises(ReporterAway) as away:
        await here.forge.report(outbox_message(pull, "success"))
    assert away.value.wait_s == 61


async def test_a_ref_has_a_status_and_nothing_else(here: Ground) -> None:
    tip = here.ada.push(here.repository, "main", {"z": "1\n"})
    change = Change("hub", PROJECT, "main", commit=tip, ref="refs/heads/main")
    how = {"status": "success", "comment": True, "label": "x", "check": "success"}
    await here.forge.report(OutboxMessage("", report("success"), change=change, how=how))
    assert [one.state for one in here.repository.statuses[tip]] == ["success"]
    assert not here.repository.check_runs
