"""Test changes that a forge merges when they land, each with a separate request."""

from __future__ import annotations

from msgspec.structs import replace

from headgate.config.model import FrozenJob, TriggerFilter
from headgate.gate.items.landings import landed
from headgate.gate.state.change import Change, EventKind
from headgate.gate.state.management import Dequeue
from headgate.gate.state.works import LandAnswer
from headgate.testing.layouts import PlayLayout
from headgate.testing.plays import Play

MADE = "f" * 40
"""Return the commit that a forge makes."""


def gate(*, circles: bool = False) -> Play:
    play = Play(layout=PlayLayout((FrozenJob(name="unit"),), circles=circles))
    triggers = tuple(TriggerFilter(name, ("change-approved",)) for name in ("hub", "git"))
    play.pipeline = replace(play.pipeline, triggers=triggers, require_approved=(), lands=("hub", "git"))
    play.merging_there = frozenset({"hub"})
    play.heads = {"p": "0" * 40}
    return play


def pull(play: Play, name: str, *needs: str, project: str = "p") -> Change:
    change = play.change(name, project=project)
    number = str(ord(name))
    change = replace(change, connection="hub", number=number, ref=f"refs/pull/{number}/head", needs=tuple(needs))
    play.propose(change)
    return change


def moved(play: Play, before: str, after: str) -> None:
    """The forge reports that the branch has moved."""
    update = Change("hub", "p", "master", commit=after, old_commit=before, ref="refs/heads/master")
    play.event(EventKind.REF_UPDATED, update)


def after_jobs_of(*names: str) -> Play:
    """All jobs of the first have passed, and its merge is requested."""
    play = gate()
    for name in names:
        pull(play, name)
        play.approve(name)
    play.merges()
    play.passes(names[0])
    assert play.landing_names == [names[0]]
    return play


def test_the_commit_that_the_forge_makes_is_known_for_ours_before_and_after_the_answer() -> None:
    play = after_jobs_of("A", "B")
    moved(play, "0" * 40, MADE)
    assert play.builds == [("B", "unit")], "whether it was the forge that moved it, its answer says"
    play.lands("A", commit=MADE)
    moved(play, "0" * 40, MADE)
    assert play.builds == [("B", "unit")] and play.ended == {"A": "SUCCESS"}
    play.passes("B")
    assert next(iter(play.landing.values())).work.after[-1] == MADE, "the head that B may land on"


def test_a_push_past_the_gate_does_not_count_as_our_landing() -> None:
    play = gate()
    for name in ("A", "B"):
        pull(play, name)
        play.approve(name)
    play.merges()
    moved(play, "0" * 40, "9" * 40)
    assert play.builds == [] and play.merging_names == ["A", "B"]


def test_landing_with_a_different_tree_raises_an_alarm_and_retests_the_changes_behind() -> None:
    play = after_jobs_of("A", "B")
    play.passes("B")
    play.lands("A", commit=MADE, differs=True)
    assert play.ended == {"A": "SUCCESS"}, "it has landed, whatever as"
    note = next(report.work.note for report in play.reports if report.work.note.startswith("ALARM"))
    assert f"p#65 has landed as {MADE}" in note and "does not have the tree that was tested" in note
    assert play.landing_names == [] and play.merging_names == ["B"]
    (alarm,) = play.state.strayed
    assert (alarm.key, alarm.commit, alarm.branch) == ("p#65", MADE, "master")
    play.merges()
    assert play.state.strayed == (alarm,), "it stands, whatever happens to the others"
    play.act(Dequeue("p#66", "somebody says so"))
    assert play.state.strayed == (alarm,), "it is another change"
    play.act(Dequeue("p#65", "somebody says so"))
    assert play.state.strayed == ()


def test_a_change_that_the_forge_refuses_leaves_with_the_message_of_the_forge() -> None:
    play = after_jobs_of("A", "B")
    play.lands("A", error="a review by a code owner is missing")
    assert play.ended == {"A": "MERGE_FAILURE"} and "code owner is missing" in play.messages["A"]
    assert play.merging_names == ["B"], "B was tested on it"


def test_a_change_whose_branch_has_moved_is_tested_again() -> None:
    play = after_jobs_of("A")
    play.lands("A", moved=True)
    assert play.merging_names == ["A"] and play.ended == {}


def circle() -> Play:
    """A and B need each other, in one project of a forge."""
    play = gate(circles=True)
    pull(play, "A", "p#66")
    pull(play, "B", "p#65")
    passed(play)
    return play


def passed(play: Play) -> None:
    """Answer every request except the landing."""
    play.approve("A", "B")
    play.merges()
    for name, job in play.builds:
        play.ends(name, job, "SUCCESS")


def test_of_changes_that_need_each_other_each_is_merged_by_itself() -> None:
    play = circle()
    assert play.landing_names == ["A"]
    first = next(iter(play.landing.values())).work
    assert not first.others and [one.change.topic for one in first.later] == ["B"]
    play.lands("A", commit=MADE)
    assert play.landing_names == ["B"] and play.ended == {}
    play.lands("B", commit="e" * 40)
    assert play.ended == {"A": "SUCCESS", "B": "SUCCESS"}


def test_the_answer_to_a_step_that_is_known_changes_nothing() -> None:
    play = circle()
    again = next(iter(play.landing.values())).work
    play.lands("A", commit=MADE)
    queue, item = next(play.state.items())
    answer = LandAnswer(again.buildset, True, project="p", change="p#65", commit=MADE)
    assert landed(queue, item, answer, play.world, []) is queue


def test_a_part_that_is_refused_is_an_alarm() -> None:
    play = circle()
    play.lands("A", commit=MADE)
    play.lands("B", error="it conflicts")
    assert (
        "ALARM: changes that depend on each other have landed only in part" in play.messages["B"]
        and f"p#65 has landed as {MADE}" in play.messages["B"]
    )


def test_a_change_of_plain_git_lands_in_a_queue_with_one_that_a_forge_merges() -> None:
    play = gate(circles=True)
    pull(play, "A", "q/master/B")
    play.propose(replace(play.change("B", project="q"), needs=("p#65",)))
    passed(play)
    first = play.landing_names[0]
    play.lands(first, commit=MADE if first == "A" else "")
    (second,) = play.landing_names
    assert {first, second} == {"A", "B"}
    play.lands(second, commit=MADE if second == "A" else "")
    assert play.ended == {"A": "SUCCESS", "B": "SUCCESS"}
