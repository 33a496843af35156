"""Test jobs with `reuse`: a build that succeeded on the same inputs is not repeated, and no other build replaces it."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from headgate.config.model import FrozenJob, JobDependency, JobSemaphore, Playbook, PlaybookSecret, RequiredProject
from headgate.gate.builds.reuse import DATA_MAX_BYTES, NOTHING, lasting
from headgate.gate.state.actions import Cancel, Merge, Record
from headgate.gate.state.model import Build
from headgate.gate.state.returns import Sealed
from headgate.gate.state.world import Sought
from headgate.testing.plays import Play

UNIT = FrozenJob(name="unit", reuse=True)
BOTH = FrozenJob(name="both", reuse=True, required_projects=(RequiredProject("p", "git"), RequiredProject("q", "git")))


class Remembering(Play):
    """Play with a history of the builds that ended."""

    def __init__(self, *jobs: FrozenJob, manager: str = "dependent") -> None:
        super().__init__(*jobs, manager=manager)
        self.known: dict[str, Build] = {}
        self.sought: list[Sought] = []
        self.passed = self._passed
        self.heads = {"p": "1" * 40, "q": "2" * 40}

    def _passed(self, sought: Sought) -> Build | None:
        self.sought.append(sought)
        return self.known.get(sought.inputs, NOTHING)

    def ends(self, name: str, job: str, result: str | None, **data: object) -> None:
        build = self.running_spec(name, job).build
        super().ends(name, job, result, **data)
        items = [item for _, item in self.state.items()]
        items += [action.item for action in self.actions if isinstance(action, Record)]
        builds = [b for item in items if item.buildset is not None for b in item.buildset.builds.values()]
        self.known |= {one.inputs: one for one in builds if one.id == build and lasting(one)}

    def ran(self, name: str) -> list[str]:
        return [job for of, job in self.builds if of == name]


def behind_a_failure(*jobs: FrozenJob) -> Remembering:
    """B, of another repository, has passed on A, which fails then."""
    play = Remembering(*jobs)
    play.layout.limits = {"one": 2}
    play.approve("A")
    play.propose(play.change("B", project="q"))
    play.approve("B")
    play.merges()
    play.passes("B")
    play.fails("A", jobs[0].name)
    return play


def test_a_reset_because_of_another_repository_changes_nothing() -> None:
    play = behind_a_failure(UNIT)
    assert play.ended == {"A": "FAILURE"}
    play.merges()
    assert play.beneath("B") == [] and play.ran("B") == [] and play.landing_names == ["B"]
    play.lands("B")
    (old,) = play.known.values()
    assert f"- unit http://h/t/t/build/{old.id} : SUCCESS (reused build {old.id})" in play.messages["B"]


def test_a_build_that_receives_the_changed_repository_is_repeated() -> None:
    play = behind_a_failure(UNIT, BOTH)
    play.merges()
    assert play.ran("B") == ["both"]


def test_a_job_without_reuse_runs_again_without_a_lookup() -> None:
    play = behind_a_failure(replace(UNIT, reuse=False))
    (merge,) = (one.work for one in play.actions if isinstance(one, Merge))
    play.merges()
    assert play.ran("B") == ["unit"] and play.sought == [] and merge.given == {}


def test_a_build_is_repeated_if_a_failed_change_of_its_repository_was_ahead() -> None:
    play = Remembering(UNIT)
    play.approve("A", "F")
    play.approve("B")
    play.merges()
    play.passes("B")
    play.passes("A")
    play.heads = {**play.heads, "p": play.tree("p") + "+" + play.item("A").change.commit}
    play.lands("A")
    play.fails("F")
    play.merges()
    assert play.ran("B") == ["unit"], "F was beneath, in the same repository"


def test_merges_return_the_trees_of_all_repositories_of_such_jobs() -> None:
    book = Playbook("config", "git", "master", "x.yaml", trusted=True)
    play = Remembering(replace(BOTH, pre_run=(book,)), FrozenJob(name="lint", required_projects=BOTH.required_projects))
    play.approve("A")
    (merge,) = (one.work for one in play.actions if isinstance(one, Merge))
    assert merge.given == {"p": "git", "q": "git", "config": "git"} and set(merge.projects) == {"p"}


def test_a_job_waits_while_an_earlier_result_is_looked_up() -> None:
    play = Remembering(UNIT, FrozenJob(name="lint"))
    play.passed = lambda sought: None
    play.approve("A")
    play.merges()
    assert play.ran("A") == ["lint"]
    play.passed = lambda sought: NOTHING
    play.act()
    assert play.ran("A") == ["lint", "unit"]


def test_without_a_history_all_is_run() -> None:
    play = Remembering(UNIT)
    play.passed = None
    play.approve("A")
    play.merges()
    assert play.ran("A") == ["unit"]


def test_a_failed_build_is_never_reused() -> None:
    play = Remembering(UNIT, manager="independent")
    play.propose(play.change("A"))
    play.merges()
    play.fails("A")
    play.propose(play.change("A"))
    play.merges()
    assert play.ran("A") == ["unit"] and play.known == {}


def test_a_build_of_check_is_never_reused_in_a_gate_or_with_more_trust() -> None:
    play = Remembering(UNIT, manager="independent")
    play.pipeline = replace(play.pipeline, name="check")
    play.propose(play.change("A"))
    play.merges()
    play.passes("A")
    for other in (replace(play.pipeline, name="gate"), replace(play.pipeline, post_review=True)):
        play.pipeline = other
        play.propose(play.change("A"))
        play.merges()
        assert play.ran("A") == ["unit"]
        play.fails("A")
    play.pipeline = replace(play.pipeline, name="check", post_review=False)
    play.propose(play.change("A"))
    play.merges()
    assert play.ran("A") == []


def test_jobs_after_a_reused_build_receive_its_returned_data() -> None:
    after = FrozenJob(name="after", dependencies=(JobDependency("unit"),))
    left_out = FrozenJob(name="left", dependencies=(JobDependency("unit"),))
    play = Remembering(UNIT, after, left_out)
    play.approve("A")
    play.propose(play.change("B", project="q"))
    play.approve("B")
    play.merges()
    artifact = {"name": "image", "url": "http://i/1"}
    play.ends("B", "unit", "SUCCESS", version="7", zuul={"artifacts": [artifact], "child_jobs": ["after"]})
    play.fails("A", "unit")
    play.merges()
    spec = play.running_spec("B", "after")
    assert play.ran("B") == ["after"] and spec.parent_data == {"version": "7"}
    assert [one["url"] for one in spec.zuul["artifacts"]] == ["http://i/1"]


def test_a_job_after_one_that_returned_something_else_is_run() -> None:
    first, after = FrozenJob(name="first"), replace(UNIT, dependencies=(JobDependency("first"),))
    play = Remembering(first, after, manager="independent")

    def tested(version: str) -> list[str]:
        play.propose(play.change("A"))
        play.merges()
        play.ends("A", "first", "SUCCESS", version=version)
        ran = play.ran("A")
        play.passes("A")
        return ran

    assert [tested("1"), tested("1"), tested("2")] == [["unit"], [], ["unit"]]


def test_a_reused_build_takes_no_semaphore() -> None:
    play = behind_a_failure(replace(UNIT, semaphores=(JobSemaphore("one"),)))
    play.held = {"one": 2}
    play.merges()
    assert play.ran("B") == [] and play.landing_names == ["B"]


def test_secrets_are_sought_with_their_keys() -> None:
    secret = PlaybookSecret("s", "host/p", "git", data={"x": "y"})
    book = Playbook("p", "git", "master", "x", secrets=(secret, replace(secret, project="oidc", data={}, oidc={})))
    play = Remembering(replace(UNIT, run=(book,)))
    play.approve("A")
    play.merges()
    assert {one.keys for one in play.sought} == {(("git", "host/p"),)}


def test_a_patchset_with_another_message_is_run() -> None:
    play = Remembering(UNIT, manager="independent")
    change = play.change("A")
    for one in (change, replace(change, commit="d" * 40, message="other\n")):
        play.propose(one)
        play.merges()
        assert play.ran("A") == ["unit"]
        play.passes("A")


PASSED = Build("b", "unit", result="SUCCESS", inputs="x", narrow=True)


@pytest.mark.parametrize(
    "other",
    [
        {"result": "FAILURE"},
        {"result": None},
        {"inputs": ""},
        {"narrow": False},
        {"paused": True},
        {"secret": Sealed("git", "p")},
        {"data": {"much": "x" * DATA_MAX_BYTES}},
    ],
    ids=str,
)
def test_a_build_is_reused_only_if_all_of_its_inputs_are_known(other: dict[str, object]) -> None:
    assert lasting(PASSED) and not lasting(replace(PASSED, **other))  # type: ignore[arg-type]  # members of several types


def test_a_reused_build_names_the_build_that_ran() -> None:
    play = behind_a_failure(UNIT)
    (old,) = play.known.values()
    play.approve("C")
    play.merges()
    build = play.item("B").buildset.builds["unit"]  # type: ignore[union-attr]  # it has merged
    assert build.error == f"reused build {old.id}" and build.inputs and not lasting(build)
    assert not any(isinstance(one, Cancel) for one in play.actions)
