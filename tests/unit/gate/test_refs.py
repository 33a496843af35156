"""Test refs: what starts a pipeline, what its jobs receive, and how the end is reported."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from headgate.config.dynamic import LayoutRequest
from headgate.config.model import TriggerFilter
from headgate.gate.rules.refs import update, variables
from headgate.gate.state.change import ZEROS, Change, ChangeState, EventKind
from headgate.gate.state.management import ByHand, Dequeue, Enqueue
from headgate.gate.state.works import MergeAnswer, MergeRequest, RepoState
from headgate.testing.layouts import PlayLayouts
from headgate.testing.plays import Play

ONE, TWO = "1" * 40, "2" * 40
TAG = "refs/tags/v1"


def release(*, refs: tuple[str, ...] = ("^refs/tags/",), manager: str = "independent", **filter: object) -> Play:
    play = Play(manager=manager)
    triggers = (TriggerFilter("git", ("ref-updated",), refs=refs, **filter),)  # type: ignore[arg-type]
    play.pipeline = replace(play.pipeline, name="release", triggers=triggers, require_approved=(), lands=())
    return play


def moved(play: Play, ref: str = TAG, before: str = ZEROS, after: str = ONE) -> Change:
    change = update("git", "p", ref, before, after)
    play.event(EventKind.REF_UPDATED, change)
    return change


def prepared(play: Play, *containing: str) -> MergeRequest:
    """Return the requested build, after the answer."""
    (merge,) = play.merging.values()
    play.merging.clear()
    heads = {"p": {TAG: ONE, "refs/heads/master": TWO}}
    state = RepoState(heads=heads, landed=merge.work.landed, containing=containing)
    play.act(MergeAnswer(merge.work.buildset, True, state=state))
    return merge.work


def refs(play: Play) -> list[tuple[str, str]]:
    return [(item.change.ref, item.change.commit) for _, item in play.state.items()]


def test_a_tag_is_tested_as_it_is_and_its_result_is_reported() -> None:
    play = release()
    moved(play)
    work = prepared(play, "master", "stable")
    assert work.chain == () and work.at is not None and (work.at.ref, work.at.commit, work.at.held) == (TAG, ONE, False)
    spec = play.running_spec("", "unit")
    assert (spec.zuul["tag"], spec.zuul["ref"], spec.zuul["newrev"], spec.zuul["commit_id"]) == ("v1", TAG, ONE, ONE)
    assert spec.zuul.keys().isdisjoint({"branch", "oldrev", "change", "patchset"})
    play.passes("")
    assert play.ended == {"": "SUCCESS"} and refs(play) == []
    works = [report.work for report in play.reports]
    assert [(one.change.ref, one.note.split(".")[0]) for one in works] == [
        (TAG, "Starting release jobs"),
        (TAG, "Build succeeded"),
    ]


def test_the_branches_that_contain_a_tag_are_requested_with_its_jobs(monkeypatch: pytest.MonkeyPatch) -> None:
    requests, real = list[LayoutRequest](), PlayLayouts.judged
    monkeypatch.setattr(PlayLayouts, "judged", lambda layouts, of: requests.append(of) or real(layouts, of))
    play = release()
    play.act(Enqueue(update("git", "p", TAG, "", ONE), "e", by_hand=ByHand({"where": "there"})))
    prepared(play, "master", "stable")
    assert [(one.ref, one.containing, one.parameters) for one in requests] == [
        (TAG, ("master", "stable"), {"where": "there"})
    ]


def test_filters_name_refs_and_deletions_start_nothing_unless_included() -> None:
    play = release()
    for ref in ("refs/heads/master", "refs/deploy/x", "refs/tagsx"):
        moved(play, ref)
    moved(play, after=ZEROS, before=ONE)
    assert refs(play) == []
    wanting = release(ignore_deletes=False)
    moved(wanting, before=ONE, after=ZEROS)
    assert refs(wanting) == [(TAG, ZEROS)]
    work = prepared(wanting)
    assert work.at is not None and (work.at.commit, work.at.old_commit) == (ZEROS, ONE)
    variables = wanting.running_spec("", "unit").zuul
    assert "newrev" not in variables and (variables["oldrev"], variables["commit_id"]) == (ONE, ONE)


def test_a_filter_of_branches_never_means_a_tag() -> None:
    play = release(refs=(), branches=(".*",))
    moved(play)
    moved(play, "refs/heads/master")
    assert refs(play) == [("refs/heads/master", ONE)]
    assert variables(play.state.queues[0].items[0].change)["branch"] == "master"


def test_an_update_is_in_a_pipeline_once_and_each_other_one_besides() -> None:
    play = release()
    moved(play)
    moved(play)
    moved(play, before=ONE, after=TWO)
    moved(play, "refs/tags/v2")
    assert refs(play) == [(TAG, ONE), (TAG, TWO), ("refs/tags/v2", ONE)]


def test_of_each_tag_a_supercedent_pipeline_keeps_the_last() -> None:
    play = release(manager="supercedent")
    for before, after in ((ZEROS, ONE), (ONE, TWO), (TWO, "3" * 40)):
        moved(play, before=before, after=after)
    moved(play, "refs/tags/v2")
    assert refs(play) == [(TAG, ONE), (TAG, "3" * 40), ("refs/tags/v2", ONE)]


def test_an_item_that_cannot_be_prepared_is_reported_with_the_reason() -> None:
    play = release()
    moved(play)
    (merge,) = play.merging.values()
    assert merge.work.at is not None
    play.act(MergeAnswer(merge.work.buildset, False, merge.work.at.item, "refs/tags/v1 names a blob, and no commit"))
    assert play.ended == {"": "MERGE_CONFLICT"}
    assert play.messages[""].startswith("Build failed.\n\nrefs/tags/v1 names a blob, and no commit")


def test_a_ref_is_dequeued_entirely_or_one_update_of_it() -> None:
    play = release()
    moved(play)
    moved(play, before=ONE, after=TWO)
    play.act(Dequeue(f"p@{TAG}", commit=ONE))
    assert refs(play) == [(TAG, TWO)]
    moved(play, after=ONE)
    play.act(Dequeue(f"p@{TAG}"))
    assert refs(play) == []


def test_a_commit_named_by_hand_must_match_its_ref_in_post_review_pipelines() -> None:
    for post_review, unapproved, held in ((True, False, True), (True, True, False), (False, False, False)):
        play = release()
        play.pipeline = replace(play.pipeline, post_review=post_review)
        by_hand = ByHand(claimed=not unapproved)
        play.act(Enqueue(update("git", "p", TAG, "", ONE), "e", unapproved, by_hand))
        work = prepared(play)
        assert work.at is not None and work.at.held is held


def test_a_change_that_was_merged_starts_a_pipeline_and_is_not_merged_again() -> None:
    play = Play(manager="independent")
    triggers = (TriggerFilter("git", ("change-merged",)),)
    play.pipeline = replace(play.pipeline, triggers=triggers)
    change = play.change("A")
    play.change_states[change.key] = ChangeState(change, open=False, landed=True)
    play.event(EventKind.MERGED, change)
    work = prepared(play)
    assert (work.chain, work.at, work.landed) == ((), None, change.commit)
    variables = play.running_spec("A", "unit").zuul
    assert (variables["change"], variables["topic"], variables["branch"]) == ("A", "A", "master")
    play.passes("A")
    assert play.ended == {"A": "SUCCESS"} and play.reports[-1].work.change == change
