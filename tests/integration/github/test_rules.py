"""Test branch rules: unmet rules are explained, those that need only the gate's own check are listed, and bypassable
ones are ignored."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from headgate.config.forges.facts import Rule
from headgate.ports.forge import Hint, NotLanded
from headgate.testing.forges.github.model import Thread
from headgate.testing.forges.github.people import GitHub
from tests.integration.github.ground import PROJECT, Ground, ground, opened, watched
from tests.integration.github.test_landing import as_tested


@pytest.fixture
async def here(hub: GitHub, tmp_path: Path) -> AsyncIterator[Ground]:
    async with ground(hub, tmp_path) as found:
        hub.world.mergeability_asks = 0
        yield found


async def rules(here: Ground) -> tuple[Rule, ...]:
    change_state = await here.forge.look_up(f"{PROJECT}#1")
    assert change_state is not None and change_state.details is not None and change_state.details.rules is not None
    return change_state.details.rules


def checks(*names: str, strict: bool = False) -> dict[str, Any]:
    wanted = [{"context": name} for name in names]
    how = {"strict_required_status_checks_policy": strict, "required_status_checks": wanted}
    return {"type": "required_status_checks", "parameters": how}


def reviews(count: int, **more: Any) -> dict[str, Any]:
    how = {
        "required_approving_review_count": count,
        "dismiss_stale_reviews_on_push": False,
        "require_code_owner_review": False,
        "require_last_push_approval": False,
        "required_review_thread_resolution": False,
        **more,
    }
    return {"type": "pull_request", "parameters": how}


@pytest.mark.long
async def test_hidden_rules_do_not_count_as_absent_and_are_reported_once(here: Ground) -> None:
    del here.app.permissions["administration"]
    here.hub.protect(here.repository, approvals=1, contexts=("acme/gate",))
    pull = opened(here)
    async with watched(here, exclude_unprotected_branches=True) as gate:
        await gate.until(lambda: f"{PROJECT}#1" in gate.known and gate.problems.get(PROJECT))
        details = gate.change_state(1).details
        assert details is not None and details.rules is None, "not known is not none"
        assert gate.problems[PROJECT].count("Administration: read") == 1 and gate.protections == []
        done = await here.forge.land(*as_tested(here, pull))
        assert isinstance(done, NotLanded) and "the app lacks a permission: administration: read" in done.why
        here.hub.ruleset(here.repository, reviews(1))
        await here.settled()
        assert [one.met for one in await rules(here)] == [False], "what is shown is told"

        here.app.permissions["administration"] = "read"
        here.hub.world.clock.advance(3600)  # the next token
        here.forge.stir(Hint("again", PROJECT))
        await gate.until(lambda: not gate.problems[PROJECT] and gate.protections)
        assert len(await rules(here)) == 3


async def test_without_rules_nothing_is_lacking(here: Ground) -> None:
    opened(here)
    assert await rules(here) == ()


@pytest.mark.long
@pytest.mark.parametrize("kind", ["classic", "ruleset"])
async def test_statuses_that_are_missing_are_named(here: Ground, kind: str) -> None:
    if kind == "classic":
        here.hub.protect(here.repository, contexts=("acme/gate", "lint"))
    else:
        here.hub.ruleset(here.repository, checks("acme/gate", "lint"))
    pull = opened(here)
    (rule,) = await rules(here)
    assert (rule.met, rule.missing, rule.bypassed) == (False, ("acme/gate", "lint"), False)
    here.eve.status(pull, "lint", "pending")
    here.eve.status(pull, "acme/gate", "pending")
    assert (await rules(here))[0].met is None  # it is waited for
    here.eve.status(pull, "lint")
    (rule,) = await rules(here)
    assert rule.missing == ("acme/gate",) and "acme/gate" in rule.text
    here.eve.status(pull, "acme/gate")
    assert [one.met for one in await rules(here)] == [True]


@pytest.mark.long
@pytest.mark.parametrize("kind", ["classic", "ruleset"])
async def test_reviews_that_are_missing(here: Ground, kind: str) -> None:
    if kind == "classic":
        here.hub.protect(here.repository, approvals=1)
    else:
        here.hub.ruleset(here.repository, reviews(1))
    pull = opened(here)
    (rule,) = await rules(here)
    assert rule.met is False and "needs 1 approving review of people who may write" in rule.text
    here.bob.review(pull, "CHANGES_REQUESTED", "No")
    assert "requested changes" in (await rules(here))[0].text
    here.bob.review(pull)
    assert (await rules(here))[0].met is True


@pytest.mark.long
async def test_all_other_rules_are_described(here: Ground) -> None:
    pull = opened(here)
    pull.threads.append(Thread(1, "a.txt", "Why?"))
    here.hub.protect(
        here.repository, conversations=True, signatures=True, locked=True, pushers=frozenset({"ada"}), contexts=("x",),
        strict=True,
    )  # fmt: skip
    here.hub.ruleset(here.repository, {"type": "merge_queue", "parameters": _QUEUE}, name="Queue")
    here.ada.push(here.repository, "main", {"b.txt": "1\n"})
    found = {rule.text: rule.met for rule in await rules(here)}
    words = [
        "needs this status to be good: x",
        "newest commit of main",
        "conversations to be resolved; 1 is not",
        "verified signatures",
        "to be unlocked",
        "among those who may push",
        "GitHub's own merge queue",
    ]
    for word in words:
        assert [met for text, met in found.items() if word in text] == [False], word
    pull.threads[0].resolved = True
    here.repository.verified.update([pull.head_sha])
    found = {rule.text: rule.met for rule in await rules(here)}
    assert [met for text, met in found.items() if "conversations" in text or "signatures" in text] == [True, True]


_QUEUE = {
    "check_response_timeout_minutes": 60,
    "grouping_strategy": "ALLGREEN",
    "max_entries_to_build": 5,
    "max_entries_to_merge": 5,
    "merge_method": "MERGE",
    "min_entries_to_merge": 1,
    "min_entries_to_merge_wait_minutes": 5,
}


@pytest.mark.long
async def test_rules_that_headgate_may_bypass_are_marked_as_such(here: Ground) -> None:
    here.hub.protect(here.repository, approvals=2, bypass_reviews=frozenset({"headgate"}))
    here.hub.ruleset(here.repository, checks("lint"), bypass={"headgate": "always"})
    here.hub.ruleset(here.repository, checks("lint"), name="Strict", organization=True)
    opened(here)
    found = [(rule.met, rule.bypassed) for rule in await rules(here)]
    assert found == [(False, True), (False, True), (False, False)]
    requests = [one for one in here.hub.server.log if one.template.endswith("/rulesets/{ruleset_id}")]
    await rules(here)
    assert len(requests) == 2 == sum(one.template.endswith("/rulesets/{ruleset_id}") for one in here.hub.server.log)


async def test_an_account_that_may_merge_as_admin(here: Ground) -> None:
    here.hub.protect(here.repository, approvals=2)
    opened(here)
    _, plain = here.driver("plain", app_id="", app_key="", api_token=here.hub.token("bob"))
    change_state = await plain.look_up(f"{PROJECT}#1")
    await plain.close()
    assert change_state is not None and change_state.details is not None
    assert [(rule.met, rule.bypassed) for rule in change_state.details.rules or ()] == [(False, True)]


async def test_rulesets_that_do_not_count(here: Ground) -> None:
    here.hub.ruleset(here.repository, checks("lint"), enforcement="evaluate")
    here.hub.ruleset(here.repository, checks("lint"), branches=("refs/heads/release/*",))
    opened(here)
    assert await rules(here) == ()
