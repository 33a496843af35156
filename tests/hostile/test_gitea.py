"""Test people who may only propose or comment on a Gitea, and jobs that name odd lines."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from headgate.adapters.forges import rest
from headgate.adapters.forges.gitea import pull as pulls
from headgate.adapters.forges.rest import NO_QUERY, ForgeKey, ForgeResponse, Query
from headgate.adapters.git.command import GitError
from headgate.adapters.git.connection import GitConnection
from headgate.adapters.git.engine import GitEngine
from headgate.config.forges.github import GITEA
from headgate.config.forges.keyterms import TermSubject, triggered, unmet
from headgate.gate.state.returns import FileComment
from headgate.ports.forge import MergeLanded
from headgate.testing.forges.gitea.people import gitea
from tests.integration.gitea.ground import PROJECT, Ground, ground, opened, watched
from tests.integration.gitea.test_landing import as_tested
from tests.integration.gitea.test_reporting import outbox_message


@pytest.fixture
async def here(tmp_path: Path) -> AsyncIterator[Ground]:
    async with gitea(tmp_path / "gitea") as hub, ground(hub, tmp_path) as found:
        yield found


async def test_comments_of_strangers_start_nothing_and_approve_nothing(here: Ground) -> None:
    """They copy every comment of authorised people."""
    recheck = {"event": "pull_request", "action": "comment", "comment": "recheck", "permission": "write"}
    approved = {"event": "pull_request_review", "action": "submitted", "state": "approved", "permission": "write"}
    wanted = {"review": [{"type": "approved", "permission": "write"}]}
    here.hub.protect(here.repository, approvals=1)
    async with watched(here) as gate:
        pull = opened(here)
        await here.settled()
        found: dict[str, list[bool]] = {}
        for who in (here.eve, here.bob):
            here.hub.world.clock.advance(1)
            begun = len(gate.events)
            who.comment(pull, "recheck")
            who.review(pull)
            await here.settled()
            seen = [TermSubject(gate.change_state(1), happening=event.happening) for event in gate.events[begun:]]
            found[who.account.login] = [
                *(triggered(GITEA, requirement, one) for requirement in (recheck, approved) for one in seen),
                not unmet(GITEA.require, wanted, TermSubject(gate.change_state(1), now_ms=1)),
                all(rule.met for rule in gate.change_state(1).details.rules or ()),  # type: ignore[union-attr]
            ]
    assert not any(found["eve"])
    assert found["bob"].count(True) == 4, "one of the two events for each trigger, the review, the rule"


async def test_a_change_with_endless_reviews_delays_no_other(here: Ground, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pulls, "LISTED_MAX", 3)
    flooded = opened(here)
    for _ in range(4):
        here.eve.review(flooded, "COMMENT")
    here.ada.propose(here.repository, "second", {"b": "1\n"}, "Second")
    async with watched(here) as gate:
        await gate.until(lambda: f"{PROJECT}#2" in gate.known and gate.problems.get(PROJECT))
    assert "pull request 1 cannot be read: it has more than 3 reviews" in gate.problems[PROJECT]


async def test_lines_that_break_gitea_delay_no_report(here: Ground) -> None:
    pull = opened(here)
    here.hub.fail("POST", "/repos/{owner}/{repo}/pulls/{index}/reviews", times=2, status=500)
    notes = {"a.txt": (FileComment("x", 10**9),)}
    await here.forge.report(outbox_message(pull, "failure", comments=notes))
    assert "The jobs' comments on lines could not be posted" in pull.comments[0].body and not pull.reviews
    await here.forge.report(outbox_message(pull, "success", how={"review": "approve"}, comments=notes))
    assert [one.state for one in pull.reviews] == ["APPROVED"]


async def test_a_gitea_that_sends_git_elsewhere_sends_no_token_there(here: Ground) -> None:
    options = await here.client.git("acme/rocket")
    assert options[f"http.{here.account.clone}/.followRedirects"] == "false"
    here.hub.rename(here.repository, "starship")
    one = here.client.account
    connection = GitConnection("hub", one.clone, one.canonical_hostname, access=here.client.git)
    engine = GitEngine(here.root / "elsewhere", {"hub": connection})
    with pytest.raises(GitError, match="301"):
        await engine.mirror(PROJECT, "hub").remote.refs("refs/heads/main")


async def test_long_comments_of_strangers_delay_nothing(here: Ground, monkeypatch: pytest.MonkeyPatch) -> None:
    pull = opened(here)
    here.eve.comment(pull, "x" * 500_000)
    monkeypatch.setattr(rest, "ANSWER_MAX_BYTES", 400_000)
    async with watched(here) as gate:
        await gate.until(lambda: f"{PROJECT}#1" in gate.known)
        here.hub.world.clock.advance(5)
        here.bob.comment(pull, "recheck")
        await here.settled()
        assert gate.reported.count("pull_request.comment") == 1
    await here.forge.report(outbox_message(pull, "success"))
    assert len(pull.comments) == 3


async def test_a_list_with_gaps_delays_no_other(here: Ground, monkeypatch: pytest.MonkeyPatch) -> None:
    """Gitea shows holes for what it cannot read."""
    real = here.client.get

    async def get(key: ForgeKey, path: str, query: Query = NO_QUERY, *, urgent: bool = True) -> ForgeResponse:
        found = await real(key, path, query, urgent=urgent)
        return found._replace(content=[None, {"number": 7}, *found.content]) if path.endswith("/pulls") else found

    monkeypatch.setattr(here.client, "get", get)
    opened(here)
    async with watched(here) as gate:
        await gate.until(lambda: f"{PROJECT}#1" in gate.known)


async def test_a_pull_request_that_is_moved_while_it_is_merged_is_reported_as_different(
    here: Ground, monkeypatch: pytest.MonkeyPatch
) -> None:
    here.hub.world.mergeability_asks = 0
    here.ada.push(here.repository, "release", {"b.txt": "1\n"})
    pull, real = opened(here), here.client.write

    async def write(method: str, key: ForgeKey, path: str, body: Any = None) -> ForgeResponse:
        here.ada.edit(pull, base="release")
        return await real(method, key, path, body)

    landing = as_tested(here, pull)
    monkeypatch.setattr(here.client, "write", write)
    assert await here.forge.land(*landing) == MergeLanded(differs=True)
    assert pull.merged


async def test_a_review_that_copies_the_mark_of_headgate_does_not_replace_ours(here: Ground) -> None:
    pull = opened(here)
    message = outbox_message(pull, "failure", how={"review": "request-changes", "comment": False})
    here.eve.review(pull, "COMMENT", f"<!-- headgate {message.report.id} -->")
    await here.forge.report(message)
    await here.forge.report(message)
    assert [one.state for one in pull.reviews] == ["COMMENT", "REQUEST_CHANGES"]
