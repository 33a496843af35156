"""Test whether a change may land, which is checked in every turn."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from headgate.gate.state.change import Change, ChangeState, EventKind
from headgate.gate.state.management import Enqueue
from headgate.testing.plays import Play


def at_the_gate(*names: str, window: int = 20) -> Play:
    play = Play(window=window)
    play.approve(*names)
    play.merges()
    return play


def test_a_change_whose_approval_is_withdrawn_leaves_immediately() -> None:
    play = at_the_gate("A", "B")
    play.unapprove("A")
    assert play.ended == {"A": "FAILURE"} and "cannot land: p/master/A is not approved" in play.messages["A"]
    assert "is not approved" in play.reports[-1].work.note
    assert play.builds == [] and play.merging_names == ["B"], "B was tested on it"
    play.merges()
    play.passes("B")
    play.lands("B")
    assert play.ended["B"] == "SUCCESS"


def test_mergers_get_the_name_of_each_change_at_the_forge() -> None:
    """Jobs receive the changes ahead of their own in this form."""
    play = Play()
    play.propose(replace(play.change("A"), url="http://forge/A", number="12", patchset="3"))
    play.approve("A", "B")
    play.merges()
    buildset = play.item("B").buildset
    assert buildset is not None and buildset.state is not None
    ahead, own = buildset.state.chain
    assert (ahead.number, ahead.patchset, ahead.topic, ahead.url) == ("12", "3", "A", "http://forge/A")
    assert (own.number, own.topic) == ("", "B")


def test_also_behind_the_window_and_behind_others() -> None:
    play = at_the_gate("A", "B", "C", window=1)
    play.unapprove("C")
    play.unapprove("B")
    assert play.queue == ["A"] and play.ended == {"B": "FAILURE", "C": "FAILURE"}
    assert play.state.queues[0].window == 1 and play.builds == [("A", "unit")]


def test_taking_approvals_back_says_nothing_of_tests__the_window_stays_and_nobody_counts_failures() -> None:
    play = Play(window=8)
    play.pipeline = replace(play.pipeline, disable_after=2)
    play.approve("A", "B", "C")
    for name in ("A", "B", "C"):
        play.unapprove(name)
    assert play.state.queues[0].window == 8
    assert (play.state.failures, play.state.disabled) == (0, False)


def test_all_jobs_passed_and_the_approval_goes_before_the_head_does() -> None:
    play = at_the_gate("A", "B")
    play.passes("B")
    play.unapprove("B")
    play.passes("A")
    play.lands("A")
    assert play.landing_names == [] and play.ended == {"A": "SUCCESS", "B": "FAILURE"}


def test_a_change_that_is_approved_again_is_enqueued_again() -> None:
    play = at_the_gate("A")
    play.unapprove("A")
    play.approve("A")
    assert play.queue == ["A"] and play.merging_names == ["A"]


def test_during_a_landing_the_server_decides() -> None:
    play = at_the_gate("A")
    play.passes("A")
    assert next(iter(play.landing.values())).work.approved, "the server is to hold the approval"
    play.unapprove("A")
    assert play.queue == ["A"]
    play.lands("A", error="its approval was withdrawn")
    assert play.ended == {"A": "FAILURE"} and "is not approved" in play.messages["A"]


def test_the_server_may_know_before_the_gate_does() -> None:
    play = at_the_gate("A")
    play.passes("A")
    play.lands("A", error="its approval was withdrawn")
    assert play.ended == {"A": "MERGE_FAILURE"} and "its approval was withdrawn" in play.messages["A"]


def test_a_change_enqueued_unapproved_by_hand_stays_and_lands_without_approval() -> None:
    play = Play()
    play.propose(play.change("A"))
    play.act(Enqueue(play.change("A"), "by-hand", unapproved=True))
    play.approve("A")
    play.unapprove("A")
    assert play.queue == ["A"]
    play.merges()
    play.passes("A")
    assert not next(iter(play.landing.values())).work.approved


def test_a_change_enqueued_by_hand_leaves_when_its_approval_is_withdrawn() -> None:
    play = Play()
    play.propose(play.change("A"))
    play.change_states["p/master/A"] = replace(play.change_states["p/master/A"], approved=play.change("A").commit)
    play.act(Enqueue(play.change("A"), "by-hand"))
    assert play.queue == ["A"]
    play.unapprove("A")
    assert play.queue == []


def test_in_check_a_change_that_loses_its_approval_stays_unless_the_pipeline_is_post_review() -> None:
    play = Play(manager="independent")
    play.pipeline = replace(play.pipeline, require={"git": {"approved": True}})
    play.propose(play.change("A"))
    play.approve("A")
    play.event(EventKind.PROPOSED, play.change("A"))
    assert play.queue == ["A"]
    play.unapprove("A")
    assert play.queue == ["A"], "nothing lands here, and nothing is revealed"
    play.pipeline = replace(play.pipeline, post_review=True)
    play.act()
    assert play.queue == [], "what only reviewed changes may see is taken from it"


@pytest.mark.parametrize("how", ["unapprove", "abandon", "replace"])
def test_a_change_that_needs_one_that_leaves_also_leaves_and_says_why(how: str) -> None:
    play = Play()
    play.propose(play.change("A"))
    play.propose(play.change("B", "A"))
    play.approve("A", "B")
    play.approve("C")
    play.merges()
    if how == "unapprove":
        play.unapprove("A")
    elif how == "abandon":
        play.abandon("A")
    else:
        play.propose(play.change("A", commit="2" * 40))
    why = {"unapprove": "p/master/A is not approved", "abandon": "p/master/A was withdrawn"}.get(how, "not approved")
    assert play.queue == ["C"] and play.ended["B"] == "FAILURE" and why in play.messages["B"]
    assert play.merging_names == ["C"]
    if how == "replace":
        play.approve("A")
        assert play.queue == ["C", "A", "B"], "and comes back with it"


def test_a_change_that_needs_a_failing_one_waits_until_the_failure_is_final() -> None:
    play = Play()
    play.propose(play.change("A"))
    play.propose(play.change("B", "A"))
    play.approve("X", "A", "B")
    play.merges()
    play.fails("A")
    assert play.queue == ["X", "A", "B"] and play.builds == [("X", "unit")]
    play.passes("X")
    play.lands("X")
    assert play.ended == {"X": "SUCCESS", "A": "FAILURE", "B": "FAILURE"}


# --- in check


def checked_on_another() -> Play:
    play = Play(manager="independent")
    play.propose(play.change("A"))
    play.propose(play.change("B", "A"))
    play.merges()
    play.passes("A")
    assert play.ended == {"A": "SUCCESS"} and play.beneath("B") == ["A"]
    return play


def test_in_check_a_change_is_tested_on_the_newest_patchset_of_the_change_that_it_needs() -> None:
    play = checked_on_another()
    play.propose(play.change("A", commit="2" * 40))
    assert ("B", "unit") not in play.builds, "the outdated one says nothing"
    play.merges()
    work = play.item("B").buildset
    assert work is not None and work.state is not None
    assert [item.commit for item in work.state.chain] == ["2" * 40, "B" * 40]
    play.passes("B")
    assert play.ended["B"] == "SUCCESS"


def stacked(play: Play, *, stale: bool = False) -> Change:
    """B is built on A, or on an earlier patchset of A."""
    keys = (play.change("A").key,)
    return replace(play.change("B", "A"), bases=keys, stale=keys if stale else ())


def test_a_change_built_on_an_earlier_patchset_leaves_the_gate_and_stays_out_until_it_is_rebased() -> None:
    play = Play()
    play.propose(play.change("A"))
    play.propose(stacked(play))
    play.approve("A", "B")
    play.merges()
    assert play.queue == ["A", "B"]
    play.propose(play.change("A", commit="2" * 40))
    play.propose(stacked(play, stale=True))
    assert play.queue == [] and play.ended["B"] == "FAILURE"
    play.approve("A")
    play.approve("B")
    assert play.queue == ["A"]
    assert (
        "p/master/B is built on an earlier patchset of p/master/A: rebase it, and propose it again"
        in play.messages["B"]
    )
    play.merges()
    play.passes("A")
    play.lands("A")
    play.approve("B")
    assert play.queue == [], "with it would land what was replaced"
    play.propose(replace(stacked(play), commit="3" * 40))
    play.approve("B")
    assert play.queue == ["B"]


def test_a_change_built_on_a_withdrawn_change_leaves_the_gate_and_stays_out() -> None:
    play = Play()
    play.propose(play.change("A"))
    play.propose(stacked(play))
    play.approve("A", "B")
    play.merges()
    play.abandon("A")
    assert play.queue == [] and play.ended["B"] == "FAILURE"
    play.approve("B")
    assert play.queue == []
    assert "Parent change: p/master/A: that change was abandoned" in play.messages["B"]


def test_a_change_on_an_outdated_base_is_reported() -> None:
    play = Play()
    play.propose(play.change("A"))
    play.propose(stacked(play, stale=True))
    play.propose(play.change("C", "B"))
    play.approve("A", "B", "C")
    assert play.queue == ["A"] and "p/master/B is built on an earlier patchset of p/master/A" in play.messages["C"]


def test_in_check_a_change_built_on_an_earlier_patchset_is_tested_on_the_newer_one() -> None:
    play = checked_on_another()
    play.propose(play.change("A", commit="2" * 40))
    play.propose(stacked(play, stale=True))
    play.merges()
    work = play.item("B").buildset
    assert work is not None and work.state is not None
    assert [item.commit for item in work.state.chain] == ["2" * 40, "B" * 40]


def test_in_check_the_newer_patchset_may_need_more_itself() -> None:
    play = checked_on_another()
    play.propose(play.change("C"))
    play.propose(play.change("A", "C", commit="2" * 40))
    play.merges("B")
    assert play.beneath("B") == ["C", "A"]


def test_in_check_a_needed_change_must_be_open_but_need_not_be_approved() -> None:
    play = checked_on_another()
    play.approve("A")
    play.unapprove("A")
    assert ("B", "unit") in play.builds
    play.abandon("A")
    assert play.queue == [] and play.ended["B"] == "FAILURE"
    assert "no longer tested: Depends-On: p/master/A: that change was abandoned" in play.messages["B"]


def test_in_check_a_needed_change_may_land_meanwhile() -> None:
    play = checked_on_another()
    play.pushes("A")
    assert ("B", "unit") in play.builds and play.merging == {}
    play.passes("B")
    assert play.ended["B"] == "SUCCESS"


def test_in_check_a_circular_dependency_is_reported() -> None:
    play = checked_on_another()
    play.propose(play.change("C", "B"))
    play.propose(play.change("A", "C", commit="2" * 40))
    assert play.ended["B"] == "FAILURE" and "forms a circle" in play.messages["B"]


# --- the branch


def test_a_change_that_somebody_pushed_to_its_branch_has_landed() -> None:
    play = at_the_gate("A", "B")
    play.pushes("A")
    assert play.ended == {"A": "DEQUEUED"} and "It has already landed" in play.messages["A"]
    assert play.queue == ["B"]
    play.act(Enqueue(play.change("A"), "again", unapproved=True))
    assert play.queue == ["B"], "there is nothing to land"


def test_a_branch_that_somebody_moves_immediately_resets_the_items_based_on_it() -> None:
    play = Play()
    play.heads = {"p": "h0"}
    play.propose(play.change("Q", project="q"))
    play.approve("Q", "A", "B")
    play.merges()
    play.passes("A")
    play.moves("h0", "h1")
    assert play.merging_names == ["A", "B"] and play.builds == [("Q", "unit")], "q did not move"
    play.heads = {"p": "h1"}
    play.merges()
    play.moves("h0", "h1")
    assert play.merging_names == [], "the same told twice is no news"


def test_landing_a_change_of_the_gate_resets_nobody() -> None:
    play = Play()
    play.heads = {"p": "h0"}
    play.approve("A", "B", "C")
    play.merges()
    a, ab = "A" * 40, "A" * 40 + "+" + "B" * 40
    play.passes("A")
    play.moves("h0", a)
    assert play.landing_names == ["A"] and play.merging_names == [], "it is being landed"
    play.lands("A")
    play.moves("h0", a)
    play.passes("B")
    play.lands("B")
    play.moves("h0", ab)
    assert play.merging_names == [] and play.builds == [("C", "unit")]


def test_a_push_on_top_of_our_landing_resets_the_items_based_on_it() -> None:
    play = Play()
    play.heads = {"p": "h0"}
    play.propose(play.change("Q", project="q"))
    play.approve("A", "Q", "B")
    play.merges()
    play.passes("A")
    play.lands("A")
    play.moves("A" * 40, "h1")
    assert play.builds == [("Q", "unit")] and play.merging_names == ["B"]


def test_a_merge_under_way_may_have_read_the_old_head() -> None:
    play = Play()
    play.approve("A")
    before = list(play.merging)
    play.moves("h0", "h1")
    assert play.merging_names == ["A"] and list(play.merging) != before


def test_a_need_that_becomes_known_later_counts() -> None:
    """Another change is proposed, which turns out to be an ancestor of this one."""
    play = at_the_gate("B", "C")
    play.propose(play.change("A"))
    b = play.change_states["p/master/B"]
    play.change_states["p/master/B"] = replace(b, change=replace(b.change, needs=("p/master/A",)))
    play.act()
    assert play.queue == ["C"] and "p/master/A is not approved" in play.messages["B"]
    play.approve("A")
    assert play.queue == ["C", "A", "B"]


@pytest.mark.parametrize("manager", ["independent", "dependent"])
def test_a_change_leaves_once_it_needs_one_outside_the_tenant(manager: str) -> None:
    play = Play(manager=manager)
    play.layout.outside = frozenset(["secret"])
    secret = play.change("S", project="secret")
    play.change_states[secret.key] = ChangeState(secret)
    play.propose(play.change("A"))
    if manager == "dependent":
        play.approve("A")
    play.merges()
    a = play.change_states["p/master/A"]
    play.change_states["p/master/A"] = replace(a, change=replace(a.change, needs=(secret.key,)))
    play.act()
    why = "Depends-On: secret/master/S: the tenant does not have its project, so it must land first"
    assert play.queue == [] and play.builds == [] and why in play.messages["A"]
