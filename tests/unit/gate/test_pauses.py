"""Test jobs that, after they have run, wait for the jobs that depend on them."""

from __future__ import annotations

from headgate.config.model import FrozenJob, JobDependency
from headgate.gate.state.returns import Sealed
from headgate.gate.state.works import BuildEnded, BuildOutcome, BuildPaused
from headgate.testing.plays import Play

USES = FrozenJob(name="uses", dependencies=(JobDependency("serves"),))
AFTER = FrozenJob(name="after", dependencies=(JobDependency("uses"),))
OTHER = FrozenJob(name="other", dependencies=(JobDependency("serves"),))


def served(*jobs: FrozenJob) -> Play:
    """Approve and merge A; its first job runs."""
    play = Play(FrozenJob(name="serves", attempts_max=2), *jobs)
    play.approve("A")
    play.merges()
    assert play.builds == [("A", "serves")]
    return play


def test_dependents_of_a_paused_build_start_and_it_resumes_when_all_have_ended() -> None:
    play = served(USES, AFTER)
    play.pauses("A", "serves", registry="http://here")
    assert play.builds == [("A", "serves"), ("A", "uses")] and play.resumed == []
    assert play.running_spec("A", "uses").parent_data == {"registry": "http://here"}
    play.passes("A", "uses")
    assert play.resumed == [], "what depends on it through others may need it still"
    play.passes("A", "after")
    assert play.resumed == ["serves"] and play.landing_names == []
    play.passes("A", "serves")
    assert play.landing_names == ["A"]


def test_a_paused_build_also_resumes_when_another_job_fails() -> None:
    play = served(USES, AFTER)
    play.pauses("A", "serves")
    play.fails("A", "uses")
    assert play.resumed == ["serves"], "what comes after is skipped"
    play.passes("A", "serves")
    assert play.ended == {"A": "FAILURE"}


def test_a_paused_build_without_dependents_resumes_immediately() -> None:
    play = served()
    play.pauses("A", "serves")
    assert play.resumed == ["serves"]


def test_a_paused_build_says_which_of_them_run() -> None:
    play = served(USES, AFTER, OTHER)
    play.pauses("A", "serves", zuul={"child_jobs": ["other"]})
    assert play.builds == [("A", "serves"), ("A", "other")]
    play.passes("A", "other")
    assert play.resumed == ["serves"]


def test_when_a_paused_build_is_lost_its_dependents_start_again() -> None:
    play = served(USES, OTHER)
    play.pauses("A", "serves", at="one")
    play.passes("A", "other")
    lost = play.running_spec("A", "uses").build
    play.ends("A", "serves", None)
    assert play.builds == [("A", "serves")], "what used it was cancelled"
    play.pauses("A", "serves", at="two")
    assert play.builds == [("A", "serves"), ("A", "uses"), ("A", "other")]
    again = play.running_spec("A", "uses")
    assert again.build != lost and again.attempt == 1 and again.parent_data == {"at": "two"}


def test_a_build_that_failed_because_a_paused_one_was_lost_does_not_count() -> None:
    play = served(USES)
    play.pauses("A", "serves")
    play.fails("A", "uses")
    play.ends("A", "serves", None)
    play.pauses("A", "serves")
    play.passes("A", "uses")
    play.passes("A", "serves")
    assert play.landing_names == ["A"]


def test_lost_too_often_is_a_failure() -> None:
    play = served(USES)
    for _ in range(2):
        play.pauses("A", "serves")
        play.ends("A", "serves", None)
    assert play.ended == {"A": "FAILURE"} and "RETRY_LIMIT" in play.messages["A"]


def test_a_change_that_leaves_takes_its_paused_builds_along() -> None:
    play = served(USES)
    play.pauses("A", "serves")
    play.abandon("A")
    assert play.builds == [] and play.queue == []


def test_only_dependent_jobs_get_secret_data() -> None:
    play = Play(FrozenJob(name="serves"), USES, AFTER, FrozenJob(name="beside"))
    play.approve("A")
    play.merges()
    spec, first, last = play.running_spec("A", "serves"), Sealed(box="first"), Sealed(box="last")
    play.act(BuildPaused(spec.buildset, "serves", spec.build, {}, secret=first))
    assert play.running_spec("A", "uses").parent_secrets == (first,)
    uses = play.running_spec("A", "uses")
    play.act(BuildEnded(uses.buildset, "uses", BuildOutcome(uses.build, "SUCCESS", secret=last)))
    assert play.running_spec("A", "after").parent_secrets == (first, last), "through others, later wins"
    assert play.running_spec("A", "beside").parent_secrets == ()
