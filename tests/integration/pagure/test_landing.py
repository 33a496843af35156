"""Test that exactly the tested head lands, in the tested branch; Pagure accepts no head, so the tree is compared."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from headgate.adapters.forges.pagure.reporter import PATIENCE_S
from headgate.gate.state.change import Change
from headgate.gate.state.gitwork import MergeItem
from headgate.gate.state.works import Landing, LandRequest, RepoState
from headgate.ports.forge import MergeLanded, NotLanded
from headgate.ports.reporter import ReporterAway, ReportPutOff
from headgate.testing.forges.github import hosts
from headgate.testing.forges.pagure.model import FakePagureRequest
from tests.integration.pagure.ground import PROJECT, Ground, opened

MERGE = "/{project}/pull-request/{id}/merge"


def change_of(pull: FakePagureRequest) -> Change:
    return Change(
        "hub", PROJECT, "main", commit=pull.commit_stop, ref=f"refs/pull/{pull.id}/head", number=str(pull.id),
        title=pull.title,
    )  # fmt: skip


def as_tested(here: Ground, pull: FakePagureRequest, mode: str = "merge") -> tuple[LandRequest, Landing]:
    """Return the request to land the tested change on the current branch."""
    base = hosts.heads(here.project)["main"]
    tree, change = str(hosts.merged_tree(here.project, base, pull.commit_stop)), change_of(pull)
    item = MergeItem("item", PROJECT, "hub", "main", change.ref, change.commit, mode)
    heads, trees = {PROJECT: {"refs/heads/main": base}}, {PROJECT: {"main": tree}}
    state = RepoState((item,), heads, {}, {PROJECT: "hub"}, trees=trees)
    return LandRequest("buildset", state, change, "speculative", "note"), Landing(change, "speculative", "note")


def tip_of(here: Ground) -> str:
    return hosts.heads(here.project)["main"]


@pytest.mark.long
@pytest.mark.parametrize(("parted", "always"), [(False, False), (True, False), (False, True)])
async def test_a_change_lands_as_it_was_tested(here: Ground, parted: bool, always: bool) -> None:
    """Fast-forward if possible, else a merge, as the project is configured; a later push changes nothing."""
    here.project.options["always_merge"] = always
    pull = opened(here)
    if parted:
        here.bob.push(here.project, "main", {"b.txt": "1\n"})
    landing = as_tested(here, pull)
    done = await here.forge.land(*landing)
    assert done == MergeLanded(tip_of(here)) and pull.status == "Merged"
    assert (done.commit == pull.commit_stop) is not (parted or always)
    here.bob.push(here.project, "main", {"c.txt": "1\n"})
    assert await here.forge.land(*landing) == done, "asked again it has landed"


@pytest.mark.long
async def test_a_pull_request_whose_head_or_branches_moved_does_not_land(here: Ground) -> None:
    pull = opened(here)
    landing = as_tested(here, pull)
    here.ada.push(here.project, "topic", {"a.txt": "evil\n"})
    done = await here.forge.land(*landing)
    assert isinstance(done, NotLanded) and "its head is no longer" in done.why
    other = here.ada.propose(here.project, "other", {"o.txt": "1\n"})
    landing = as_tested(here, other)
    here.bob.push(here.project, "main", {"b.txt": "1\n"})
    done = await here.forge.land(*landing)
    assert isinstance(done, NotLanded) and done.moved
    here.bob.push(here.project, "release", {"a.txt": "1\n"})
    landing = as_tested(here, other)
    here.ada.edit(other, branch="release")
    done = await here.forge.land(*landing)
    assert isinstance(done, NotLanded) and "now targets release" in done.why
    here.hub.acts.merge(other, here.bob.account)
    assert isinstance(await here.forge.land(*landing), NotLanded), "merged elsewhere it has not landed here"


async def test_another_tree_is_an_alarm(here: Ground) -> None:
    pull = opened(here)
    work, part = as_tested(here, pull)
    work = replace(work, state=replace(work.state, trees={PROJECT: {"main": "0" * 40}}))
    done = await here.forge.land(work, part)
    assert isinstance(done, MergeLanded) and done.differs


@pytest.mark.long
async def test_answers_that_are_lost_or_never_come(here: Ground) -> None:
    pull = opened(here)
    landing = as_tested(here, pull)
    here.hub.fail("POST", MERGE, status=503)
    with pytest.raises(ReporterAway):
        await here.forge.land(*landing)
    here.hub.fail("POST", MERGE, status=500)
    with pytest.raises(ReportPutOff, match="has an internal error"):
        await here.forge.land(*landing)
    here.hub.world.tokens[here.account.api_token].revoked = True
    with pytest.raises(ReporterAway, match="refuses the api_token"):
        await here.forge.land(*landing)
    here.hub.world.tokens[here.account.api_token].revoked = False
    assert pull.status == "Open"
    here.hub.fail("POST", MERGE, done=True)
    assert await here.forge.land(*landing) == MergeLanded(tip_of(here))


async def test_a_merge_that_was_accepted_but_not_performed_does_not_count(here: Ground) -> None:
    """Pagure claims to have merged where it may not, and where its worker is down."""
    here.project.options["disable_non_fast-forward_merges"] = True
    pull = opened(here)
    here.bob.push(here.project, "main", {"b.txt": "1\n"})
    landing = as_tested(here, pull)
    with pytest.raises(ReportPutOff, match="has not performed it yet"):
        await here.forge.land(*landing)
    here.hub.world.clock.advance(PATIENCE_S + 1)
    done = await here.forge.land(*landing)
    assert isinstance(done, NotLanded) and "allows only fast-forwards" in done.why and pull.status == "Open"


@pytest.mark.parametrize("breaks", [True, False])
async def test_a_conflict_is_no_failure(here: Ground, breaks: bool) -> None:
    """Many versions of Pagure fail on it."""
    here.hub.world.breaks = breaks
    pull = opened(here)
    work, part = as_tested(here, pull)
    here.bob.push(here.project, "main", {"a.txt": "else\n"})
    heads = {PROJECT: {"refs/heads/main": tip_of(here)}}
    done = await here.forge.land(replace(work, state=replace(work.state, heads=heads)), part)
    assert isinstance(done, NotLanded) and "conflicts" in done.why


async def test_refusals_of_the_options_are_reported(here: Ground) -> None:
    pull, options = opened(here), here.project.options

    async def why() -> str:
        done = await here.forge.land(*as_tested(here, pull))
        assert isinstance(done, NotLanded)
        return done.why

    options["Only_assignee_can_merge_pull-request"] = True
    assert "must be assigned" in await why()
    here.bob.assign(pull, here.bob)
    assert "assign it to Headgate's account" in await why()
    options["Only_assignee_can_merge_pull-request"] = False
    options["Minimum_score_to_merge_pull-request"] = 2
    assert "minimum review score" in await why()
    options["Minimum_score_to_merge_pull-request"] = -1
    here.project.access["headgate"] = "ticket"
    assert "give Headgate's account commit access" in await why()
    here.project.access["headgate"] = "commit"
    token = here.hub.token("headgate", frozenset())
    _, less = here.driver("less", api_token=token)
    done = await less.land(*as_tested(here, pull))
    await less.close()
    assert isinstance(done, NotLanded) and "ACL to merge pull requests" in done.why
    for mode in ("squash-merge", "rebase", "cherry-pick"):
        done = await here.forge.land(*as_tested(here, pull, mode))
        assert isinstance(done, NotLanded) and "merge-mode to merge" in done.why
    here.ada.close(pull)
    assert "it is closed" in await why() and pull.status == "Closed"
