"""Test that exactly the tested head lands, in the tested branch, and that the tree is compared."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from headgate.adapters.forges.gitlab.forge import connect
from headgate.adapters.forges.registry import DriverOptions
from headgate.adapters.git.engine import GitEngine
from headgate.ports.forge import MergeLanded, NotLanded
from headgate.ports.reporter import ReporterAway, ReportPutOff
from headgate.testing.forges.github import hosts
from headgate.testing.forges.gitlab.model import OWNER, Protected
from tests.integration.forge.pushed import pushed
from tests.integration.gitlab.ground import PROJECT, Ground, M, as_tested, change_of, opened


def head(here: Ground) -> str:
    return hosts.heads(here.project)["main"]


async def test_a_change_lands_as_it_was_tested_and_a_repeated_request_finds_it_landed(here: Ground) -> None:
    one = opened(here)
    landing = as_tested(here, one)
    done = await here.forge.land(*landing)
    tip = hosts.opened(here.project)[head(here)]
    assert done == MergeLanded(str(tip.id)) == await here.forge.land(*landing)
    assert [str(parent) for parent in tip.parent_ids][1] == one.sha and one.state == "merged"
    (merge,) = [call for call in here.hub.server.log if call.method == "PUT"]
    assert merge.body == {"sha": one.sha, "squash": False}


@pytest.mark.long
async def test_a_squashed_change_lands_as_one_commit_and_a_fast_forward_project_gets_the_tested_commit(
    here: Ground,
) -> None:
    one = opened(here)
    done = await here.forge.land(*as_tested(here, one, "squash-merge"))
    assert isinstance(done, MergeLanded) and not done.differs
    assert one.squash_commit_sha is not None and done.commit == one.merge_commit_sha == head(here)
    here.project.merge_method = "ff"
    other = here.ada.propose(here.project, "other", {"b.txt": "1\n"})
    assert await here.forge.land(*as_tested(here, other)) == MergeLanded(other.sha)
    assert head(here) == other.sha
    for mode in ("rebase", "cherry-pick"):
        refused = await here.forge.land(*as_tested(here, here.ada.propose(here.project, mode, {mode: ""}), mode))
        assert isinstance(refused, NotLanded) and "set the project's merge-mode" in refused.why


async def test_another_head_or_target_does_not_land(here: Ground) -> None:
    here.bob.push(here.project, "release", {"a.txt": "1\n"})
    one = opened(here)
    landing = as_tested(here, one)
    here.ada.edit(one, target_branch="release")
    done = await here.forge.land(*landing)
    assert isinstance(done, NotLanded) and "now targets release" in done.why
    here.ada.edit(one, target_branch="main")
    here.ada.push(here.project, "topic", {"a.txt": "evil\n"})
    done = await here.forge.land(*landing)
    assert isinstance(done, NotLanded) and "its head is no longer" in done.why
    assert one.state == "opened"


async def test_a_head_that_moves_while_it_is_merged_does_not_land(
    here: Ground, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The request to GitLab names the tested head, and GitLab refuses any other."""
    one = opened(here)
    real = here.client.change

    async def change(*args: object) -> object:
        here.ada.push(here.project, "topic", {"a.txt": "evil\n"})
        return await real(*args)  # type: ignore[arg-type]

    monkeypatch.setattr(here.client, "change", change)
    done = await here.forge.land(*as_tested(here, one))
    assert isinstance(done, NotLanded) and "its head is no longer" in done.why
    assert [call.status for call in here.hub.server.log if call.template == f"{M}/merge"] == [409]
    assert one.state == "opened"


async def test_a_branch_that_moved_is_tested_again(here: Ground) -> None:
    landing = as_tested(here, opened(here))
    here.bob.push(here.project, "main", {"b.txt": "1\n"})
    done = await here.forge.land(*landing)
    assert isinstance(done, NotLanded) and done.moved


async def test_another_tree_is_an_alarm(here: Ground) -> None:
    work, part = as_tested(here, opened(here))
    work = replace(work, state=replace(work.state, trees={PROJECT: {"main": "0" * 40}}))
    done = await here.forge.land(work, part)
    assert isinstance(done, MergeLanded) and done.differs


async def test_merged_although_the_answer_was_lost_and_an_answer_that_never_comes(here: Ground) -> None:
    one = opened(here)
    landing = as_tested(here, one)
    here.hub.fail("PUT", f"{M}/merge", status=503)
    with pytest.raises(ReporterAway):
        await here.forge.land(*landing)
    assert one.state == "opened"
    here.hub.fail("PUT", f"{M}/merge", done=True)
    done = await here.forge.land(*landing)
    assert isinstance(done, MergeLanded) and not done.differs and one.state == "merged"


async def test_a_landing_waits_until_gitlab_has_computed_the_merge_status(here: Ground) -> None:
    here.hub.world.undecided_asks = 4
    landing = as_tested(here, opened(here))
    with pytest.raises(ReportPutOff, match="waits for GitLab to work out"):
        await here.forge.land(*landing)
    assert isinstance(await here.forge.land(*landing), MergeLanded)


@pytest.mark.long
async def test_requirements_of_the_project_are_reported(here: Ground) -> None:
    one = opened(here)
    landing = as_tested(here, one)
    note = here.eve.comment(one, "Why?", resolvable=True)
    assert note is not None

    async def why() -> str:
        done = await here.forge.land(*landing)
        assert isinstance(done, NotLanded) and one.state == "opened"
        return done.why

    here.project.approvals, here.project.only_if_resolved = 2, True
    assert "needs all its threads to be resolved" in await why()
    here.hub.acts.resolve(one, note)
    here.bob.approve(one)
    assert "needs 1 more approval" in await why()
    here.project.approvals = 1
    one.hindered = "jira_association_missing"
    assert "needs to name an issue of Jira" in await why()
    one.hindered = "quite_new"
    assert "GitLab says quite_new" in await why()
    one.hindered = ""
    here.ada.edit(one, title="Draft: A title")
    assert "it is a draft" in await why()
    here.ada.edit(one, title="A title")
    here.project.protected["main"].merge = OWNER
    assert "let our account merge into main" in await why()
    here.project.protected["main"].merge = 40
    here.project.only_if_pipeline_succeeds = True
    here.eve.status(one, "lint", "failed")
    assert "needs its pipeline to pass: lint" in await why()
    here.eve.status(one, "lint", "running")
    with pytest.raises(ReportPutOff, match="lint"):
        await here.forge.land(*landing)
    here.eve.status(one, "lint", "success")
    assert isinstance(await here.forge.land(*landing), MergeLanded)


async def test_changes_of_a_moved_project_land(here: Ground) -> None:
    one = opened(here)
    landing = as_tested(here, one)
    here.hub.rename(here.project, "acme/space/shuttle")
    assert isinstance(await here.forge.land(*landing), MergeLanded) and one.state == "merged"


async def test_a_token_that_is_revoked_refuses_nobody(here: Ground) -> None:
    landing = as_tested(here, opened(here))
    here.hub.world.tokens[here.token].revoked = True
    with pytest.raises(ReporterAway, match="Token was revoked"):
        await here.forge.land(*landing)
    here.hub.world.tokens[here.token].revoked = False
    assert isinstance(await here.forge.land(*landing), MergeLanded)


@pytest.mark.long
async def test_gitlab_recognises_a_pushed_change_and_others_are_closed(here: Ground) -> None:
    section = {"server": here.hub.url, "api_token": here.token, "land": "push"}
    connected = connect(DriverOptions("hub", section, here.root, lambda: engine, lambda: 0))
    engine = GitEngine(here.root / "pushing", {"hub": connected.git})
    assert connected.forge.can.lands == "push" and here.forge.can.lands == "merge"
    seen, squashed = opened(here), here.ada.propose(here.project, "other", {"b.txt": "1\n"})
    assert (await pushed(engine, change_of(seen))).ok and seen.state == "merged"
    assert (await pushed(engine, change_of(squashed), "squash-merge")).ok and squashed.state == "opened"
    await here.forge.conclude(change_of(squashed), head(here))
    assert squashed.state == "closed"
    here.project.protected["main"] = Protected("main", push=OWNER)
    refused = await pushed(engine, change_of(here.ada.propose(here.project, "late", {"c.txt": "1\n"})))
    assert not refused.ok and "Let Headgate's account push" in refused.error and here.token not in refused.error
    await connected.close()
