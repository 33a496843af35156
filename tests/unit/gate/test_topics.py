"""Test changes of one topic, if their queue makes them need each other."""

from __future__ import annotations

from msgspec.structs import replace

from headgate.config.forges.facts import Details
from headgate.config.model import FrozenJob
from headgate.gate.rules.needs import MEMBERS_MAX, ByTopic, DependantsByTopic
from headgate.gate.state.change import ChangeState
from headgate.testing.layouts import PlayLayout
from headgate.testing.plays import Play

UNIT = FrozenJob(name="unit")


def play_of(topics: dict[str, str], *, says: bool = True, together: bool = False, circles: bool = True) -> Play:
    """Propose changes of project p, each with its topic, without approvals."""
    play = Play(layout=PlayLayout((UNIT,), circles=circles, topics=says))
    for name, topic in topics.items():
        play.propose(play.change(name))
        named(play, name, topic, together=together)
    return play


def named(play: Play, name: str, topic: str, *, together: bool = False) -> None:
    key = play.change(name).key
    play.change_states[key] = replace(play.change_states[key], details=Details(topic=topic, together=together))


def test_changes_of_a_topic_are_enqueued_once_all_are_approved() -> None:
    play = play_of({"A": "trip", "B": "trip", "C": ""})
    play.approve("A")
    assert play.queue == [] and "p/master/B is not approved" in play.messages["A"]
    play.approve("C")
    assert play.queue == ["C"]
    play.approve("B")
    assert play.queue == ["C", "B+A"]


def test_changes_of_a_topic_land_together_or_not_at_all() -> None:
    play = play_of({"A": "trip", "B": "trip"})
    play.approve("A", "B")
    play.merges()
    play.fails(play.builds[0][0])
    for name, job in list(play.builds):
        play.ends(name, job, "SUCCESS")
    assert play.landing_names == [] and play.queue == []
    assert set(play.ended.values()) == {"FAILURE"}


def test_where_the_queue_does_not_say_so_a_topic_is_a_word() -> None:
    play = play_of({"A": "trip", "B": "trip"}, says=False)
    play.approve("A")
    assert play.queue == ["A"]


def test_changes_of_a_topic_that_the_forge_merges_together_stay_together_whatever_the_queue_says() -> None:
    play = play_of({"A": "trip", "B": "trip"}, says=False, together=True)
    play.approve("A")
    assert play.queue == []
    play.approve("B")
    assert play.queue == ["B+A"]
    refused = play_of({"A": "trip", "B": "trip"}, says=False, together=True, circles=False)
    refused.approve("A", "B")
    assert refused.queue == [] and "allow-circular-dependencies" in refused.messages["B"]


def test_a_change_that_joins_the_topic_later_delays_the_others() -> None:
    play = play_of({"A": "trip", "B": ""})
    play.approve("A")
    assert play.queue == ["A"]
    named(play, "B", "trip")
    play.act()
    assert play.queue == [] and "p/master/B" in play.messages["A"]


def test_refusing_a_very_large_topic_is_cheap() -> None:
    change = Play(layout=PlayLayout((UNIT,))).change("A")
    known = {
        f"p#{n}": ChangeState(replace(change, topic="", number=str(n)), details=Details(topic="flood"))
        for n in range(2_000)
    }
    topics = {(change.connection, "flood"): list(known)}
    seen = ByTopic(known, topics, PlayLayout((UNIT,), topics=True))
    assert len(seen["p#7"].change.needs) == MEMBERS_MAX and "p#7" not in seen["p#7"].change.needs
    assert seen["p#7"] is seen["p#7"] and len(seen) == 2_000
    behind = DependantsByTopic({"p#7": {"q#1"}}, known, topics)
    assert {"q#1", "p#8"} <= set(behind["p#7"]) and "p#7" not in behind["p#7"] and behind["nobody"] == set()


def test_a_topic_binds_no_changes_of_projects_outside_the_tenant() -> None:
    play = play_of({"A": "trip"})
    play.layout.outside = frozenset(["secret"])
    foreign = play.change("B", project="secret")
    play.propose(foreign)
    play.change_states[foreign.key] = replace(play.change_states[foreign.key], details=Details(topic="trip"))
    play.approve("A")
    assert play.queue == ["A"] and play.messages == {}
