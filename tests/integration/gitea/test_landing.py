"""Test that exactly the tested head lands, in the tested branch, and that the tree is compared."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from headgate.adapters.forges.gitea.forge import connect
from headgate.adapters.forges.gitea.reporter import PATIENCE_S
from headgate.adapters.forges.registry import DriverOptions
from headgate.adapters.git.engine import GitEngine
from headgate.gate.state.change import Change
from headgate.gate.state.gitwork import MergeItem
from headgate.gate.state.works import Landing, LandRequest, RepoState
from headgate.ports.forge import MergeLanded, NotLanded
from headgate.ports.reporter import ReporterAway, ReportPutOff
from headgate.testing.forges.gitea.model import FakeGiteaProtection, FakeGiteaPull
from headgate.testing.forges.github import hosts
from tests.integration.forge.pushed import pushed
from tests.integration.gitea.ground import PROJECT, Ground, opened

MERGE = "/repos/{owner}/{repo}/pulls/{index}/merge"


@pytest.fixture(autouse=True)
def worked_out(here: Ground) -> None:
    here.hub.world.mergeability_asks = 0


def as_tested(here: Ground, pull: FakeGiteaPull, mode: str = "merge") -> tuple[LandRequest, Landing]:
    """Return the request to land the tested change on the current branch."""
    base = hosts.heads(here.repository)["main"]
    tree = str(hosts.merged_tree(here.repository, base, pull.head_sha))
    change = Change(
        "hub", PROJECT, "main", commit=pull.head_sha, ref=f"refs/pull/{pull.number}/head", number=str(pull.number),
        title=pull.title, message=f"{pull.title}\n\n{pull.body}",
    )  # fmt: skip
    item = MergeItem("item", PROJECT, "hub", "main", change.ref, change.commit, mode)
    state = RepoState(
        (item,), {PROJECT: {"refs/heads/main": base}}, {}, {PROJECT: "hub"}, trees={PROJECT: {"main": tree}}
    )
    work = LandRequest("buildset", state, change, "speculative", "note")
    return work, Landing(change, "speculative", "note")


@pytest.mark.parametrize(("mode", "parents"), [("merge", 2), ("squash-merge", 1), ("rebase", 1)])
async def test_a_change_lands_as_it_was_tested(here: Ground, mode: str, parents: int) -> None:
    pull = opened(here)
    landing = as_tested(here, pull, mode)
    done = await here.forge.land(*landing)
    tip = hosts.opened(here.repository)[hosts.heads(here.repository)["main"]]
    assert done == MergeLanded(str(tip.id))
    assert len(tip.parent_ids) == parents and pull.merged
    if mode != "rebase":
        assert tip.message.startswith("A title (#1)\n\nA body")
    assert await here.forge.land(*landing) == done, "asked again it has landed"


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


async def test_a_pull_request_moved_to_another_branch_does_not_land(here: Ground) -> None:
    here.bob.push(here.repository, "release", {"a.txt": "1\n"})
    pull = opened(here)
    landing = as_tested(here, pull)
    here.ada.edit(pull, base="release")
    done = await here.forge.land(*landing)
    assert isinstance(done, NotLanded) and "now targets release" in done.why and not pull.merged
    here.bob.push(here.repository, "release", {"a.txt": "2\n"}, merges=pull.head_sha)
    assert pull.merged
    assert isinstance(await here.forge.land(*landing), NotLanded), "merged elsewhere it has not landed here"


async def test_another_tree_is_an_alarm(here: Ground) -> None:
    pull = opened(here)
    work, part = as_tested(here, pull)
    work = replace(work, state=replace(work.state, trees={PROJECT: {"main": "0" * 40}}))
    done = await here.forge.land(work, part)
    assert isinstance(done, MergeLanded) and done.differs


async def test_merged_although_the_answer_was_lost(here: Ground) -> None:
    pull = opened(here)
    landing = as_tested(here, pull)
    here.hub.fail("POST", MERGE, done=True)
    done = await here.forge.land(*landing)
    assert isinstance(done, MergeLanded) and not done.differs and pull.merged


async def test_an_answer_that_never_comes_is_no_answer(here: Ground) -> None:
    pull = opened(here)
    landing = as_tested(here, pull)
    here.hub.fail("POST", MERGE, status=503)
    with pytest.raises(ReporterAway):
        await here.forge.land(*landing)
    assert not pull.merged
    assert isinstance(await here.forge.land(*landing), MergeLanded)


async def test_a_landing_waits_until_gitea_has_computed_the_merge_status(here: Ground) -> None:
    here.hub.world.mergeability_asks = 3
    pull = opened(here)
    landing = as_tested(here, pull)
    with pytest.raises(ReportPutOff, match="still checking"):
        await here.forge.land(*landing)
    assert isinstance(await here.forge.land(*landing), MergeLanded)


async def test_an_undecided_mergeability_becomes_a_conflict_after_a_while(here: Ground) -> None:
    """Gitea gives the same answer to both."""
    here.hub.world.mergeability_asks = 1_000
    pull = opened(here)
    landing = as_tested(here, pull)
    with pytest.raises(ReportPutOff):
        await here.forge.land(*landing)
    here.hub.world.clock.advance(PATIENCE_S + 1)
    done = await here.forge.land(*landing)
    assert isinstance(done, NotLanded) and "a conflict with main" in done.why


async def test_refusals_of_the_rules_are_reported(here: Ground) -> None:
    pull = opened(here)
    rule = here.hub.protect(here.repository, approvals=2)
    done = await here.forge.land(*as_tested(here, pull))
    assert isinstance(done, NotLanded) and "Does not have enough approvals" in done.why
    rule.approvals, rule.mergers = 0, frozenset({"bob"})
    done = await here.forge.land(*as_tested(here, pull))
    assert isinstance(done, NotLanded) and "let Headgate's account merge into the branch" in done.why
    here.repository.protections.clear()
    here.repository.styles = frozenset({"squash"})
    done = await here.forge.land(*as_tested(here, pull))
    assert isinstance(done, NotLanded) and "set the project's merge-mode" in done.why
    done = await here.forge.land(*as_tested(here, pull, "cherry-pick"))
    assert isinstance(done, NotLanded) and "merge-mode" in done.why
    here.repository.archived = True
    done = await here.forge.land(*as_tested(here, pull, "squash-merge"))
    assert isinstance(done, NotLanded) and "the repository is archived" in done.why
    here.ada.close(pull)
    here.repository.archived = False
    done = await here.forge.land(*as_tested(here, pull, "squash-merge"))
    assert isinstance(done, NotLanded) and "it is closed" in done.why
    assert not pull.merged


async def test_a_merge_that_breaks_gitea_delays_nothing_else(here: Ground) -> None:
    pull = opened(here)
    here.hub.fail("POST", MERGE, status=500)
    with pytest.raises(ReportPutOff, match="has an internal error"):
        await here.forge.land(*as_tested(here, pull))
    assert not pull.merged


async def test_a_landing_waits_while_the_token_is_refused(here: Ground) -> None:
    pull = opened(here)
    landing = as_tested(here, pull)
    here.hub.world.tokens[here.account.api_token].revoked = True
    with pytest.raises(ReporterAway):
        await here.forge.land(*landing)
    here.hub.world.tokens[here.account.api_token].revoked = False
    assert isinstance(await here.forge.land(*landing), MergeLanded)


@pytest.mark.long
async def test_a_push_is_seen_or_reported_or_its_change_is_closed(here: Ground) -> None:
    section = {"baseurl": here.hub.url, "api_token": here.account.api_token, "land": "push"}
    connected = connect(DriverOptions("hub", section, here.root, lambda: engine, lambda: 0))
    engine = GitEngine(here.root / "pushing", {"hub": connected.git})
    assert connected.forge.can.lands == "push" and here.forge.can.lands == "merge"

    async def landed(name: str, mode: str) -> tuple[FakeGiteaPull, str]:
        pull = here.ada.propose(here.repository, name, {f"{name}.txt": "1\n"}, name)
        change = as_tested(here, pull)[1].change
        assert (await pushed(engine, change, mode)).ok
        commit = hosts.heads(here.repository)["main"]
        if not pull.merged:
            await here.forge.conclude(change, commit)
        return pull, commit

    assert (await landed("seen", "merge"))[0].merged
    closed, _ = await landed("closed", "squash-merge")
    assert closed.state == "closed" and not closed.merged
    here.repository.detects_merges, here.repository.styles = False, here.repository.styles | {"manually-merged"}
    marked, commit = await landed("marked", "rebase")
    assert marked.merged and marked.merge_commit_sha == commit
    here.repository.protections.append(FakeGiteaProtection("main"))
    pull = here.ada.propose(here.repository, "late", {"late.txt": "1\n"}, "late")
    refused = await pushed(engine, as_tested(here, pull)[1].change)
    assert not refused.ok and "Let Headgate's account push" in refused.error
    assert here.account.api_token not in refused.error
    await connected.close()
