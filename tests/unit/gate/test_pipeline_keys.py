"""Test keys of pipelines apart from testing and landing."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from headgate.config.model import FrozenJob, TriggerFilter, Window
from headgate.gate.items.leave import grown, shrunk
from headgate.gate.state.change import EventKind
from headgate.gate.state.management import Dequeue
from headgate.gate.state.model import Queue
from headgate.testing.plays import Play


def play(manager: str = "dependent", **keys: Any) -> Play:
    made = Play(manager=manager)
    made.pipeline = replace(made.pipeline, **keys)
    return made


def reported(made: Play) -> list[tuple[str, str]]:
    return [(r.work.change.topic, r.work.note.splitlines()[0]) for r in made.reports]


def fail(made: Play, *names: str) -> None:
    for name in names:
        made.propose(made.change(name))
        made.merges(name)
        made.fails(name)


# --- who is told


def test_an_enqueued_change_is_reported_and_so_is_its_dequeue() -> None:
    made = play(
        enqueue_message="{pipeline.name} has you", dequeue_message="gone", reporters={k: ("git",) for k in KINDS}
    )
    made.approve("A")
    made.act(Dequeue(made._key("A")))
    assert reported(made) == [("A", "gate has you"), ("A", "gone")]


def test_a_change_without_an_enqueue_report_leaves_silently() -> None:
    made = play(reporters={"dequeue": ("git",)})
    made.approve("A")
    made.act(Dequeue(made._key("A")))
    assert (reported(made), made.ended) == ([], {"A": "DEQUEUED"})


def test_messages_of_the_pipeline_begin_the_report() -> None:
    made = play(
        "independent", failure_message="Alas.", footer_message="Ask us.", start_message="{pipeline.name} begins"
    )
    fail(made, "A")
    assert [note for _, note in reported(made)] == ["gate begins", "Alas."]
    assert made.messages["A"].splitlines()[-1] == "Ask us."


KINDS = ("success", "failure", "start", "enqueue", "dequeue")


# --- giving up


def test_after_too_many_failures_in_a_row_only_disabled_reporters_report() -> None:
    made = play("independent", disable_after=2, reporters={"failure": ("git",), "start": ("git",)})
    fail(made, "A", "B")
    assert made.state.disabled and [n for n, _ in reported(made)] == ["A", "A", "B", "B"]
    fail(made, "C")
    assert [n for n, _ in reported(made)] == ["A", "A", "B", "B"] and made.ended["C"] == "FAILURE"


def test_disabled_reporters_report() -> None:
    made = play("independent", disable_after=1, reporters={"disabled": ("git",)})
    fail(made, "A", "B")
    assert [n for n, _ in reported(made)] == ["B"]


def test_a_success_resets_the_count_of_failures() -> None:
    made = play("independent", disable_after=2)
    fail(made, "A")
    made.propose(made.change("B"))
    made.merges("B")
    made.passes("B")
    fail(made, "C")
    assert (made.state.failures, made.state.disabled) == (1, False)


# --- who comes in


def test_an_enqueued_change_leaves_the_pipelines_that_are_superseded() -> None:
    made = play(supercedes=("check", "gate"))
    made.approve("A")
    made.merges("A")
    assert made.superseded == [("check", made._key("A"))]


def test_changes_of_other_connections_stay_out_when_the_pipeline_says_so() -> None:
    made = play("independent", allow_other_connections=False, connections=("other",))
    made.propose(made.change("A"))
    assert made.queue == []


@pytest.mark.parametrize(
    ("require", "reject", "comes_in"),
    [
        ({"approved": True}, {}, False),
        ({"approved": False}, {}, True),
        ({"open": True, "current-patchset": True}, {}, True),
        ({"open": False}, {}, False),
        ({}, {"open": True}, False),
        ({}, {"approved": True}, True),
    ],
)
def test_requirements_decide_whether_a_change_enters(
    require: dict[str, bool], reject: dict[str, bool], comes_in: bool
) -> None:
    made = play("independent", require={"git": require}, reject={"git": reject})
    made.propose(made.change("A"))
    assert bool(made.queue) is comes_in


def test_requirements_of_other_connections_are_passed_over() -> None:
    made = play("independent", require={"other": {"approved": True}})
    made.propose(made.change("A"))
    assert made.queue == ["A"]


def test_a_change_with_too_many_dependencies_is_refused_with_a_report() -> None:
    made = play()
    made.most = (1, None)
    made.propose(made.change("A"))
    made.propose(made.change("B", "A"))
    made.propose(made.change("C", "B"))
    made.approve("A", "B")
    assert made.queue == ["A", "B"]
    made.approve("C")
    assert (made.queue, made.ended) == (["A", "B"], {"C": "FAILURE"})
    assert "it needs 2 changes; the tenant allows 1" in made.messages["C"]


def test_a_full_pipeline_refuses_and_says_so() -> None:
    made = play()
    made.most = (None, 2)
    made.approve("A", "B", "C")
    assert (made.queue, made.ended) == (["A", "B"], {"C": "FAILURE"})
    assert "is full: the tenant allows 2 changes" in made.messages["C"]


# --- managers


def test_serial_is_one_after_the_other_and_nothing_lands() -> None:
    made = play("serial")
    for name in ("A", "B"):
        made.propose(made.change(name))
    assert made.merging_names == ["A"]
    made.merges("A")
    made.passes("A")
    assert made.merging_names == ["B"] and made.ended == {"A": "SUCCESS"} and made.landing_names == []


def test_supercedent_keeps_the_first_and_the_last() -> None:
    made = play("supercedent")
    for name in ("A", "B", "C"):
        made.propose(made.change(name))
    assert (made.queue, made.ended) == (["A", "C"], {"B": "DEQUEUED"})
    made.merges("A")
    made.passes("A")
    assert made.merging_names == ["C"]


def test_every_update_of_a_branch_is_tested() -> None:
    made = play("independent", triggers=(TriggerFilter("git", ("ref-updated",)),))
    change = replace(made.change("A"), topic="", ref="refs/heads/master", old_commit="1" * 40)
    for commit in ("2" * 40, "3" * 40, "3" * 40):
        made.event(EventKind.REF_UPDATED, replace(change, commit=commit))
    assert [item.change.commit[0] for _, item in made.state.items()] == ["2", "3"]


# --- windows


@pytest.mark.parametrize(
    ("keys", "sizes"),
    [
        ({}, [20, 21, 22, 11, 5, 3, 3]),
        ({"ceiling": 21}, [20, 21, 21, 10, 5, 3, 3]),
        ({"increase_type": "exponential", "increase_factor": 2, "ceiling": 70}, [20, 40, 70, 35, 17, 8, 4]),
        ({"decrease_type": "linear", "decrease_factor": 6, "floor": 7}, [20, 21, 22, 16, 10, 7, 7]),
        ({"size": 0}, [0, 0, 0, 0, 0, 0, 0]),
    ],
)
def test_windows_grow_with_landings_and_shrink_with_failures(keys: dict[str, Any], sizes: list[int]) -> None:
    window = Window(**keys)
    queue, found = Queue(id="q", name="q", window=window.size), [window.size]
    for change in (grown, grown, shrunk, shrunk, shrunk, shrunk):
        queue = change(queue, window)
        found.append(queue.window)
    assert found == sizes


# --- jobs that others wait for


def test_those_behind_wait_for_a_job_that_delays_them() -> None:
    made = Play(FrozenJob(name="build", hold_following_changes=True), "unit")
    made.approve("A", "B", "C")
    made.merges()
    assert made.builds == [("A", "build"), ("A", "unit")]
    made.passes("A", "build")
    assert made.builds == [("A", "unit"), ("B", "build"), ("B", "unit")]
    made.passes("B", "build")
    assert ("C", "build") in made.builds


def test_a_failed_job_no_longer_delays_the_changes_behind() -> None:
    made = Play(FrozenJob(name="build", hold_following_changes=True))
    made.approve("A", "B")
    made.merges()
    made.fails("A", "build")
    made.merges("B")
    assert made.builds == [("B", "build")]


# --- jobs that report


TELL = FrozenJob(name="tell", type="reporter")


def test_reporter_jobs_run_when_the_change_has_landed_and_nobody_waits_for_them() -> None:
    made = Play("unit", TELL)
    made.approve("A", "B")
    made.merges()
    assert made.builds == [("A", "unit"), ("B", "unit")]
    made.passes("A", "unit")
    made.lands("A")
    assert made.ended == {"A": "SUCCESS"} and made.builds == [("B", "unit"), ("A", "tell")]
    made.passes("B", "unit")
    made.lands("B")
    made.fails("A", "tell")
    assert made.ended == {"A": "FAILURE", "B": "SUCCESS"} and made.landing_names == []
    made.passes("B", "tell")
    assert made.state.queues == () or not made.queue


def test_reporter_jobs_of_a_change_that_needs_another() -> None:
    made = Play("unit", TELL, manager="independent")
    made.propose(made.change("A"))
    made.propose(made.change("B", "A"))
    made.merges("B")
    made.passes("B", "unit")
    before = len(made.reports)
    assert made.builds == [("B", "tell")]
    made.passes("B", "tell")
    assert made.ended["B"] == "SUCCESS" and len(made.reports) == before


def test_nothing_is_reported_by_a_job_when_the_change_failed() -> None:
    made = Play("unit", TELL)
    made.approve("A")
    made.merges("A")
    made.fails("A")
    assert made.builds == [] and made.queue == []


# --- configuration of others


def test_a_change_that_needs_one_with_invalid_configuration_runs_nothing_and_says_why() -> None:
    made = play("independent")
    made.texts = {"p": "broken"}
    made.propose(made.change("A", files=("zuul.yaml",)))
    made.propose(made.change("B", "A"))
    made.merges("B")
    assert made.ended == {"B": "CONFIG_ERROR"} and made.builds == []
    assert "it is broken; this change depends on a change with invalid configuration" in made.messages["B"]


def test_changes_behind_one_with_invalid_configuration_continue_without_it() -> None:
    made = play()
    made.texts = {"p": "broken"}
    made.propose(made.change("A", files=("zuul.yaml",)))
    made.approve("A", "B")
    made.merges("A")
    made.texts = {}
    made.merges("B")
    assert made.ended == {"A": "CONFIG_ERROR"} and made.builds == [("B", "unit")]
