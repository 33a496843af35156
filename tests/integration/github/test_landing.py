"""Test that exactly the tested head lands, in the tested branch, and that the tree is compared."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from msgspec.structs import replace

from headgate.gate.state.change import Change
from headgate.gate.state.gitwork import MergeItem
from headgate.gate.state.works import Landing, LandRequest, RepoState
from headgate.ports.forge import MergeLanded, NotLanded
from headgate.ports.reporter import ReporterAway, ReportPutOff, ReportRefused
from headgate.testing.forges.github import hosts
from headgate.testing.forges.github.model import FakeGitHubPull
from headgate.testing.forges.github.people import GitHub
from tests.integration.github.ground import PROJECT, Ground, ground, opened


@pytest.fixture
async def here(hub: GitHub, tmp_path: Path) -> AsyncIterator[Ground]:
    async with ground(hub, tmp_path) as found:
        hub.world.mergeability_asks = 0
        yield found


def as_tested(here: Ground, pull: FakeGitHubPull, mode: str = "merge") -> tuple[LandRequest, Landing]:
    """Return the request to land the tested change on the current branch."""
    base = hosts.heads(here.repository)["main"]
    tree = str(hosts.merged_tree(here.repository, base, pull.head_sha))
    change = Change(
        "hub", PROJECT, "main", commit=pull.head_sha, ref=f"refs/pull/{pull.number}/head", number=str(pull.number),
        title=pull.title, message=f"{pull.title}\n\n{pull.body or ''}",
    )  # fmt: skip
    item = MergeItem("item", PROJECT, "hub", "main", change.ref, change.commit, mode)
    state = RepoState(
        (item,), {PROJECT: {"refs/heads/main": base}}, {}, {PROJECT: "hub"}, trees={PROJECT: {"main": tree}}
    )
    work = LandRequest("buildset", state, change, "speculative", "note")
    return work, Landing(change, "speculative", "note")


@pytest.mark.parametrize(("mode", "parents"), [("merge", 2), ("squash-merge", 1), ("rebase", 1), ("merge-ort", 2)])
async def test_a_change_lands_as_it_was_tested(here: Ground, mode: str, parents: int) -> None:
    pull = opened(here)
    done = await here.forge.land(*as_tested(here, pull, mode))
    tip = hosts.opened(here.repository)[hosts.heads(here.repository)["main"]]
    assert done == MergeLanded(str(tip.id))
    assert len(tip.parent_ids) == parents and pull.merged
    if mode != "rebase":
        assert tip.message.startswith("A title (#1)\n\nA body")


async def test_a_repeated_request_finds_the_change_landed(here: Ground) -> None:
    pull = opened(here)
    landing = as_tested(here, pull)
    first = await here.forge.land(*landing)
    assert await here.forge.land(*landing) == first


async def test_a_head_that_moved_does_not_land(here: Ground) -> None:
    pull = opened(here)
    landing = as_tested(here, pull)
    here.ada.push(here.repository, "topic", {"a.txt": "evil\n"})
    done = await here.forge.land(*landing)
    assert isinstance(done, NotLanded) and "its head is no longer" in done.why
    assert not pull.merged


async def test_a_branch_that_moved_is_tested_again(here: Ground) -> None:
    pull = opened(here)
    landing = as_tested(here, pull)
    here.bob.push(here.repository, "main", {"b.txt": "1\n"})
    done = await here.forge.land(*landing)
    assert isinstance(done, NotLanded) and done.moved
    assert not pull.merged


async def test_another_tree_is_an_alarm(here: Ground) -> None:
    """Somebody pushes between our check and GitHub's merge; here the tested tree differs from the beginning."""
    pull = opened(here)
    work, part = as_tested(here, pull)
    work = replace(work, state=replace(work.state, trees={PROJECT: {"main": "0" * 40}}))
    done = await here.forge.land(work, part)
    assert isinstance(done, MergeLanded) and done.differs


async def test_merged_although_the_answer_was_lost(here: Ground) -> None:
    pull = opened(here)
    landing = as_tested(here, pull)
    here.hub.fail("PUT", "/repos/{owner}/{repo}/pulls/{pull_number}/merge", done=True)
    done = await here.forge.land(*landing)
    assert isinstance(done, MergeLanded) and not done.differs and pull.merged


@pytest.mark.long
async def test_an_answer_that_never_comes_is_no_answer(here: Ground) -> None:
    pull = opened(here)
    landing = as_tested(here, pull)
    here.hub.fail("PUT", "/repos/{owner}/{repo}/pulls/{pull_number}/merge", status=503)
    with pytest.raises(ReporterAway):
        await here.forge.land(*landing)
    assert not pull.merged
    assert isinstance(await here.forge.land(*landing), MergeLanded)


@pytest.mark.long
async def test_a_landing_waits_until_github_has_computed_the_merge_status(here: Ground) -> None:
    here.hub.world.mergeability_asks = 2
    pull = opened(here)
    landing = as_tested(here, pull)
    with pytest.raises(ReportPutOff, match="still checking"):
        await here.forge.land(*landing)
    assert isinstance(await here.forge.land(*landing), MergeLanded)


@pytest.mark.long
async def test_refusals_of_the_rules_are_reported(here: Ground) -> None:
    here.hub.protect(here.repository, approvals=2, contexts=("lint",))
    pull = opened(here)
    done = await here.forge.land(*as_tested(here, pull))
    assert isinstance(done, NotLanded)
    assert "At least 2 approving reviews are required" in done.why and 'status check "lint" is expected' in done.why
    here.repository.protections.clear()
    here.hub.ruleset(here.repository, {"type": "merge_queue", "parameters": {}})
    done = await here.forge.land(*as_tested(here, pull))
    assert isinstance(done, NotLanded) and "let Headgate bypass it" in done.why
    here.repository.rulesets.clear()
    here.repository.allow_merge_commit = False
    done = await here.forge.land(*as_tested(here, pull))
    assert isinstance(done, NotLanded) and "set the project's merge-mode" in done.why
    done = await here.forge.land(*as_tested(here, pull, "cherry-pick"))
    assert isinstance(done, NotLanded) and "merge-mode" in done.why
    here.app.permissions["contents"] = "read"
    done = await here.forge.land(*as_tested(here, pull, "squash-merge"))
    assert isinstance(done, NotLanded) and "the app lacks a permission" in done.why


async def test_an_app_that_was_removed_lands_nothing(here: Ground) -> None:
    pull = opened(here)
    landing = as_tested(here, pull)
    here.hub.world.installations.clear()
    done = await here.forge.land(*landing)
    assert isinstance(done, NotLanded) and "is not installed" in done.why


async def test_a_pushed_change_that_github_does_not_recognise_is_closed(here: Ground) -> None:
    pull = opened(here)
    change = as_tested(here, pull)[1].change
    await here.forge.conclude(change, "c" * 40)
    await here.forge.conclude(change, "c" * 40)
    assert pull.state == "closed" and not pull.merged
    here.app.permissions["pull_requests"] = "read"
    with pytest.raises(
        ReportRefused, match=f"does not close the [a-z ]+ that landed as {'c' * 12}.*lacks a permission"
    ):
        await here.forge.conclude(change, "c" * 40)
