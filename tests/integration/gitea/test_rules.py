"""Test the reported protection of a branch."""

from __future__ import annotations

from headgate.config.forges.facts import Rule
from tests.integration.gitea.ground import PROJECT, Ground, opened


async def rules(here: Ground) -> dict[str, Rule]:
    _, fresh = here.driver("git")
    change_state = await fresh.look_up(f"{PROJECT}#1")
    await fresh.close()
    assert change_state is not None and change_state.details is not None and change_state.details.rules is not None
    return {one.text: one for one in change_state.details.rules}


async def test_only_my_own_status_is_missing(here: Ground) -> None:
    pull = opened(here)
    assert await rules(here) == {}
    here.hub.protect(here.repository, approvals=1, contexts=("example/gate", "lint*"))
    first = await rules(here)
    assert [one.met for one in first.values()] == [False, False]
    assert "needs 1 approval that counts for main, and has 0" in first
    here.eve.review(pull)  # a stranger's review does not count
    here.eve.status(pull, "lint-py")
    here.bob.review(pull)
    here.bot.status(pull, "example/gate", "pending")
    found = [*(await rules(here)).values()]
    assert [(one.met, one.missing) for one in found] == [(True, ()), (None, ("example/gate",))]
    here.bot.status(pull, "example/gate")
    assert all(one.met for one in (await rules(here)).values())


async def test_administrators_see_all_of_a_protection(here: Ground) -> None:
    pull = opened(here)
    here.hub.protect(
        here.repository, mergers=frozenset({"bob"}), protected_files="*.txt", block_on_rejected_reviews=True,
        block_on_official_review_requests=True, block_on_outdated_branch=True,
    )  # fmt: skip
    here.bob.review(pull, "REQUEST_CHANGES")
    here.ada.ask(pull, here.bob)
    here.bob.push(here.repository, "main", {"b.txt": "1\n"})
    found = await rules(here)
    assert {text for text, one in found.items() if one.met is False} == {
        "needs Headgate to be among those who may merge into main",
        "needs those who requested changes (bob) to approve it",
        "needs the requested reviews (bob)",
        "needs to contain the newest commit of main; a gate makes that rule needless: remove it",
    }
    here.repository.roles["headgate"] = "write"
    assert [*await rules(here)] == ["needs Headgate to be among those who may merge into main"]


async def test_an_approval_of_a_former_head_counts_where_the_rule_says_so(here: Ground) -> None:
    pull = opened(here)
    rule = here.hub.protect(here.repository, approvals=1)
    here.bob.review(pull)
    here.ada.push(here.repository, "topic", {"a.txt": "3\n"})
    assert [one.met for one in (await rules(here)).values()] == [True]
    rule.ignore_stale_approvals = True
    assert [one.met for one in (await rules(here)).values()] == [False]
