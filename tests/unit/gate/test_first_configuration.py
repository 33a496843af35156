"""Test that a project without a role in the pipeline is admitted with a change of its configuration, which may give
it one."""

from __future__ import annotations

from msgspec.structs import replace

from headgate.config.model import FrozenJob
from headgate.gate.state.management import Enqueue, LayoutChanged
from headgate.testing.layouts import PlayLayout
from headgate.testing.plays import Play


def absent(manager: str = "dependent", text: str = "first") -> Play:
    layout = PlayLayout((FrozenJob(name="unit"),), absent=frozenset({"p"}))
    play = Play(manager=manager, layout=layout)
    play.texts = {"p": text}
    return play


def test_a_change_with_the_first_configuration_is_checked_with_its_own_jobs() -> None:
    play = absent("independent")
    play.propose(play.change("A", files=("zuul.yaml",)))
    play.merges()
    assert play.builds == [("A", "first")]
    play.act(LayoutChanged("another"))
    assert play.queue == ["A"], "it stays although its project takes no part yet"
    play.passes("A")
    assert play.ended == {"A": "SUCCESS"} and play.reports[-1].work.note.startswith("Build succeeded")


def test_a_change_that_adds_the_first_configuration_lands() -> None:
    play = absent()
    play.propose(play.change("A", files=("zuul.yaml",)))
    play.approve("A")
    play.merges()
    play.passes("A")
    play.lands("A")
    assert play.ended == {"A": "SUCCESS"} and play.state.queues == ()


def test_a_change_whose_configuration_adds_no_jobs_leaves_without_a_report() -> None:
    play = absent(text="elsewhere")
    play.approve("B")
    assert play.queue == [], "what does not touch the configuration is not let in"
    play.propose(play.change("A", files=("zuul.yaml",)))
    reporters = {kind: names for kind, names in play.pipeline.reporters.items() if kind != "no-jobs"} | {
        "enqueue": ("git",)
    }
    play.pipeline = replace(play.pipeline, supercedes=("check",), reporters=reporters)
    play.approve("A")
    play.merges()
    assert play.ended == {"A": "NO_JOBS"} and play.reports == [] and play.superseded == []


def test_a_change_that_removes_its_project_from_the_gate_is_reported_without_jobs() -> None:
    play = Play()
    play.texts = {"p": "elsewhere"}
    play.propose(play.change("A", files=("zuul.yaml",)))
    play.approve("A")
    play.merges()
    assert play.ended == {"A": "NO_JOBS"} and len(play.reports) == 1


def test_a_change_with_the_first_configuration_can_be_enqueued_by_hand() -> None:
    play = absent("independent")
    change = play.change("A", files=("zuul.yaml",))
    play.propose(change)
    play.merges()
    play.fails("A", "first")
    play.act(Enqueue(change, "hand"))
    assert play.queue == ["A"]


def test_other_changes_of_the_shared_queue_do_not_wait_for_the_first_configuration() -> None:
    play = absent()
    play.propose(play.change("X", project="q"))
    play.approve("X")
    play.propose(play.change("A", files=("zuul.yaml",)))
    play.approve("A")
    assert [[item.change.topic for item in queue.items] for queue in play.state.queues] == [["X"], ["A"]]
