"""Test people who may only comment on a GitLab, forged deliveries, and output of jobs there."""

from __future__ import annotations

import hashlib
import hmac
import json
from base64 import b64encode
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from headgate.adapters.forges import rest
from headgate.adapters.forges.gitlab import request
from headgate.adapters.forges.gitlab.client import account
from headgate.adapters.forges.rest import AGAIN_S, ForgeKey, ForgeResponse, Query
from headgate.config.drivers import DIALECTS
from headgate.config.forges.keyterms import TermSubject, triggered
from headgate.gate.state.change import TriggerEvent
from headgate.map.outbox import OutboxMessage
from headgate.ports.forge import Hint, Ignored, Misdelivered, ReporterAway
from headgate.testing.forges.gitlab.people import gitlab
from tests.integration.github.test_reporting import report
from tests.integration.gitlab.ground import PATH, PROJECT, SECRET, Ground, change_of, ground, opened, watched

KEY = b"k" * 32
SIGNING = "whsec_" + b64encode(KEY).decode()


@pytest.fixture
async def here(tmp_path: Path) -> AsyncIterator[Ground]:
    async with gitlab(tmp_path / "gitlab") as hub, ground(hub, tmp_path) as found:
        yield found


def signed(body: bytes, at_s: float, key: bytes = KEY) -> dict[str, str]:
    mac = hmac.new(key, f"id-1.{int(at_s)}.".encode() + body, hashlib.sha256).digest()
    headers = {"webhook-id": "id-1", "webhook-timestamp": str(int(at_s))}
    return {**headers, "webhook-signature": f"v1,{b64encode(mac).decode()}"}


async def test_forged_deliveries_of_a_gitlab_cause_no_poll(here: Ground) -> None:
    opened(here)
    now_s = here.hub.world.clock.now_s()
    payload = {"object_kind": "merge_request", "project": {"path_with_namespace": PATH}}
    body = json.dumps({**payload, "object_attributes": {"iid": 1, "action": "update", "state": "opened"}}).encode()
    token = {"x-gitlab-token": SECRET}
    signing = account("hub", {"server": here.hub.url, "api_token": "t", "webhook_signing_token": SIGNING}).signing_key
    _, strict = here.driver("strict", signing_key=signing)
    _, closed = here.driver("closed", webhook_token="")
    good = token | signed(body, now_s)
    for forge, headers, text, status in (
        (here.forge, {}, body, 401),
        (here.forge, {"x-gitlab-token": "guessed"}, body, 401),
        (here.forge, {"x-gitlab-token": "é\udcff"}, body, 401),
        (here.forge, token, b"[" * 100_000, 400),
        (here.forge, token, b"\xff", 400),
        (here.forge, token, b"[]", 400),
        (here.forge, token, b'{"object_kind": 7}', 400),
        (here.forge, token | {"idempotency-key": "../x"}, body, 400),
        (here.forge, token, b" " * (26 * 2**20), 413),
        (strict, token, body, 401),
        (strict, token | signed(body, now_s, b"guessed"), body, 401),
        (strict, good, body + b" ", 401),
        (strict, token | signed(body, now_s - 3_600), body, 401),
        (strict, signed(body, now_s), body, 401),
        (closed, {"x-gitlab-token": ""}, body, 403),
    ):
        with pytest.raises(Misdelivered) as refused:
            forge.webhook(headers, text)
        assert refused.value.status == status, str(refused.value)
        assert SECRET not in str(refused.value) and SIGNING not in str(refused.value)
    assert isinstance(strict.webhook(good, body), Hint)
    assert isinstance(here.forge.webhook(token, b"{}"), Ignored), "what groups tell of names no kind"
    assert here.hub.server.log == []
    async with watched(here) as gate:
        before = len(here.hub.server.log)
        for _ in range(10):
            found = here.forge.webhook(token | {"idempotency-key": "one"}, body)
            assert isinstance(found, Hint)
            here.forge.stir(found)
        await gate.until(lambda: "one" in gate.answered)
        count = len(here.hub.server.log) - before
    assert count <= 2 * 3, "what waits while it is looked is one look"
    assert gate.reported.count("gl_merge_request.opened") == 1


async def test_output_of_a_job_gives_gitlab_no_commands(here: Ground) -> None:
    one = opened(here)
    text = "/merge\n/approve\n  /label ~owned\nsaid\r/merge\n```\n/close\n```\n/close\nhttps://x/merge @all `@all"
    message = OutboxMessage("", report("failure", text), key="k", change=change_of(one))
    await here.forge.report(message)
    await here.forge.report(message)
    assert (one.state, one.approvers, one.labels) == ("opened", [], [])
    (note,) = one.notes
    assert "/merge" in note.body and "https://x/merge" in note.body and "@all" not in note.body
    assert here.hub.acts.note(one, here.bob.user, "/close") is None and one.state == "closed"


@pytest.mark.long
async def test_a_strangers_comment_starts_nothing(here: Ground) -> None:
    one = opened(here)
    recheck = {"event": "gl_merge_request", "action": ["comment"], "comment": ["^recheck$"], "permission": ["write"]}

    def starts(event: TriggerEvent) -> bool:
        seen = TermSubject(gate.known[f"{PROJECT}#1"], kind=event.kind, happening=event.happening)
        return triggered(DIALECTS["gitlab"], recheck, seen)

    async with watched(here) as gate:
        await gate.until(lambda: gate.known)
        for _ in range(100):
            here.eve.comment(one, "recheck")
        await here.settled()
        assert gate.reported.count("gl_merge_request.comment") == 100
        assert not any(starts(event) for event in gate.events)
        requests = [call for call in here.hub.server.log if call.template.endswith("/members/all/{user}")]
        assert len(requests) <= 2, "of ada and eve"
        here.ada.comment(one, "recheck")
        await here.settled()
        assert [starts(event) for event in gate.events].count(True) == 1


async def test_nonsense_of_one_merge_request_delays_no_other(here: Ground, monkeypatch: pytest.MonkeyPatch) -> None:
    real = here.client.get
    bad: dict[str, Any] = {"iid": "x", "sha": "1" * 40, "state": 7}

    async def get(key: ForgeKey, path: str, query: Query = {}, *, urgent: bool = True) -> ForgeResponse:  # noqa: B006
        return ForgeResponse(200, bad, {}) if path.endswith("/1") else await real(key, path, query, urgent=urgent)

    monkeypatch.setattr(here.client, "get", get)
    one = opened(here)
    here.ada.propose(here.project, "other", {"b.txt": "1\n"})
    async with watched(here) as gate:
        await gate.until(lambda: f"{PROJECT}#2" in gate.known and gate.problems.get(PROJECT))
        assert "merge request 1 cannot be read" in gate.problems[PROJECT]
    for text in (
        f"https://[x/{PATH}/-/merge_requests/1",
        f"https://127.0.0.1／x/{PATH}/-/merge_requests/1",
        "https://127.0.0.1/../app/-/merge_requests/1",
        "https://127.0.0.1/acme/../-/merge_requests/1",
        f"https://127.0.0.1@elsewhere.example/{PATH}/-/merge_requests/1",
        f"https://127.0.0.1/{PATH}/-/merge_requests/{'9' * 900}",
        "https://127.0.0.1/" + "a/" * 50_000 + "-/merge_requests/1",
    ):
        assert here.forge.named(text) == "", text[:60]
    assert one.state == "opened"


@pytest.mark.parametrize("empty", [True, False])
async def test_merge_requests_that_cannot_be_fetched_delay_no_other(
    here: Ground, monkeypatch: pytest.MonkeyPatch, empty: bool
) -> None:
    """Merge requests without commits, because their branches are deleted at once, or that make GitLab fail."""
    real, odd = here.client.get, [f"/merge_requests/{number}" for number in range(1, 6)]

    async def get(key: ForgeKey, path: str, query: Query = {}, *, urgent: bool = True) -> ForgeResponse:  # noqa: B006
        found = await real(key, path, query, urgent=urgent)
        if path.endswith(tuple(odd)) and not empty:
            raise ReporterAway("it answers 500", AGAIN_S)
        return found._replace(content={**found.content, "sha": None}) if path.endswith(tuple(odd)) else found

    monkeypatch.setattr(here.client, "get", get)
    for number in range(6):
        here.ada.propose(here.project, f"topic{number}", {f"{number}.txt": "1\n"})
    async with watched(here) as gate:
        await gate.until(
            lambda: f"{PROJECT}#6" in gate.known and "merge request 5 can" in gate.problems.get(PROJECT, "")
        )
        odd.clear()
        for number in range(1, 6):
            here.forge.stir(Hint(f"again{number}", PROJECT, str(number)))
        await gate.until(lambda: len(gate.known) == 6)


async def test_long_comments_of_strangers_delay_nothing(here: Ground, monkeypatch: pytest.MonkeyPatch) -> None:
    one = opened(here)
    for _ in range(60):
        here.eve.comment(one, "x" * 20_000)
    here.ada.comment(one, "recheck")
    for _ in range(20):
        here.eve.comment(one, "x" * 20_000)
    monkeypatch.setattr(rest, "ANSWER_MAX_BYTES", 400_000)
    async with watched(here) as gate:
        await gate.until(lambda: f"{PROJECT}#1" in gate.known)
    comments = [event.happening.comments[0] for event in gate.events if event.happening and event.happening.comments]
    assert comments.count("recheck") == 1 and len(comments) == 81
    assert max(map(len, comments)) < 17_000, "what is told is stored"
    await here.forge.report(OutboxMessage("", report("success"), key="k", change=change_of(one)))
    assert one.notes[-1].author.username != "eve"


async def test_endless_jobs_in_a_fork_are_not_all_stored(here: Ground, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(request, "JOBS_MAX", 5)
    here.project.only_if_pipeline_succeeds = True
    one = opened(here)
    for number in range(9):
        here.ada.status(one, f"job {number}", "failed")
    async with watched(here) as gate:
        await gate.until(lambda: f"{PROJECT}#1" in gate.known)
    details = gate.known[f"{PROJECT}#1"].details
    assert details is not None and len(details.statuses or ()) == 5
    assert details.rules is not None and details.rules[0].met is False
