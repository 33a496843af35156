"""Test people who may only propose or comment on a Pagure, and jobs that print votes."""

from __future__ import annotations

import hashlib
import hmac
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from headgate.adapters.forges import rest
from headgate.adapters.forges.rest import ForgeKey, ForgeResponse
from headgate.config.forges.keyterms import TermSubject, triggered, unmet
from headgate.config.forges.pagure import PAGURE
from headgate.ports.forge import MergeLanded
from headgate.testing.forges.pagure.people import pagure
from tests.integration.pagure.ground import PROJECT, Ground, ground, opened, watched
from tests.integration.pagure.test_landing import as_tested
from tests.integration.pagure.test_reporting import outbox_message
from tests.integration.pagure.test_watching import details


@pytest.fixture
async def here(tmp_path: Path) -> AsyncIterator[Ground]:
    async with pagure(tmp_path / "pagure") as hub, ground(hub, tmp_path) as found:
        yield found


async def test_comments_of_strangers_start_nothing_and_approve_nothing(here: Ground) -> None:
    """They copy every comment of authorised people; anybody may vote and flag there."""
    recheck = {"event": "pg_pull_request", "action": "comment", "comment": "recheck", "permission": "write"}
    liked = {"event": "pg_pull_request_review", "action": "thumbsup", "permission": "write"}
    async with watched(here) as gate:
        pull = opened(here)
        await here.settled()
        found: dict[str, list[bool]] = {}
        for who in (here.eve, here.ada, here.bob):
            begun = len(gate.events)
            who.comment(pull, "recheck")
            who.thumb(pull)
            who.flag(pull, "Zuul: acme/gate")
            await here.settled()
            seen = [TermSubject(gate.change_state(1), happening=event.happening) for event in gate.events[begun:]]
            now = TermSubject(gate.change_state(1), now_ms=1)
            found[who.account.login] = [
                *(triggered(PAGURE, requirement, one) for requirement in (recheck, liked) for one in seen),
                not unmet(PAGURE.require, {"committer-score": 1}, now),
                not unmet(PAGURE.require, {"status": ["success"]}, now),
            ]
    assert not any(found["eve"])
    assert found["ada"].count(True) == 2, "who proposed it may start things, and counts for nothing of their own"
    assert found["bob"].count(True) == 3, "the two events, and the score"


async def test_a_flag_does_not_count_for_commits_pushed_in_the_same_second(
    here: Ground, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The proposer sees when a program is done, and pushes at once; Pagure names no commit of a flag, and times only
    to the second."""
    async with watched(here) as gate:
        pull = opened(here)
        at_s = here.hub.world.clock.now_s() + 5
        monkeypatch.setattr(here.hub.world.clock, "now_s", lambda: at_s)
        here.eve.flag(pull, "lint")
        await here.settled()
        assert [one.name for one in details(gate).statuses or ()] == ["lint"]
        here.ada.push(here.project, "topic", {"a.txt": "3\n"})
        await here.settled()
        assert gate.change_state(1).change.commit == pull.commit_stop and details(gate).statuses == ()


async def test_output_of_a_job_is_not_counted_as_a_vote(here: Ground) -> None:
    """Pagure finds votes anywhere in a comment, also in dates and addresses."""
    here.project.options["Minimum_score_to_merge_pull-request"] = 1
    pull = opened(here)
    for kind, text in (("failure", ":thumbsup: +1"), ("success", "2026-11-23, https://x.example/-1 :thumbsdown:")):
        await here.forge.report(outbox_message(pull, kind, text))
        assert pull.comments and pull.score == 0
    done = await here.forge.land(*as_tested(here, pull))
    assert "minimum review score" in str(done)


async def test_forged_deliveries_of_a_project_cause_no_poll(here: Ground) -> None:
    """Unsigned, wrongly signed, signed by another project, of unknown projects; the same one ten times."""
    other = here.hub.project("eve/own", {"a": "1"}, owner="eve")
    payload = {"pullrequest": {"id": 1, "status": "Open"}, "project_fullname": "acme/rocket", "agent": "bob"}
    body = json.dumps({"topic": "pull-request.new", "msg": payload, "msg_id": "2026-one"}).encode()

    def by(token: str, project: str = "acme/rocket") -> dict[str, str]:
        return {
            "X-Pagure-Signature": hmac.new(token.encode(), body, hashlib.sha1).hexdigest(),
            "X-Pagure-Project": project,
        }

    forged: list[dict[str, str]] = [
        {}, {"X-Pagure-Project": "acme/rocket"}, by("guess"), by(other.hook_token), by(other.hook_token, "eve/own"),
        by("x", "acme/rocket/../../x"), *(by("x", f"eve/guess{n}") for n in range(20)),
    ]  # fmt: skip
    async with watched(here) as gate, httpx.AsyncClient(trust_env=False) as client:
        opened(here)
        await here.settled()
        before, known = len(here.calls), len(gate.answered)
        for headers in forged:
            answer = await client.post(here.hook, content=body, headers=headers)
            assert answer.status_code in (400, 401), headers
        assert here.calls[before:] == [], "the token of the project is known, and was asked for just now"
        for _ in range(10):
            assert (await client.post(here.hook, content=body, headers=by(here.project.hook_token))).is_success
        await here.settled()
        assert set(gate.answered[known:]) == {"2026-one"}
    assert not [why for why in here.refused if here.project.hook_token in why]


async def test_a_change_that_is_too_long_or_odd_delays_no_other(here: Ground, monkeypatch: pytest.MonkeyPatch) -> None:
    """Endless comments of strangers, holes in the list, a pull request without commits."""
    long, empty = opened(here), here.ada.propose(here.project, "empty", {"e": "1\n"})
    here.ada.propose(here.project, "good", {"g": "1\n"})
    here.eve.comment(long, "x" * 500_000)
    empty.commit_stop = ""
    monkeypatch.setattr(rest, "ANSWER_MAX_BYTES", 300_000)
    real = here.client.get

    async def get(key: ForgeKey, path: str, *args: Any, **more: Any) -> ForgeResponse:
        found = await real(key, path, *args, **more)
        if path.endswith("/pull-requests"):
            holes = [None, {"id": 9}, {"id": "x"}, *found.content["requests"]]
            return found._replace(content={**found.content, "requests": holes})
        return found

    monkeypatch.setattr(here.client, "get", get)
    async with watched(here) as gate:
        await gate.until(lambda: f"{PROJECT}#3" in gate.known and gate.problems.get(PROJECT))
    assert "pull request 2 cannot be read: it has no commits" in gate.problems[PROJECT]


async def test_a_push_while_a_change_is_merged_is_reported_as_different(
    here: Ground, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Pagure merges the current head, whatever it is."""
    pull, real = opened(here), here.client.write

    async def write(method: str, key: ForgeKey, path: str, body: Any = None) -> ForgeResponse:
        if path.endswith("/merge"):
            here.ada.push(here.project, "topic", {"a.txt": "evil\n"})
        return await real(method, key, path, body)

    landing = as_tested(here, pull)
    monkeypatch.setattr(here.client, "write", write)
    assert await here.forge.land(*landing) == MergeLanded(differs=True)
    assert pull.status == "Merged"


async def test_a_comment_that_copies_one_of_headgate_does_not_replace_ours(here: Ground) -> None:
    pull, text = opened(here), "Oh no"
    message = outbox_message(pull, "failure", text)
    await here.forge.report(message)
    copied = pull.comments.pop().text
    here.eve.comment(pull, copied)
    await here.forge.report(message)
    await here.forge.report(message)
    assert [one.user.login for one in pull.comments] == ["eve", "headgate"]
