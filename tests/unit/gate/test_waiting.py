"""Test the reason of a wait for a job that was not requested yet."""

from __future__ import annotations

from headgate.config.model import FrozenJob, JobDependency, JobSemaphore
from headgate.gate.builds.graph import holding, waiting_for
from headgate.testing.layouts import PlayLayout
from headgate.testing.plays import Play


def waits(play: Play, name: str, job: str, *ahead: str) -> str:
    buildset = play.item(name).buildset
    assert buildset is not None and job not in buildset.builds, "it was asked for"
    held = holding(play.item(one) for one in ahead)
    return waiting_for(next(j for j in buildset.jobs if j.name == job), buildset, held=held)


def test_the_reason_of_a_wait_names_the_jobs_before() -> None:
    play = Play("unit", FrozenJob(name="after", dependencies=(JobDependency("unit"),), requires=("images",)))
    play.approve("A")
    play.merges()
    assert waits(play, "A", "after") == "dependencies: unit"


def test_semaphores_that_have_no_place() -> None:
    job = FrozenJob(name="unit", semaphores=(JobSemaphore("one"), JobSemaphore("late", resources_first=True)))
    play = Play(layout=PlayLayout((job,), limits={"one": 1, "late": 1}))
    play.held = {"one": 1}
    play.approve("A")
    play.merges()
    assert waits(play, "A", "unit") == "semaphores: one"


def test_a_job_waits_for_artifacts_that_changes_ahead_provide() -> None:
    play = Play(FrozenJob(name="image", provides=("images",)), FrozenJob(name="deploy", requires=("images",)))
    play.approve("A", "B")
    play.merges()
    assert waits(play, "B", "deploy", "A") == "requirements: images"


def test_a_job_ahead_that_delays_those_behind() -> None:
    play = Play(FrozenJob(name="first", hold_following_changes=True))
    play.approve("A", "B")
    play.merges()
    assert waits(play, "B", "first", "A") == "a job of a change ahead (hold-following-changes)"
