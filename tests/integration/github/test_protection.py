"""Test which branches are protected and locked, as the driver reports them: by classic rules and by rulesets."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from headgate.adapters.forges.github import poll as protection
from headgate.config.operator.model import Protection
from headgate.testing.forges.github.graph import FakeGitHubGraph
from headgate.testing.forges.github.people import GitHub
from tests.integration.github.ground import PROJECT, Ground, ground, opened, watched

REVIEWED = {"type": "pull_request", "parameters": {"required_approving_review_count": 1}}


@pytest.fixture
async def here(hub: GitHub, tmp_path: Path) -> AsyncIterator[Ground]:
    async with ground(hub, tmp_path) as found:
        for branch in ("release/1", "release/2", "topic"):
            found.ada.push(found.repository, branch, {f"{branch}.txt": "1\n"})
        yield found


def protection_of(protected: set[str], locked: set[str] | None = None) -> Protection:
    return Protection(frozenset(protected), frozenset(locked or ()))


async def test_classic_rules_and_rulesets_protect_and_only_the_first_lock(here: Ground) -> None:
    here.hub.protect(here.repository, "release/*", locked=True)
    here.hub.ruleset(here.repository, {"type": "update"})  # of the default branch; Headgate may be allowed to bypass it
    here.hub.ruleset(here.repository, {"type": "deletion"}, branches=("~ALL",), enforcement="evaluate")
    async with watched(here, exclude_unprotected_branches=True) as gate:
        await gate.until(lambda: gate.protections)
    releases = {"release/1", "release/2"}
    assert gate.protections == [protection_of({"main"} | releases, releases)]
    assert gate.heads[PROJECT].keys() == {f"refs/heads/{name}" for name in ("main", "topic", *releases)}


@pytest.mark.long
async def test_changes_of_the_rules_are_reported(here: Ground) -> None:
    async with watched(here, exclude_locked_branches=True) as gate:
        await gate.until(lambda: gate.protections)
        assert gate.protections == [protection_of(set())]
        classic = here.hub.protect(here.repository, "main")
        await gate.until(lambda: gate.protections[-1] == protection_of({"main"}))
        here.hub.edit(here.repository, classic, locked=True)
        await gate.until(lambda: gate.protections[-1] == protection_of({"main"}, {"main"}))
        rules = here.hub.ruleset(here.repository, {"type": "deletion"}, branches=("refs/heads/topic",))
        await gate.until(lambda: gate.protections[-1] == protection_of({"main", "topic"}, {"main"}))
        here.hub.edit(here.repository, rules, enforcement="disabled")
        await gate.until(lambda: gate.protections[-1] == protection_of({"main"}, {"main"}))
        here.hub.unprotect(here.repository, classic)
        await gate.until(lambda: gate.protections[-1] == protection_of(set()))


@pytest.mark.long
async def test_a_new_branch_comes_with_its_protection(here: Ground) -> None:
    here.hub.protect(here.repository, "release/*")
    async with watched(here, exclude_unprotected_branches=True) as gate:
        here.ada.push(here.repository, "release/3", {"new.txt": "1\n"})
        await gate.until(lambda: "refs/heads/release/3" in gate.heads[PROJECT])
        assert gate.protections[-1] == protection_of({"release/1", "release/2", "release/3"})


@pytest.mark.long
async def test_the_rules_of_branches_are_read_only_where_somebody_needs_them(here: Ground) -> None:
    here.hub.protect(here.repository)
    async with watched(here) as gate:
        opened(here)
        await here.settled()
        here.hub.protect(here.repository, "release/*")
        await here.settled()
    assert gate.protections == []


async def test_more_branches_than_in_one_answer(here: Ground, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(protection, "QUERY", protection.QUERY.replace("first: 100", "first: 2"))
    here.hub.protect(here.repository, "release/*", locked=True)
    here.hub.protect(here.repository, "*")
    async with watched(here, exclude_unprotected_branches=True) as gate:
        await gate.until(lambda: gate.protections)
    releases = {"release/1", "release/2"}
    assert gate.protections == [protection_of({"main", "topic"} | releases, releases)]


async def test_somebody_creates_more_branches_than_requested(here: Ground, monkeypatch: pytest.MonkeyPatch) -> None:
    """It admits nothing that was kept out, and the project is still polled."""
    monkeypatch.setattr(protection, "QUERY", protection.QUERY.replace("first: 100", "first: 2"))
    monkeypatch.setattr(protection, "PAGES_MAX", 2)
    here.hub.protect(here.repository)
    async with watched(here, exclude_unprotected_branches=True) as gate:
        await gate.until(lambda: gate.protections)
        here.ada.push(here.repository, "one-more", {"new.txt": "1\n"})
        await gate.until(lambda: "too many to read" in gate.problems.get(PROJECT, ""))
        assert "refs/heads/one-more" in gate.heads[PROJECT]
    assert gate.protections == [protection_of({"main"})]


async def test_hidden_rulesets_do_not_count_as_absent(here: Ground, monkeypatch: pytest.MonkeyPatch) -> None:
    real = FakeGitHubGraph._ref

    def blind(self: FakeGitHubGraph, *of: Any) -> Any:
        return {**real(self, *of), "rules": None}

    monkeypatch.setattr(FakeGitHubGraph, "_ref", blind)
    async with watched(here, exclude_unprotected_branches=True) as gate:
        await gate.until(lambda: "does not say which branches rulesets protect" in gate.problems.get(PROJECT, ""))
    assert gate.protections == []
