"""Test approvals of several people: whose approval counts, and when."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from headgate.config.forges.facts import Word
from headgate.config.forges.git import counted, lacking
from headgate.gate.builds.report import credit
from headgate.gate.state.change import Change, ChangeState
from headgate.gate.state.management import Enqueue
from headgate.testing.plays import Play

HOUR_MS = 3_600_000


def play_of(**approvals: Any) -> Play:  # of the requirement, JSON
    """Play a gate that requires named approvals, and respects vetoes."""
    play = Play()
    wanted = {name.replace("_", "-"): value for name, value in approvals.items()}
    require = {"git": {"approvals": wanted, "veto": False}}
    play.pipeline = replace(play.pipeline, require_approved=(), require=require)
    return play


def test_two_people_are_more_than_one() -> None:
    play = play_of(count=2)
    play.says("A", "grace")
    assert play.queue == []
    play.says("A", "grace")
    assert play.queue == [], "once more is not once again"
    play.says("A", "heinz")
    assert play.queue == ["A"]
    play.merges()
    play.passes("A")
    (landing,) = play.landing.values()
    assert landing.work.leases == ("refs/approvals/grace/master/A", "refs/approvals/heinz/master/A")
    assert not landing.work.approved and landing.work.vetoed


@pytest.mark.parametrize("twin", ["Grace", "GRACE", "ｇｒａｃｅ", "graCe"])
def test_one_person_under_two_names_counts_once(twin: str) -> None:
    play = play_of(count=2)
    play.says("A", "grace", twin)
    assert play.queue == []
    play.says("A", "heinz")
    assert play.queue == ["A"]


def test_an_approval_of_an_old_patchset_does_not_count() -> None:
    play = play_of(count=1)
    play.says("A", "grace", commit="2" * 40)
    assert play.queue == []
    play.says("A", "grace")
    assert play.queue == ["A"]
    play.propose(play.change("A", commit="3" * 40))
    assert play.queue == []


def test_an_approval_that_is_withdrawn_at_any_time_no_longer_counts() -> None:
    play = play_of(count=2)
    play.says("A", "grace", "heinz")
    play.merges()
    play.unsays("A", "heinz")
    assert play.queue == [] and play.builds == []
    assert "needs 2 approvals, and has 1 (grace)" in play.messages["A"]
    play.says("A", "ada")
    play.merges()
    play.passes("A")
    assert play.landing_names == ["A"]
    play.unsays("A", "ada")
    play.lands("A", error="its approval was withdrawn: refs/approvals/ada/master/A is not AAAAAAAA any more")
    assert play.ended["A"] == "FAILURE" or play.ended["A"] == "MERGE_FAILURE"
    assert "A" not in play.queue


@pytest.mark.parametrize("of", [["Grace"], "grace", ["tony", "GRACE"]])
def test_only_approvals_of_the_named_people_count(of: Any) -> None:
    play = play_of(count=1, of=of)
    play.says("A", "heinz")
    assert play.queue == []
    play.says("A", "grace")
    assert play.queue == ["A"]


def test_authors_and_proposers_cannot_approve_their_own_change() -> None:
    play = play_of(count=1, not_author=True)
    change = replace(play.change("A"), owner="Ada Lovelace <Countess@Example.org>")
    play.propose(change)
    change_state = play.change_states[change.key] = replace(play.change_states[change.key], proposers=("ada",))
    for who in ("ada", "ADA", "countess", "countess@example.org", "ada lovelace"):
        play.says("A", who)
        assert play.queue == [], who
    play.says("A", "grace")
    assert play.queue == ["A"]
    assert change_state.proposers == ("ada",)


def test_a_gate_that_excludes_proposers_requires_a_record_of_the_proposer() -> None:
    play = play_of(count=1, not_author=True)
    play.says("A", "grace")
    change = play.change_states["p/master/A"].change
    play.act(Enqueue(change, "hand"))
    assert play.queue == []
    assert "the server did not record who proposed this patchset" in lacking(
        play.change_states["p/master/A"], {"not-author": True}
    )


def test_an_approval_that_is_too_old_lets_nobody_in_and_throws_nobody_out() -> None:
    play = play_of(count=1, newer_than="1h")
    play.says("A", "grace", since_ms=0)
    assert play.queue == ["A"]
    play.merges()
    play._clock += 2 * HOUR_MS
    play.act()
    assert play.queue == ["A"], "it was new when it came in"
    play.says("B", "grace", since_ms=1)
    assert play.queue == ["A"]


def test_a_veto_keeps_out_and_takes_out_whoever_approves() -> None:
    play = play_of(count=1)
    play.says("A", "grace")
    play.merges()
    play.says("A", "heinz", veto=True)
    assert play.queue == [] and "p/master/A is vetoed by heinz" in play.messages["A"]
    play.says("A", "ada")
    assert play.queue == []
    play.unsays("A", "heinz")
    play.says("A", "tony")
    assert play.queue == ["A"]


def test_a_change_that_is_let_in_unapproved_by_hand_needs_no_approval_to_land() -> None:
    play = play_of(count=2)
    play.propose(play.change("A"))
    play.act(Enqueue(play.change_states["p/master/A"].change, "hand", unapproved=True))
    play.merges()
    play.passes("A")
    (landing,) = play.landing.values()
    assert landing.work.leases == () and not landing.work.vetoed


def test_notes_name_the_proposers_and_the_approvers() -> None:
    play = play_of(count=2)
    play.says("A", "grace", "heinz")
    key = "p/master/A"
    play.change_states[key] = replace(play.change_states[key], proposers=("ada",))
    play.merges()
    play.passes("A")
    (landing,) = play.landing.values()
    assert "\n\nProposed by ada; approved by grace, heinz.\n\n- unit" in landing.work.note


def test_reports_name_the_people_who_proposed_and_approved() -> None:
    change = Change("git", "p", "master", "A", "1" * 40)
    words = tuple(Word(who, commit, f"r/{who}") for who, commit in (("heinz", "1" * 40), ("ada", "2" * 40)))
    change_state = ChangeState(change, approvals=words, proposers=("grace",))
    assert credit(change_state) == "Proposed by grace; approved by heinz."
    assert credit(ChangeState(change)) == ""
    assert [word.who for word in counted(change_state, {})] == ["heinz"]
    text = lacking(change_state, {"count": 2, "of": ["x", "heinz"], "newer-than": "2d"})
    assert text == "p/master/A needs 2 approvals of x, heinz, not older than 2d, and has 1 (heinz)"
