"""Test that words of several people on one repository are seen; `tests/hostile/test_people.py` has the rest."""

from __future__ import annotations

import pytest
from click.testing import CliRunner

from headgate.cli.hook import hook
from headgate.gate.state.change import EventKind
from headgate.testing.repositories import Repositories
from tests.hostile.test_people import proposed, push

from .words import PROJECT, watching

KEY = f"{PROJECT}/master/one"


@pytest.fixture
def bound(repositories: Repositories) -> Repositories:
    """Install the rules that bind names; Headgate pushes as `headgate`."""
    result = CliRunner().invoke(hook, ["--people", "headgate", str(repositories.hub / "code")])
    assert result.exit_code == 0, result.output
    return repositories


async def test_approvals_and_vetoes_of_people_are_seen(bound: Repositories) -> None:
    commit = proposed(bound, "ada")
    async with watching(bound) as watch:
        await watch.until(EventKind.PROPOSED)
        assert watch.known[KEY].proposers == ("ada",)
        push(bound, "grace", "HEAD:refs/approvals/grace/master/one")
        await watch.until(EventKind.APPROVED)
        (word,) = watch.known[KEY].approvals
        assert (word.who, word.commit, word.ref) == ("grace", commit, "refs/approvals/grace/master/one")
        assert not watch.known[KEY].is_approved, "another ref says that"
        push(bound, "heinz", "HEAD:refs/approvals/heinz/master/one")
        await watch.until(EventKind.APPROVED)
        first, _ = watch.known[KEY].approvals
        assert first == word, "it was first seen then"
        push(bound, "tony", "HEAD:refs/vetoes/tony/master/one")
        while not watch.known[KEY].vetoes:
            await watch.next()
        push(bound, "heinz", ":refs/approvals/heinz/master/one")
        while len(watch.known[KEY].approvals) > 1:
            await watch.next()
        newer = proposed(bound, "heinz")
        while watch.known[KEY].change.commit != newer:
            await watch.next()
        assert watch.known[KEY].proposers == ("heinz",)
        assert [one.commit for one in watch.known[KEY].approvals] == [commit], "it is of the patchset before"


async def test_approvals_of_nothing_are_named(bound: Repositories) -> None:
    proposed(bound, "ada")
    push(bound, "grace", "HEAD:refs/approvals/grace/master/ghost")
    async with watching(bound) as watch:
        problem = await watch.until_problem("refs/approvals/grace/master/ghost")
        assert "there is no such change" in problem
