"""Test builds that are known to fail while they still run."""

from __future__ import annotations

from headgate.config.model import FrozenJob, JobDependency
from headgate.testing.layouts import PlayLayout
from headgate.testing.plays import Play


def test_changes_behind_restart_immediately_and_the_report_follows_when_all_jobs_have_ended() -> None:
    play = Play("unit", "docs")
    play.approve("A", "B")
    play.merges()
    assert play.beneath("B") == ["A"]
    play.begins_to_fail("A")
    play.merges("B")
    assert play.beneath("B") == [] and play.item("A").failing and "A" not in play.ended
    play.passes("A", "docs")
    assert "A" not in play.ended, "its job is to say how it failed"
    play.fails("A")
    assert play.ended == {"A": "FAILURE"}


def test_a_build_that_began_to_fail_fails_even_if_its_executor_reports_success() -> None:
    play = Play()
    play.approve("A")
    play.merges()
    play.begins_to_fail("A")
    play.passes("A")
    assert play.ended == {"A": "FAILURE"} and play.landing_names == []


def test_a_job_without_a_vote_fails_by_itself() -> None:
    play = Play("unit", FrozenJob(name="lint", voting=False))
    play.approve("A", "B")
    play.merges()
    play.begins_to_fail("A", "lint")
    assert not play.item("A").failing and play.beneath("B") == ["A"]
    play.fails("A", "lint")
    play.passes("A", "unit")
    assert play.landing_names == ["A"]


def test_dependent_jobs_wait_until_a_failing_build_has_ended() -> None:
    play = Play("unit", FrozenJob(name="after", dependencies=(JobDependency("unit"),)))
    play.approve("A")
    play.merges()
    play.begins_to_fail("A")
    assert play.builds == [("A", "unit")]
    play.fails("A")
    assert "Skipped due to failed job unit" in play.messages["A"]


def test_with_fail_fast_other_builds_are_cancelled_and_the_failing_one_continues() -> None:
    play = Play(layout=PlayLayout((FrozenJob(name="unit"), FrozenJob(name="docs")), fail_fast=True))
    play.approve("A")
    play.merges()
    play.begins_to_fail("A")
    assert play.builds == [("A", "unit")]
    play.fails("A")
    assert "- unit http://h/t/t/build/" in play.messages["A"] and "- docs : CANCELED" in play.messages["A"]


def test_a_failing_build_of_a_lost_executor_is_tried_again_from_the_beginning() -> None:
    play = Play()
    play.approve("A")
    play.merges()
    play.begins_to_fail("A")
    play.ends("A", "unit", None)
    assert not play.item("A").failing and play.running_spec("A", "unit").attempt == 2


def test_a_late_message_of_an_ended_build_changes_nothing() -> None:
    play = Play("unit", "docs")
    play.approve("A")
    play.merges()
    run = next(run for run in play.running.values() if run.spec.job.name == "unit")
    play.passes("A", "unit")
    play.running[run.id] = run
    play.begins_to_fail("A")
    assert not play.item("A").failing
