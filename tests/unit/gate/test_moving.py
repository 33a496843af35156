"""Test a renamed queue, and projects that move to another queue: waiting changes move and keep their order."""

from __future__ import annotations

from msgspec.structs import replace

from headgate.config.model import FrozenJob
from headgate.gate.state.management import LayoutChanged
from headgate.testing.layouts import PlayLayout
from headgate.testing.plays import Play


def play_of(queues: dict[str, str], window: int = 20, manager: str = "dependent") -> Play:
    layout = PlayLayout((FrozenJob(name="unit"),), queues=queues)
    return Play(layout=layout, window=window, manager=manager)


def at(play: Play, **projects: str) -> None:
    """Approve each topic, on its project."""
    for name, project in projects.items():
        play.propose(play.change(name, project=project))
        play.approve(name)


def relaid(play: Play, queues: dict[str, str]) -> None:
    play.layout.queues = queues
    play.act(LayoutChanged("another"))


def queues(play: Play) -> dict[str, list[str]]:
    return {queue.name: [item.change.topic for item in queue.items] for queue in play.state.queues}


def test_a_renamed_queue_keeps_its_order_and_its_builds() -> None:
    play = play_of({"p": "one"})
    at(play, A="p", B="p", C="p")
    play.merges()
    play.passes("B")
    builds, before = play.builds, [item.buildset for _, item in play.state.items()]
    relaid(play, {"p": "two"})
    assert queues(play) == {"two": ["A", "B", "C"]} and play.actions == ()
    assert [item.buildset for _, item in play.state.items()] == before and play.builds == builds
    for name in "AC":
        play.passes(name)
    for name in "ABC":
        play.lands(name)
    assert play.ended == dict.fromkeys("ABC", "SUCCESS")


def test_a_later_change_is_enqueued_behind_those_that_moved() -> None:
    play = play_of({"p": "one"})
    at(play, A="p")
    play.merges()
    relaid(play, {"p": "two"})
    at(play, B="p")
    play.merges()
    assert queues(play) == {"two": ["A", "B"]} and play.beneath("B") == ["A"]


def test_landed_changes_of_a_queue_stay_known_when_its_projects_move() -> None:
    """The change behind rests on it, and restarts nothing."""
    play = play_of({"p": "one"})
    at(play, A="p", B="p")
    play.merges()
    play.passes("A")
    play.lands("A")
    relaid(play, {"p": "two"})
    assert queues(play) == {"two": ["B"]} and play.builds == [("B", "unit")] and play.actions == ()


def test_a_renamed_queue_keeps_its_window() -> None:
    play = play_of({"p": "one"}, window=3)
    at(play, A="p", B="p")
    play.merges()
    play.passes("A")
    play.lands("A")
    relaid(play, {"p": "two"})
    assert play.state.queues[0].window == 4


def test_a_project_that_moves_takes_its_changes_along() -> None:
    play = play_of({"p": "one", "q": "one", "r": "other"})
    at(play, A="p", B="q", C="p", D="q", E="r")
    play.merges()
    relaid(play, {"p": "one", "q": "other", "r": "other"})
    assert queues(play) == {"one": ["A", "C"], "other": ["E", "B", "D"]}
    assert play.builds == [("A", "unit"), ("E", "unit")], "the others were tested on something else"
    play.merges()
    assert play.beneath("C") == ["A"] and play.beneath("B") == ["E"] and play.beneath("D") == ["E", "B"]


def test_a_queue_that_is_split_keeps_the_builds_of_both_heads_where_they_tested_the_same() -> None:
    play = play_of({"p": "one", "q": "one"})
    at(play, A="p", B="p", C="q")
    play.merges()
    relaid(play, {"p": "one", "q": "two"})
    assert queues(play) == {"one": ["A", "B"], "two": ["C"]}
    assert play.builds == [("A", "unit"), ("B", "unit")]
    play.merges()
    assert play.beneath("C") == []


def test_a_change_that_moves_to_another_queue_does_not_overtake_one_that_is_landing() -> None:
    play = play_of({"p": "one", "q": "two"})
    at(play, A="p", B="p", C="q")
    play.merges()
    play.passes("C")
    relaid(play, {"p": "one", "q": "one"})
    assert queues(play) == {"one": ["C", "A", "B"]} and play.landing_names == ["C"]
    play.lands("C")
    play.merges()
    for name in "AB":
        play.passes(name)
        play.lands(name)
    assert play.ended == dict.fromkeys("ABC", "SUCCESS")


def test_a_change_moved_away_from_one_that_it_needs_is_enqueued_again_once_that_has_landed() -> None:
    play = play_of({"p": "one", "q": "one"})
    play.propose(play.change("A"))
    play.propose(play.change("B", "A", project="q"))
    play.approve("A", "B")
    play.merges()
    relaid(play, {"p": "one", "q": "two"})
    assert play.queue == ["A"] and play.ended == {"B": "FAILURE"} and "is not ahead" in play.messages["B"]
    play.passes("A")
    play.lands("A")
    assert play.queue == ["B"] and queues(play)["two"] == ["B"]


def test_changes_that_go_together_do_not_stay_where_they_have_two_queues() -> None:
    play = play_of({"p": "one", "q": "one"})
    play.layout.circles = True
    a, b = play.change("A"), play.change("B", project="q")
    play.propose(replace(a, needs=(b.key,)))
    play.propose(replace(b, needs=(a.key,)))
    play.approve("A", "B")
    play.merges()
    relaid(play, {"p": "one", "q": "two"})
    assert play.queue == [] and play.builds == [] and set(play.ended.values()) == {"FAILURE"}
    assert "different queues now: two, one" in play.messages["A"]


def test_changes_of_a_serial_pipeline_also_move_to_the_new_queue() -> None:
    play = play_of({"p": "one"}, manager="serial")
    for name in "ABC":
        play.propose(play.change(name))
    play.merges()
    relaid(play, {"p": "two"})
    assert queues(play) == {"two": ["A", "B", "C"]} and play.builds == [("A", "unit")] and play.actions == ()


def test_a_project_that_takes_no_part_any_more_while_its_change_is_being_landed() -> None:
    play = play_of({"p": "one"})
    at(play, A="p")
    play.merges()
    play.passes("A")
    play.layout.absent = frozenset("p")
    play.act(LayoutChanged("another"))
    assert play.queue == ["A"], "the answer decides"
    play.lands("A")
    assert play.ended == {"A": "SUCCESS"}
