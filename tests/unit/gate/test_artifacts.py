"""Test the artifacts that jobs provide for the jobs of changes behind them."""

from __future__ import annotations

from headgate.config.model import FrozenGraph, FrozenJob, JobDependency
from headgate.gate.builds.graph import NOTHING_PROVIDED
from headgate.gate.state.change import ChangeState
from headgate.gate.state.model import Build, BuildSet
from headgate.testing.plays import Play

IMAGE = FrozenJob(name="image", provides=("images",))
DEPLOY = FrozenJob(name="deploy", requires=("images",))
AFTER = FrozenJob(name="after", dependencies=(JobDependency("image"),))
BUILT = {"zuul": {"artifacts": [{"name": "image", "url": "http://i/1"}]}}


def given(play: Play, name: str, job: str) -> list[tuple[str, str, str]]:
    """(change, job, url) of the artifacts that the job receives."""
    found = play.running_spec(name, job).zuul["artifacts"]
    return [(one["change"], one["job"], one["url"]) for one in found]


def test_a_job_waits_for_the_artifacts_that_it_requires_of_changes_ahead() -> None:
    play = Play(IMAGE, DEPLOY)
    play.approve("A", "B")
    play.merges()
    assert play.builds == [("A", "image"), ("A", "deploy"), ("B", "image")], "nothing is ahead of A"
    play.ends("A", "image", "SUCCESS", **BUILT)
    assert ("B", "deploy") in play.builds and given(play, "B", "deploy") == [("A", "image", "http://i/1")]


def test_a_job_does_not_wait_for_the_artifacts_of_a_failing_change() -> None:
    play = Play(IMAGE, DEPLOY)
    play.approve("A", "B")
    play.merges()
    play.fails("A", "image")
    play.merges("B")
    assert ("B", "deploy") in play.builds and given(play, "B", "deploy") == []


def test_a_non_voting_job_that_fails_to_provide_an_artifact_fails_the_jobs_that_require_it() -> None:
    play = Play("unit", FrozenJob(name="image", provides=("images",), voting=False), DEPLOY)
    play.approve("A", "B")
    play.merges()
    play.fails("A", "image")
    assert ("B", "deploy") not in play.builds and play.item("B").failing
    play.passes("A")
    play.lands("A")
    play.passes("B")
    assert play.ended["B"] == "FAILURE"
    assert "Job image of A,AAAAAAAA, which provides what this one requires, failed" in play.messages["B"]


def test_a_paused_build_provides_its_artifacts_so_far() -> None:
    play = Play(IMAGE, DEPLOY)
    play.approve("A", "B")
    play.merges()
    play.pauses("A", "image", **BUILT)
    assert given(play, "B", "deploy") == [("A", "image", "http://i/1")]


def test_a_further_try_is_given_the_same() -> None:
    play = Play(IMAGE, DEPLOY)
    play.approve("A", "B")
    play.merges()
    play.ends("A", "image", "SUCCESS", **BUILT)
    play.ends("B", "deploy", None)
    assert given(play, "B", "deploy") == [("A", "image", "http://i/1")]


def test_in_check_artifacts_come_from_the_check_of_the_needed_change() -> None:
    play = Play(IMAGE, DEPLOY, manager="independent")
    play.propose(play.change("A"))
    play.propose(play.change("B", "A"))
    play.merges()
    assert ("B", "deploy") not in play.builds
    play.ends("A", "image", "SUCCESS", **BUILT)
    assert given(play, "B", "deploy") == [("A", "image", "http://i/1")]


def test_jobs_of_one_change_learn_of_each_others_artifacts() -> None:
    play = Play(IMAGE, AFTER)
    play.approve("A")
    play.merges()
    play.ends("A", "image", "SUCCESS", **BUILT)
    assert given(play, "A", "after") == [("A", "image", "http://i/1")]


def test_the_gate_says_of_which_build_an_artifact_is() -> None:
    play = Play(IMAGE, AFTER)
    play.approve("A")
    play.merges()
    play.ends("A", "image", "SUCCESS", zuul={"artifacts": [{"name": "i", "url": "http://i/1", "build": "of others"}]})
    (found,) = play.running_spec("A", "after").zuul["artifacts"]
    buildset = play.item("A").buildset
    assert buildset is not None and found["build"] == buildset.builds["image"].id


def needing(past: BuildSet | None) -> Play:
    """B needs A, whose earlier test here provided this."""
    play = Play(IMAGE, DEPLOY, manager="independent")
    play.past = past
    needed = play.change("A")
    play.change_states[needed.key] = ChangeState(needed)
    play.propose(play.change("B", "A"))
    play.merges()
    return play


def ended(result: str) -> BuildSet:
    build = Build("earlier", "image", result=result, data=dict(BUILT) if result == "SUCCESS" else {})
    return BuildSet("set", graph=FrozenGraph((IMAGE,)), builds={"image": build})


def test_a_change_that_is_no_longer_tested_provides_the_artifacts_of_its_last_test() -> None:
    play = needing(None)
    assert play.builds == [("B", "image")], "it is being looked up"
    play.past = ended("SUCCESS")
    play.act()
    assert given(play, "B", "deploy") == [("A", "image", "http://i/1")]


def test_if_the_last_test_failed_to_provide_an_artifact_the_job_that_requires_it_fails() -> None:
    play = needing(ended("FAILURE"))
    assert ("B", "deploy") not in play.builds and play.item("B").failing
    play.passes("B")
    assert play.ended["B"] == "FAILURE"
    assert "Job image of A,AAAAAAAA, which provides what this one requires, failed" in play.messages["B"]


def test_a_change_that_was_never_tested_here_provides_no_artifacts() -> None:
    play = needing(NOTHING_PROVIDED)
    assert given(play, "B", "deploy") == []
